"""Every row of every table of prompt_aug/grading/GRADING.md, run against the grader."""

import re
from pathlib import Path

import pytest

from prompt_aug.grading import Extraction, grade_answer
from prompt_aug.grading.extract import extract

PAGE = Path(__file__).resolve().parents[3] / "prompt_aug" / "grading" / "GRADING.md"


def rows(*columns: str) -> list[list[str]]:
    """The cells of the table whose head starts with `columns`, code marks removed."""
    text = PAGE.read_text(encoding="utf-8")
    head = "| " + " | ".join(columns) + " | why |"
    table = text.partition(head)[2].strip().splitlines()[1:]
    found = []
    for line in table:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        found.append([cell.strip("`").replace(r"\|", "|") for cell in cells])
    return found


EXTRACTION = rows("response", "answer")
EQUALITY = rows("prediction", "gold", "verdict")
ECHO = rows("prediction", "gold", "question", "verdict")


def test_the_tables_are_found() -> None:
    assert len(EXTRACTION) >= 9
    assert len(EQUALITY) >= 60
    assert len(ECHO) >= 8


@pytest.mark.parametrize(("response", "answer", "_why"), EXTRACTION)
def test_extraction_row(response: str, answer: str, _why: str) -> None:
    assert (extract(response, Extraction()) or "none") == answer


@pytest.mark.parametrize(("prediction", "gold", "verdict", "_why"), EQUALITY)
def test_equality_row(prediction: str, gold: str, verdict: str, _why: str) -> None:
    assert grade_answer(prediction, gold).status == verdict


@pytest.mark.parametrize(("prediction", "gold", "question", "verdict", "_why"), ECHO)
def test_echo_row(prediction: str, gold: str, question: str, verdict: str, _why: str) -> None:
    assert grade_answer(prediction, gold, question=question).status == verdict
