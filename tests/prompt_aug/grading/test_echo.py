"""Answers that repeat the question: no credit, and none lost for a real answer."""

import re
from typing import Any

import pytest

from prompt_aug.grading import grade_answer, grade_many

_SPAN = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)


def test_without_the_question_nothing_is_an_echo() -> None:
    assert grade_answer(r"\log_2 32", "5").correct
    assert [r.status for r in grade_many([("5", "5", "$5$"), (r"\boxed{2+3}", "5", "$2+3$")])] == [
        "correct",
        "echo",
    ]


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
