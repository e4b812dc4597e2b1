"""Real golds and questions: golds grade right, their mutants and the questions grade wrong."""

import random
import re
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from pyarrow import ipc, parquet

from prompt_aug.grading import Extraction, grade, grade_answer, grade_many
from prompt_aug.grading.echo import is_unworked
from prompt_aug.grading.equality import compare
from prompt_aug.grading.extract import extract, open_box
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


@pytest.mark.config  # 10,000 grades
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


_SPAN = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)


def test_without_the_question_nothing_is_an_echo() -> None:
    assert grade_answer(r"\log_2 32", "5").correct
    results = grade_many([("5", "5", "$5$"), (r"\boxed{2+3}", "5", "$2+3$")])
    assert [result.status for result in results] == ["correct", "echo"]


def _longest(question: str) -> str:
    spans = [next(g for g in m.groups() if g) for m in _SPAN.finditer(question)]
    return max(spans, key=len, default="")


@pytest.mark.config  # 9,000 grades
@pytest.mark.parametrize("name", ["math", "train"])
def test_the_longest_formula_of_a_real_question_is_not_paid(
    train_pairs: list[tuple[str, str]], benchmark_rows: Any, name: str
) -> None:
    """At most 0.3 % (without the question: 7.6 % and 4.0 %); no gold is lost."""
    pairs = [(row["problem"], row["answer"]) for row in benchmark_rows["math"]]
    assert len(pairs) == 500
    pairs = pairs if name == "math" else train_pairs
    copied = grade_many([(rf"\boxed{{{_longest(q)}}}", gold, q) for q, gold in pairs])
    assert sum(result.correct for result in copied) <= 0.003 * len(pairs)
    assert sum(result.status == "echo" for result in copied) > 0.5 * len(pairs)
    golds = grade_many([(rf"\boxed{{{gold}}}", gold, q) for q, gold in pairs])
    assert all(result.correct for result in golds)


@pytest.mark.parametrize("piece", ["$", r"\(", r"\[", "is ", "answer ", "Therefore ", "1, ", "= "])
def test_a_million_characters_cost_milliseconds(piece: str) -> None:
    assert len(extract(piece * (10**6 // len(piece)), Extraction()) or "") <= 400


@pytest.mark.config
def test_repeating_the_question_is_never_right(train_pairs: list[tuple[str, str]]) -> None:
    """Of 8521 real questions, none answers itself; cut anywhere, nearly none."""
    assert [question for question, gold in train_pairs if grade(question, gold).correct] == []
    cuts = [(q[: (37 * i) % len(q) + 1], gold) for i, (q, gold) in enumerate(train_pairs)]
    assert sum(grade(cut, gold).correct for cut, gold in cuts) <= 8  # one in a thousand
    last = Extraction(last_number=True)  # a control: any last number would be paid for
    assert sum(grade(cut, gold, extraction=last).correct for cut, gold in cuts[::2]) > 8


def test_nested_boxes_cost_linear_memory() -> None:
    """The content of every inner box as well would be n^2 / 2 pieces of text: 166 MB at 6,000."""
    depth = 6000
    text = r"\boxed{" * depth + "1" + "}" * depth
    tracemalloc.start()
    try:
        assert open_box(text) == text[len(r"\boxed{") : -1]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200 * len(text)


@pytest.fixture(scope="session")
def train_pairs(shared_data: Path) -> list[tuple[str, str]]:
    """(question, gold) of MATH level 3-5, without the two empty golds."""
    file = next((shared_data / "math_level3to5").glob("*train.parquet"))
    rows = parquet.read_table(file, columns=["question", "reward_model"]).to_pylist()
    pairs = [(row["question"], row["reward_model"]["ground_truth"]) for row in rows]
    pairs = [(question, gold) for question, gold in pairs if gold.strip()]
    assert len(pairs) == 8521
    return pairs


@pytest.fixture(scope="session")
def benchmark_rows(shared_data: Path) -> dict[str, list[dict]]:
    """The rows of the five benchmarks by name."""
    rows = {}
    for arrow in sorted((shared_data / "evaluation_suite").glob("*/*.arrow")):
        with ipc.open_stream(arrow) as stream:
            rows[arrow.parent.name] = stream.read_all().to_pylist()
    assert sum(map(len, rows.values())) == 1560
    return rows
