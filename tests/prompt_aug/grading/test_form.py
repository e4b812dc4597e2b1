"""Normal forms: alike answers have one, others have two, and hostile text has some."""

import pytest

from prompt_aug.grading import normal_form

ALIKE = [
    (r"\frac12", "0.50", r"x = \frac{2}{4}", r"\boxed{\dfrac{1}{2}}", "1/2", "50/100"),
    (r"\{3,1\}", "1, 3", "3 and 1", r"\{1,3,3\}"),
    (r"\sqrt{12}", r"2\sqrt3", r"\sqrt{3}+\sqrt3"),
    ("(1,2)", r"\left( 1, \frac{4}{2} \right)"),
    ("(1,2]", r"( 1 , 2 ]"),
    ("(x+1)^2", "x^2+2x+1"),
    ("1,234", "1234", r"1{,}234"),
    (r"3+4i", "4i+3"),
    ("Navin", r"\text{navin}"),
    ("12 cm", "12", r"12\%"),
    (r"(-\infty,1)\cup(3,\infty)", r"(3,\infty)\cup(-\infty,1)"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix} 1 \\ \frac42 \end{bmatrix}"),
]


@pytest.mark.parametrize("answers", ALIKE)
def test_alike_answers_have_one_form(answers: tuple[str, ...]) -> None:
    assert len({normal_form(answer) for answer in answers}) == 1


def test_numbers_too_long_for_python_to_write_are_still_alike() -> None:
    """More than 4300 digits: each spelling of such a number was a vote of its own."""
    power = "10^{5000}"
    assert (
        normal_form(power) == normal_form(r"10^{2500}\cdot 10^{2500}") == "0x" + f"{10**5000:x}/0x1"
    )
    assert normal_form(power) != normal_form(power + "+1")


def test_answers_that_differ_have_different_forms() -> None:
    groups = [*(group[0] for group in ALIKE), "(2,1)", "[1,2]", "x", "X", "(x-1)^2", "-1/2"]
    assert len({normal_form(answer) for answer in groups}) == len(groups)
    assert normal_form(r"\frac13") != normal_form("0.333333333")
    assert normal_form(r"\sqrt{2}") != normal_form(r"\sqrt{2}+10^{-25}")


@pytest.mark.parametrize(
    "text", ["", "?", r"\frac{", "9^{9^{9}}", "x" * 5000, "(" * 60, "0/0", r"\begin{pmatrix}"]
)
def test_hostile_text_has_a_form(text: str) -> None:
    assert isinstance(normal_form(text), str)
