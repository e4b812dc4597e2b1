"""Real golds: each grades itself right, and its last integer plus one grades wrong."""

import random
import re
from typing import Any

import pytest

from prompt_aug.grading import grade, grade_many
from prompt_aug.grading.echo import is_unworked
from prompt_aug.grading.equality import compare
from prompt_aug.grading.normalize import canonical
from prompt_aug.grading.structure import build


@pytest.fixture(scope="module")
def golds(train_pairs: list[tuple[str, str]], benchmark_rows: Any) -> list[list[str]]:
    """All golds of MATH level 3-5 and of the five benchmarks."""
    answers = [row["answer"] for rows in benchmark_rows.values() for row in rows]
    answers = [list(a) if isinstance(a, list) else [str(a)] for a in answers]
    return [[gold] for _, gold in train_pairs] + answers


def test_no_gold_is_unworked_arithmetic(golds: list[list[str]]) -> None:
    assert [gold for answers in golds for gold in answers if is_unworked(gold, [gold])] == []


def mutant(text: str) -> str | None:
    """The text with its last integer plus one; None without an integer."""
    integers = list(re.finditer(r"\d+", text))
    if not integers:
        return None
    last = integers[-1]
    return f"{text[: last.start()]}{int(last.group()) + 1}{text[last.end() :]}"


def respelled(text: str) -> str:
    """The same answer in the spelling of another author."""
    text = re.sub(r"(?<!\\)\$|\n", " ", text)
    text = text.replace(r"\frac{", r"\dfrac{").replace(r"\left", "").replace(r"\right", "")
    text = re.sub(r"([-+=])", r" \1 ", text)
    return re.sub(r"(?<=[^\d\s]), *(?=[^\d\s!])", r" ,\\; ", text)


def test_every_gold_grades_itself(golds: list[list[str]]) -> None:
    failed = [g for g in golds for x in g if not grade(rf"Thus $\boxed{{{x}}}$.", g).correct]
    assert failed == []


def test_a_respelled_gold_is_right_on_the_exact_path(golds: list[list[str]]) -> None:
    sample = random.Random(0).sample(golds, 1500)
    failed = [
        gold[0]
        for gold in sample
        if not compare(build(canonical(gold[0])), build(canonical(respelled(gold[0]))), None)
    ]
    assert len(failed) <= 0.005 * len(sample), failed


@pytest.mark.config
def test_mutants_of_all_golds_are_rejected(golds: list[list[str]]) -> None:
    pairs = [(changed, gold) for gold in golds if (changed := mutant(gold[-1]))]
    grades = grade_many([(rf"\boxed{{{changed}}}", gold) for changed, gold in pairs])
    assert len(pairs) > 9900
    assert sum(not result.correct for result in grades) >= 0.995 * len(pairs)
