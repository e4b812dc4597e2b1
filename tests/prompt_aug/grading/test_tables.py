r"""The tables of this folder and of GRADING.md, run against the grader.

pairs.tsv      family, kind (an answer, or a whole response in which "\n" is a new line), verdict,
               prediction, gold. The families forms_* have ways to write right answers, with wrong
               answers of the same form; "refused" are right ones that the grader does not read.
policy.tsv     table, prediction or response, gold or extracted answer, question, status
functions.tsv  a function of the grader, input and output (Python literals)
"""

import ast
import itertools
import re
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from prompt_aug.grading import Extraction, grade, grade_answer
from prompt_aug.grading.evaluate import evaluate
from prompt_aug.grading.extract import conclusion, extract, is_value
from prompt_aug.grading.units import split_unit, units_contradict

ROOT = Path(__file__).resolve().parents[3]


def table(name: str) -> list[list[str]]:
    text = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return [line.split("\t") for line in text.splitlines()[1:]]


PAIRS, KEPT = table("pairs.tsv"), table("policy.tsv")


def page(*columns: str) -> list[list[str]]:
    """Return the cells of the table of GRADING.md with these columns, without code marks."""
    text = (ROOT / "prompt_aug/grading/GRADING.md").read_text(encoding="utf-8")
    lines = text.partition("| " + " | ".join(columns) + " | why |")[2].strip().splitlines()[1:]
    rows = itertools.takewhile(lambda line: line.startswith("|"), lines)
    cells = ([c.strip() for c in re.split(r"(?<!\\)\|", line)[1:-2]] for line in rows)
    return [[cell.strip("`").replace(r"\|", "|") for cell in row] for row in cells]


def kept(*names: str) -> list[list[str]]:
    return [row[1:] for row in KEPT if row[0] in names]


def graded(kind: str, prediction: str, gold: str) -> bool:
    if kind == "answer":
        return grade_answer(prediction, gold).correct
    return grade(prediction.replace("\\n", "\n"), gold.replace("\\n", "\n")).correct


# A test of its own for each of 2,000 pairs would take longer than its grading.
@pytest.mark.parametrize("family", sorted({row[0] for row in PAIRS}))
def test_pairs(family: str) -> None:
    rows = [row for row in PAIRS if row[0] == family]
    wrong = [row for row in rows if graded(row[1], *row[3:]) != (row[2] == "right")]
    assert wrong == []


EXTRACTION = page("response", "answer")
EQUALITY = [[p, g, "", v] for p, g, v in page("prediction", "gold", "verdict")]
ECHO = page("prediction", "gold", "question", "verdict")


def test_the_tables_are_found() -> None:
    forms = [row[2] for row in PAIRS if row[0].startswith("forms_")]
    assert [forms.count(verdict) for verdict in ("right", "refused", "wrong")] == [22, 3, 22]
    assert len(EXTRACTION) >= 9 and len(EQUALITY) >= 11 and len(ECHO) >= 3 and len(KEPT) >= 150


@pytest.mark.parametrize("row", [*EXTRACTION, *(row[:2] for row in kept("extraction"))])
def test_extraction(row: list[str]) -> None:
    assert (extract(row[0], Extraction()) or "none") == row[1]


@pytest.mark.parametrize("row", [*EQUALITY, *ECHO, *kept("equality", "echo")])
def test_verdict(row: list[str]) -> None:
    prediction, gold, question, verdict = row
    assert grade_answer(prediction, gold, question=question or None).status == verdict


@pytest.mark.parametrize("row", kept("unworked"))
def test_unworked_arithmetic(row: list[str]) -> None:
    answer, gold, _, status = row
    paid = grade(rf"\boxed{{{answer}}}", gold)
    assert (paid.status, paid.unworked) == ("correct", status == "unworked")
    assert grade(rf"\boxed{{{answer}}}", gold, pay_unworked=False).status == status


LONG = "We add the parts one after the other, and nothing is lost on the way. " * 12


def approximate(text: str) -> Any:
    assert evaluate(text).exact is None
    return pytest.approx(evaluate(text).approximate[0], abs=1e-12)  # doubles, a few operations


def refusal(text: str) -> str:
    with pytest.raises(ValueError) as refused:
        evaluate(text)
    return refused.typename


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "unit": lambda text: split_unit(text)[1],
    "contradict": lambda units: {units_contradict(*units), units_contradict(*units[::-1])},
    "is_value": lambda text: is_value(text) and conclusion(text) is not None,
    "conclusion": lambda ending: conclusion(LONG + ending),
    "extract": lambda text: extract(text, Extraction()),
    "exact": lambda text: evaluate(text).exact,
    "approximate": approximate,
    "refusal": refusal,
}


@pytest.mark.parametrize("row", table("functions.tsv"))
def test_function(row: list[str]) -> None:
    given, expected = map(ast.literal_eval, row[1:])
    if row[0] == "exact":
        expected = Fraction(expected)
    assert FUNCTIONS[row[0]](given) == expected


@pytest.mark.parametrize("row", table("echoes.tsv"))
def test_rewritten_formulas_of_the_question_earn_nothing(row: list[str]) -> None:
    verdict, prediction, gold, question = row
    result = grade_answer(prediction, gold, question=question)
    assert result.correct == (verdict == "right"), result
    if verdict == "echo":
        assert result.status == "echo"
        assert grade(rf"So \boxed{{{prediction}}}.", gold, question=question).status == "echo"
        assert grade_answer(gold, gold, question=question).correct


# No two are equal.
VALUES = (r"\frac{3}{4}", "12", r"\sqrt{2}", r"2\pi", "x+1", "3+4i", r"\{8,9\}", "(1,2,5)")
SEPARATORS = (r" \quad ", r" \text{ or } ", ", ", r" \approx ", r" \to ", " | ", " = ")


@pytest.mark.parametrize("separator", [*SEPARATORS, " ", r" \\ "])
def test_two_values_are_right_for_at_most_one_gold(separator: str) -> None:
    for first, second in itertools.permutations(VALUES, 2):
        both = first + separator + second
        assert sum(grade_answer(both, gold).correct for gold in VALUES) <= 1, both
