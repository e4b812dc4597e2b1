"""Answers by family, right ones and near misses: pairs.tsv, made for this grader.

Columns: family, kind (an answer, or a whole response in which "\\n" is a new line), verdict,
prediction, gold.
"""

import itertools
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


def verdict_of(kind: str, prediction: str, gold: str) -> str:
    if kind == "answer":
        result = grade_answer(prediction, gold)
    else:
        result = grade(prediction.replace("\\n", "\n"), gold)
    return "right" if result.correct else "wrong"


# A test of its own for each of 1,700 pairs would take longer than its grading.
@pytest.mark.parametrize("family", sorted({pair[0] for pair in PAIRS}))
def test_pairs(family: str) -> None:
    judged = [
        (prediction, gold, verdict, verdict_of(kind, prediction, gold))
        for of, kind, verdict, prediction, gold in PAIRS
        if of == family
    ]
    assert [case for case in judged if case[2] != case[3]] == []


# No two are equal.
VALUES = (r"\frac{3}{4}", "12", r"\sqrt{2}", r"2\pi", "x+1", "3+4i", r"\{8,9\}", "(1,2,5)")
SEPARATORS = (
    *(r" \quad ", r" \text{ or } ", ", ", r" \approx ", r" \to ", " | ", " = ", " ", r" \\ "),
)


@pytest.mark.parametrize("separator", SEPARATORS)
def test_two_values_are_right_for_at_most_one_gold(separator: str) -> None:
    for one, other in itertools.permutations(VALUES, 2):
        both = one + separator + other
        assert sum(grade_answer(both, gold).correct for gold in VALUES) <= 1, both


@pytest.mark.parametrize(
    "sign", ["\\neq ", "<", "@ ", "# ", "? ", r"\foo ", "}", "(", "| ", r"\cdot "]
)
def test_a_value_after_a_sign_that_makes_no_formula_is_not_read(sign: str) -> None:
    for value in (r"\frac{3}{4}", "12", "x+1"):
        assert grade_answer(sign + value, value).status in ("unparsable", "wrong")
