"""Answers in running text: which sentences commit to a value, and which must not."""

import tracemalloc

import pytest

from prompt_aug.grading import Extraction, grade
from prompt_aug.grading.extract import extract, open_box


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
