r"""Forms in which right answers are written, with wrong answers of the same form: forms.tsv.

Columns: kind, gold, right answers and wrong answers; " | " separates two.
"""

from pathlib import Path

import pytest

from prompt_aug.grading import grade, grade_answer

LINES = Path(__file__).with_name("forms.tsv").read_text(encoding="utf-8").splitlines()[1:]
FORMS = [line.split("\t")[1:] for line in LINES]
RIGHT, WRONG = 1, 2

# (gold, right responses, wrong responses)
RESPONSES = [
    (
        "12",
        [
            r"So it is $\boxed{12}$. Final answer: $\boxed{}$",
            "\\boxed{12}\n\n\\boxed{}",
            r"$\boxed{12}$ $\boxed{ }$",
            "La réponse est 12.",
            "La réponse finale est $12$.",
            "Die Antwort ist 12.",
            "Die Antwort lautet $12$.",
            "La respuesta es 12.",
            "La respuesta final es: $12$.",
            "答案是12。",
            "答案：12",
            "所以答案是 $12$。",
            "答えは12です。",
            "A resposta é 12.",
            "La risposta è 12.",
            "Ответ: 12",
            "Ответ: $12$.",
        ],
        [
            r"\boxed{}",
            r"$\boxed{13}$ and $\boxed{}$",
            r"\boxed{12} \boxed{13} \boxed{}",
            "La réponse est 13.",
            "La réponse n'est pas 12.",
            "Die Antwort ist nicht 12.",
            "Die Antwort ist 12 oder 13.",
            "La respuesta no es 12.",
            "La respuesta es 21.",
            "答案是13。",
            "答案不是12。",
            "答案是12或13。",
            "A resposta não é 12.",
            "Ответ: 13",
            "Ответ: не 12",
            "La réponse est 12 ou 13.",
            "Réponse ? 12 peut-être",
            "La respuesta es 12 o 13.",
        ],
    ),
    (
        r"\frac{3}{4}",
        [
            r"La réponse est $\frac{3}{4}$.",
            r"Die Antwort ist \(\frac{3}{4}\).",
            r"答案是$\frac{3}{4}$",
            r"La respuesta es $\frac34$.",
            r"\boxed{\frac34}" + "\n\n" + r"$\boxed{}$",
        ],
        [
            r"La réponse est $\frac{4}{3}$.",
            r"答案是$\frac{1}{4}$",
            r"La respuesta es $\frac{3}{5}$.",
            r"Die Antwort ist \(\frac{3}{4}\) oder \(1\).",
        ],
    ),
]


# Right forms that are refused: names and spellings that the grader does not read.
REFUSED = {
    *(r"{}_5C_2", r"^5C_2", r"{}_6C_3", r"{}_{12}C_5", "120^o", "Rs. 5", "Rs 5"),
    *(r"\tau", "x^2+K", r"\text{on Tuesday}"),
}


def graded(verdict: int) -> dict[tuple[str, str], bool]:
    """Return (gold, form) -> correct of all right or all wrong forms."""
    found = {
        (row[0], form): grade_answer(form, row[0]).correct
        for row in FORMS
        for form in row[verdict].split(" | ")
    }
    return found | {
        (row[0], text): grade(text, row[0]).correct for row in RESPONSES for text in row[verdict]
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
