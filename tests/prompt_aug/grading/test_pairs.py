"""Answers by family, right ones and near misses: pairs.tsv, made for this grader.

Columns: family, kind (an answer, or a whole response in which "\\n" is a new line), verdict,
prediction, gold.
"""

from pathlib import Path

import pytest

from prompt_aug.grading import grade, grade_answer

LINES = Path(__file__).with_name("pairs.tsv").read_text(encoding="utf-8").splitlines()
PAIRS = [line.split("\t") for line in LINES[1:]]


def test_every_family_has_both_verdicts() -> None:
    families = {family for family, *_ in PAIRS}
    only_wrong = {"two_guesses", "garbage"}
    for verdict, expected in (("right", families - only_wrong), ("wrong", families)):
        assert {pair[0] for pair in PAIRS if pair[2] == verdict} == expected
    assert len(PAIRS) >= 280


@pytest.mark.parametrize(("family", "kind", "verdict", "prediction", "gold"), PAIRS)
def test_pair(family: str, kind: str, verdict: str, prediction: str, gold: str) -> None:
    if kind == "answer":
        result = grade_answer(prediction, gold)
    else:
        result = grade(prediction.replace("\\n", "\n"), gold)
    assert result.correct == (verdict == "right"), (family, result)
