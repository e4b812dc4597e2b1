r"""Notation that is not TeX: money, magnitudes, words, other brackets, systems; and units."""

import pytest

from prompt_aug.grading import grade_answer
from prompt_aug.grading.intervals import as_union
from prompt_aug.grading.normalize import canonical
from prompt_aug.grading.notation import amounts, currencies, whole
from prompt_aug.grading.structure import build
from prompt_aug.grading.units import split_unit, units_contradict


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"\$5", r"5\text{ dollars}"),
        (r"\$1,234.50", r"1,234.50\text{ dollars}"),
        (r"\$3, \$4", r"3\text{ dollars}, 4\text{ dollars}"),
        ("5¢", r"5\text{ cents}"),
        (r"\text{€5 each}", r"\text{5 euros each}"),
        (r"\$5x", " 5x"),  # no price
        (r"\$2+\$3", r" 2+3\text{ dollars}"),
        ("$5$", "$5$"),  # a mark of TeX
    ],
)
def test_a_currency_sign_is_a_unit_where_it_marks_a_price(text: str, expected: str) -> None:
    assert currencies(text).split() == expected.split()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"3.5\text{ million}", "3500000 "),
        (r"2\text{ hundred thousand people}", r"200000\text{ people}"),
        ("1,200 thousand", "1200000"),
        (r"5\text{ millionths}", r"5\text{ millionths}"),
        (r"\frac12\text{ million}", r"\frac12\text{ million}"),
        (r"1/2\text{ million}", r"1/2\text{ million}"),
        ("1.2345 thousand", "1.2345 thousand"),  # no whole number
    ],
)
def test_a_magnitude_is_part_of_its_number(text: str, expected: str) -> None:
    assert amounts(text).split() == expected.split()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("five", "5"),
        (r"\text{Ninety-nine}", "99"),
        ("one hundred and five", "105"),
        ("two thousand and five", "2005"),
        ("three million two hundred thousand one", "3200001"),
        ("minus seven", "-7"),
        ("zero", "0"),
        ("3 to 4 to 5", "3:4:5"),
        (r"x \in \text{all real numbers}", r"\mathbb{R}"),
        ("]1,2]", "(1,2]"),
        (r"x \in [0,1[", r"x \in [0,1)"),
        (r"\begin{cases}x=1,\\y=2\end{cases}", "x=1, y=2"),
    ],
)
def test_a_whole_answer_in_other_notation(text: str, expected: str) -> None:
    assert whole(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        *(
            "five six",
            "twenty eleven",
            "ten hundred",
            "two five",
            "five apples",
            "and five",
            "hundred",
        ),
        *("one thousand million", "three to four", "3 to x", "all positive real numbers", "[1,2]"),
        *(
            "hundred",
            "]1,2",
            r"\begin{cases}x+y=3\\x-y=1\end{cases}",
            r"\begin{cases}x=1\end{cases}",
            "",
        ),
    ],
)
def test_what_is_no_such_answer_stays_as_it_is(text: str) -> None:
    assert whole(text) == text


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        (r"5\text{ dollars per hour}", "dollar/h"),
        (r"5\text{ per hour}", "/h"),
        ("30'", "min|ft"),
        ("30''", "s|in"),
        (r"12\degree 30'", None),
        (r"5\text{ apples}", ""),
        ("5", None),
    ],
)
def test_units(text: str, unit: str | None) -> None:
    assert split_unit(text)[1] == unit


@pytest.mark.parametrize(
    ("one", "other", "contradict"),
    [
        ("dollar", "cent", True),
        ("dollar", "dollar/h", False),
        ("dollar/h", "dollar/day", True),
        ("/h", "dollar/h", False),
        ("/h", "h", True),
        ("km", "km/h", True),
        ("min|ft", "min", False),
        ("min|ft", "degree", True),
        ("cm^2", "cm", False),
        ("cm^2", "cm^3", True),
        ("", "cm", False),
    ],
)
def test_units_that_contradict(one: str, other: str, contradict: bool) -> None:
    assert units_contradict(one, other) == contradict == units_contradict(other, one)


@pytest.mark.parametrize(
    ("text", "intervals"),
    [
        ("x > 1 and x < 3", ["(1,3)"]),
        (r"x < 3, x \ge 1", ["[1,3)"]),
        ("x < 1, x > 3", [r"(-\infty,1)", r"(3,\infty)"]),
        ("x < 3 or x > 1", [r"(-\infty,3)", r"(1,\infty)"]),
        ("x > 3 and x < 1", None),
        ("x > 1 and x > 2", None),
        ("x > 1 and y < 3", None),
        ("x > a and x < b", None),
    ],
)
def test_joined_inequalities(text: str, intervals: list[str] | None) -> None:
    union = as_union(build(canonical(text)))
    found = None if union is None else [item.text for item in union[1].items]
    assert found == intervals


@pytest.mark.parametrize(
    ("gold", "status"), [(r"\frac{\pi^2}{6}", "correct"), (r"\frac{\pi^2}{5}", "wrong")]
)
def test_an_infinite_sum_is_a_verdict(gold: str, status: str) -> None:
    assert grade_answer(r"\sum_{n=1}^\infty 1/n^2", gold).status == status


def test_a_logarithm_without_a_base_is_asked_about_in_both_readings() -> None:
    assert grade_answer(r"\log x+\log y", r"\log y+\log x").correct
    assert not grade_answer(r"\log x", r"\ln x").correct
    assert not grade_answer(r"\log x", r"\log_{10} x").correct
    assert grade_answer(r"\frac{\log x}{\log 2}", r"\frac{\ln x}{\ln 2}").correct
