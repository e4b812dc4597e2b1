"""The bounded reader of formulas: laws on random formulas, and its bounds."""

from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prompt_aug.grading.evaluate import TooBig, Unsupported, evaluate, surely_different

Formula = tuple[str, Fraction]


def test_length_and_nesting_are_bounded() -> None:
    with pytest.raises(TooBig):
        evaluate("9" * 20_000)
    with pytest.raises(Unsupported, match="deep"):
        evaluate("(" * 500 + "1" + ")" * 500)


def _join(pair: tuple[Formula, Formula], sign: str) -> Formula:
    (left, x), (right, y) = pair
    texts = {
        "+": (f"({left})+({right})", x + y),
        "-": (f"{{{left}}}-{{{right}}}", x - y),
        "*": (rf"({left})\cdot({right})", x * y),
        "/": (rf"\dfrac{{{left}}}{{{right}}}".replace("dfrac", "frac"), x / y if y else x),
    }
    return texts[sign] if sign != "/" or y else (left, x)


numbers = st.integers(0, 99).map(lambda n: (str(n), Fraction(n))) | st.builds(
    lambda n, digits: (f"{n}.{digits:02d}", Fraction(100 * n + digits, 100)),
    st.integers(0, 9),
    st.integers(0, 99),
)
formulas = st.recursive(
    numbers,
    lambda inner: st.builds(_join, st.tuples(inner, inner), st.sampled_from("+-*/")),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(formulas)
def test_random_formulas_have_their_value(formula: Formula) -> None:
    text, value = formula
    assert evaluate(text).exact == value


@settings(max_examples=80, deadline=None)
@given(formulas, formulas)
def test_difference_is_exactly_difference(first: Formula, second: Formula) -> None:
    assert surely_different(evaluate(first[0]), evaluate(second[0])) == (first[1] != second[1])


@settings(max_examples=60, deadline=None)
@given(st.integers(-9, 9), st.integers(-9, 9), st.integers(1, 9))
def test_equal_formulas_are_never_surely_different(a: int, b: int, c: int) -> None:
    left = rf"\frac{{(x+{c})({a}x-{b})}}{{\sqrt{{{c}}}}}".replace("--", "+")
    right = rf"\frac{{\sqrt{{{c}}}({a}x^2-{b}x+{a * c}x-{b * c})}}{{{c}}}".replace(
        "--", "+"
    ).replace("+-", "-")
    assert not surely_different(evaluate(left), evaluate(right))
    assert surely_different(evaluate(left), evaluate(right + "+1"))
