"""Group statistics by hand, and the validation score with its fixed denominator."""

import pytest

from recipe.trainer.metrics import Rollout, group_metrics, validation_metrics


def rollout(group: str, reward: float, accuracy: float, template: str = "a", **more) -> Rollout:
    values = {
        "uid": "q",
        "rollout": 0,
        "neighbour": 0,
        "logprob_gap": None,
        "prompt_ids": [],
        "response": "",
        "gold": ("1",),
        "format": reward - accuracy,
        "entropy": 0.5,
        "length": 10,
        "truncated": False,
        "status": "correct" if accuracy else "wrong",
    }
    values.update(more)
    return Rollout(group=group, reward=reward, accuracy=accuracy, template=template, **values)


def test_group_metrics_by_hand() -> None:
    rows = [
        rollout("g1", 2.0, 1.0),
        rollout("g1", 2.0, 1.0),  # no signal, all right
        rollout("g2", 0.5, 0.0, "b", length=30, entropy=1.5),
        rollout("g2", 0.0, 0.0, "b", truncated=True),  # all wrong, but format differs: a signal
        rollout("g3", 1.0, 1.0),
        rollout("g3", 0.0, 0.0, status="timeout"),
    ]
    metrics = group_metrics(rows)
    assert metrics["train/accuracy"] == pytest.approx(3 / 6)
    assert metrics["train/no_signal_groups"] == pytest.approx(1 / 3)
    assert metrics["train/all_right_groups"] == pytest.approx(1 / 3)
    assert metrics["train/all_wrong_groups"] == pytest.approx(1 / 3)
    assert (metrics["train/responses"], metrics["train/groups"]) == (6, 3)
    assert metrics["train/truncated"] == pytest.approx(1 / 6)
    assert metrics["grade/timeout"] == pytest.approx(1 / 6)
    assert metrics["grade/no_answer"] == 0.0
    assert metrics["template/b/share"] == pytest.approx(2 / 6)
    assert metrics["template/b/length"] == 20.0
    assert metrics["template/b/entropy"] == 1.0
    assert metrics["template/b/format"] == 0.25
    assert metrics["template/a/accuracy"] == pytest.approx(3 / 4)


def test_validation_counts_failed_rollouts_as_wrong() -> None:
    # two questions, two samples each; one sample of u2 failed and is absent
    expected = {("math", "u1"): 2, ("math", "u2"): 2}
    infos = {"acc": [1.0, 1.0, 1.0], "format": [1.0, 0.5, 0.0]}
    metrics = validation_metrics(["math"] * 3, ["u1", "u1", "u2"], infos, expected)
    assert metrics["val/math/accuracy"] == pytest.approx((1.0 + 0.5) / 2)
    # values 1 and 0.5: s^2 = 0.125, standard error sqrt(0.125 / 2) = 0.25
    assert metrics["val/math/standard_error"] == pytest.approx(0.25)
    assert metrics["val/math/format"] == pytest.approx(0.5)
    assert metrics["val/math/questions"] == 2.0
