"""Replays of recorded pass rates: counts that can be worked out by hand."""

import json
from pathlib import Path

import numpy as np
import pytest
from page_commands import load_script

from eval import metrics

replay = load_script("replay")
HALF, NEVER = [0.5] * 4, [0.0] * 4


def test_the_epochs_that_all_questions_have_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rates.json"
    path.write_text(json.dumps({"7": [0.0, 0.5, 1.0], "8": [1.0, 0.25]}))
    rates = replay.read_rates(path)
    assert rates.tolist() == [[0.0, 0.5], [1.0, 0.25]]
    assert replay.without_signal(rates).tolist() == [[True, False], [True, False]]


def test_dynamic_sampling_generates_one_batch_or_the_limit() -> None:
    with_signal = replay.dynamic_sampling(np.array([HALF] * 4), 2, limit=3)
    assert [step["generated"] for step in with_signal] == [2.0] * 8
    without = replay.dynamic_sampling(np.array([NEVER] * 4), 2, limit=3)
    assert [(s["generated"], s["filled"], s["exhausted"]) for s in without] == [(6, 2, 1)] * 8
    # One question of two has a signal. A batch of two contains it, and its replacement for the
    # other one: verl requests two, and both are in one epoch, so one of them has a signal.
    mixed = replay.dynamic_sampling(np.array([HALF, NEVER]), 2, limit=3)
    assert [(s["generated"], s["kept"], s["discarded"]) for s in mixed] == [(4, 2, 0)] * 4


def test_the_curriculum_takes_the_questions_with_signal() -> None:
    """Eight candidates for a batch of two are all questions; two of them have a signal."""
    rates = np.array([NEVER, HALF, NEVER, NEVER, HALF, NEVER, NEVER, NEVER])
    measured = replay.curriculum(rates, 2, measured=True)
    assert {question for question, _ in measured} == {1, 4}
    assert [epoch for _, epoch in measured] == [e for e in (1, 2, 3) for _ in range(8)]
    # Unknown questions have the target rate: others are taken until they are known, once each.
    unknown = [question for question, _ in replay.curriculum(rates, 2)]
    others = [question for question in unknown if question not in (1, 4)]
    assert others and len(others) == len(set(others))


def test_errors_are_clustered_by_question() -> None:
    values = np.array([[True, True, False], [True, False, False], [False, False, False]])
    same = [(q, e) for q in range(3) for e in range(3)]
    assert replay.clustered(same, values, 0, 3) == replay.share(values)
    # p = 2/3; sums minus p n: 2 - 4/3 and 0 - 2/3; SE^2 = 2 x (4/9 + 4/9) / 9.
    assert replay.clustered([(0, 0), (0, 1), (2, 0)], values, 0, 3) == "66.7 ±44.4"
    assert metrics.accuracy(values).accuracy == pytest.approx(1 / 3)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rates.json"
    path.write_text(json.dumps({"1": HALF, "2": HALF, "3": NEVER, "4": [1.0] * 4}))
    assert replay.main([str(path), "--batch", "2", "--parts", "2"]) == 0
    output = capsys.readouterr().out
    assert "1 to 2" in output and "50.0 ±" in output
    assert "4 questions, 1 never right, 1 always" in output
    assert "of removed questions 0.0" in output and "of kept questions    100.0" in output
    assert replay.main([str(path), "--batch", "17"]) == 2
    assert "--batch 17: the file has 16 groups" in capsys.readouterr().err
