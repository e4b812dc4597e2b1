"""Every row of the tables of GRADING.md and of policy.tsv, run against the grader.

Columns of policy.tsv: table (extraction, equality, echo), prediction or response, gold or extracted
answer, question, status.
"""

import re
from pathlib import Path

import pytest

from prompt_aug.grading import Extraction, grade_answer
from prompt_aug.grading.extract import extract

PAGE = Path(__file__).resolve().parents[3] / "prompt_aug" / "grading" / "GRADING.md"
TABLE = Path(__file__).with_name("policy.tsv").read_text(encoding="utf-8").splitlines()[1:]
KEPT = [line.split("\t") for line in TABLE]


def rows(*columns: str) -> list[list[str]]:
    """Return the cells of the page's table with these columns, without code marks."""
    text = PAGE.read_text(encoding="utf-8")
    table = text.partition("| " + " | ".join(columns) + " | why |")[2].strip().splitlines()[1:]
    found = []
    for line in table:
        if not line.startswith("|"):
            break
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-2]]
        found.append([cell.strip("`").replace(r"\|", "|") for cell in cells])
    return found


EXTRACTION = rows("response", "answer")
EQUALITY = [[p, g, "", v] for p, g, v in rows("prediction", "gold", "verdict")]
ECHO = rows("prediction", "gold", "question", "verdict")


def test_the_tables_are_found() -> None:
    assert len(EXTRACTION) >= 9 and len(EQUALITY) >= 20 and len(ECHO) >= 7 and len(KEPT) >= 170


@pytest.mark.parametrize("row", [*EXTRACTION, *(r[1:3] for r in KEPT if r[0] == "extraction")])
def test_extraction(row: list[str]) -> None:
    assert (extract(row[0], Extraction()) or "none") == row[1]


@pytest.mark.parametrize("row", [*EQUALITY, *ECHO, *(r[1:] for r in KEPT if r[0] != "extraction")])
def test_verdict(row: list[str]) -> None:
    prediction, gold, question, verdict = row
    assert grade_answer(prediction, gold, question=question or None).status == verdict
