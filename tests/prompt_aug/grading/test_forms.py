r"""Forms in which right answers are written, with wrong answers of the same form: forms.tsv.

Columns: kind, gold, right answers and wrong answers; " | " separates two. Of the kind "responses"
they are whole responses, in which "\n" is a new line.
"""

from pathlib import Path

import pytest

from prompt_aug.grading import grade, grade_answer

LINES = Path(__file__).with_name("forms.tsv").read_text(encoding="utf-8").splitlines()[1:]
FORMS = [line.split("\t") for line in LINES]
RIGHT, WRONG = 2, 3

# Right forms that are refused: names and spellings that the grader does not read.
REFUSED = {
    *(r"{}_5C_2", r"^5C_2", r"{}_6C_3", r"{}_{12}C_5", "120^o", "Rs. 5", "Rs 5"),
    *(r"\tau", "x^2+K", r"\text{on Tuesday}"),
}


def graded(verdict: int) -> dict[tuple[str, str], bool]:
    """Return (gold, form) -> correct of all right or all wrong forms."""
    return {
        (row[1], form): grade(form.replace("\\n", "\n"), row[1]).correct
        if row[0] == "responses"
        else grade_answer(form, row[1]).correct
        for row in FORMS
        for form in row[verdict].split(" | ")
    }


def test_right_forms_are_paid() -> None:
    right = graded(RIGHT)
    assert len(right) >= 200
    assert {form for (_, form), correct in right.items() if not correct} == REFUSED


@pytest.mark.parametrize(
    ("answer", "gold", "unworked"),
    [
        (r"(16-3-4)\cdot 2", "18", True),
        (r"\text{The answer is }(16-3-4)\cdot 2", "18", True),
        ("x=2+3+4", "9", True),
        (r"\$(5+3)*2", r"\$16", True),
        ("9=4+3+2", "9", True),
        ("4+3+2=9", "9", False),
        (r"\frac{120}{60}", "2", False),
        (r"\frac{-7}{2}", "-3.5", False),
        ("2^{10}", "1024", False),
        (r"3\times 10^5", "300000", False),
        (r"1\frac{1}{2}", "1.5", False),
        (r"2\sqrt{3}+\sqrt{12}", r"4\sqrt{3}", False),  # the gold is no plain number
    ],
)
def test_unworked_arithmetic(answer: str, gold: str, unworked: bool) -> None:
    paid = grade(rf"\boxed{{{answer}}}", gold)
    assert (paid.correct, paid.status, paid.unworked) == (True, "correct", unworked)
    refused = grade(rf"\boxed{{{answer}}}", gold, pay_unworked=False)
    assert (refused.correct, refused.status == "unworked") == (not unworked, unworked)


def test_wrong_forms_are_refused() -> None:
    wrong = graded(WRONG)
    assert len(wrong) >= 200
    assert [pair for pair, correct in wrong.items() if correct] == []
