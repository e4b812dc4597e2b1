"""Real golds: each grades itself right, and its last integer plus one grades wrong."""

import random
import re
from pathlib import Path

import pytest
from pyarrow import ipc, parquet

from prompt_aug.grading import grade, grade_many
from prompt_aug.grading.echo import is_unworked
from prompt_aug.grading.equality import compare
from prompt_aug.grading.normalize import canonical
from prompt_aug.grading.structure import build


def read_golds(folder: Path) -> list[list[str]]:
    """All golds of MATH level 3-5 (the two empty ones dropped) and of the five benchmarks."""
    file = next((folder / "math_level3to5").glob("*train.parquet"))
    rewards = parquet.read_table(file, columns=["reward_model"])["reward_model"].to_pylist()
    golds = [[row["ground_truth"]] for row in rewards if row["ground_truth"].strip()]
    assert len(golds) == 8521
    for arrow in sorted((folder / "evaluation_suite").glob("*/*.arrow")):
        with ipc.open_stream(arrow) as stream:
            answers = stream.read_all()["answer"].to_pylist()
        golds += [list(a) if isinstance(a, list) else [str(a)] for a in answers]
    assert len(golds) == 8521 + 1560
    return golds


@pytest.fixture(scope="module")
def golds(shared_data: Path) -> list[list[str]]:
    return read_golds(shared_data)


def test_no_gold_is_unworked_arithmetic(golds: list[list[str]]) -> None:
    assert [gold for known in golds for gold in known if is_unworked(gold, [gold])] == []


def mutant(text: str) -> str | None:
    """The text with its last integer plus one; None without an integer."""
    found = list(re.finditer(r"\d+", text))
    if not found:
        return None
    last = found[-1]
    return f"{text[: last.start()]}{int(last.group()) + 1}{text[last.end() :]}"


def respelled(text: str) -> str:
    """The same answer in the spelling of another author."""
    text = re.sub(r"(?<!\\)\$|\n", " ", text)
    text = text.replace(r"\frac{", r"\dfrac{").replace(r"\left", "").replace(r"\right", "")
    text = re.sub(r"([-+=])", r" \1 ", text)
    return re.sub(r"(?<=[^\d\s]), *(?=[^\d\s!])", r" ,\\; ", text)


def rejected(golds: list[list[str]]) -> tuple[int, int]:
    """(mutants, rejected mutants)."""
    pairs = [(changed, gold) for gold in golds if (changed := mutant(gold[-1]))]
    grades = grade_many([(rf"\boxed{{{changed}}}", gold) for changed, gold in pairs])
    return len(pairs), sum(not result.correct for result in grades)


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
def test_mutants_of_a_sample_are_rejected(golds: list[list[str]]) -> None:
    total, wrong = rejected(random.Random(1).sample(golds, 300))
    assert total > 250
    assert wrong >= 0.995 * total


@pytest.mark.config
def test_mutants_of_all_golds_are_rejected(golds: list[list[str]]) -> None:
    total, wrong = rejected(golds)
    assert total > 9900
    assert wrong >= 0.995 * total
