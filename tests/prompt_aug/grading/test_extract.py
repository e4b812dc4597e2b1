"""Answers in running text: which sentences commit to a value, and which must not."""

import tracemalloc

import pytest

from prompt_aug.grading import Extraction, grade
from prompt_aug.grading.extract import extract, last_boxed


@pytest.mark.parametrize(
    ("response", "gold"),
    [
        (r"\boxed{72}", "48 / 2 = 24, 48 + 24 = 72\n#### 72"),
        (r"\boxed{72}", "We add. The final answer is $72$. I hope it is correct."),
        (r"\boxed{1, 2}", r"$\boxed{1}\boxed{2}$"),
        (r"\boxed{1, 2}", r"\\boxed{1 \\text{ and } 2"),
    ],
)
def test_a_gold_may_be_a_worked_solution(response: str, gold: str) -> None:
    assert grade(response, gold).correct
    assert not grade(r"\boxed{24}", gold).correct


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
        assert last_boxed(text) == text[len(r"\boxed{") : -1]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200 * len(text)
