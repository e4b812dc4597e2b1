"""Statistics of a step by hand, the validation score, and their table in recipe/README.md."""

from typing import Any

import pytest
import torch
from rollout_batches import synthetic

from recipe.algorithms.rollouts import RolloutBatch
from recipe.trainer.metrics import (
    entropy_sums,
    group_metrics,
    mean_entropy,
    rephrasing_metrics,
    source_metrics,
    step_metrics,
    validation_metrics,
)

REWARDS = [2.0, 2.0, 0.5, 0.0, 1.0, 0.0]
# g0: zero variance, all right; g1: all wrong, but format differs; g2: variance
GROUPS = [0, 0, 1, 1, 2, 2]


def rollouts(**more: Any) -> RolloutBatch:
    values: dict[str, Any] = {
        "accuracy": [1.0, 1.0, 0.0, 0.0, 1.0, 0.0],
        "formats": [1.0, 1.0, 0.5, 0.0, 0.0, 0.0],
        "templates": ["a", "a", "b", "b", "a", "a"],
        "lengths": [1, 1, 3, 1, 1, 1],
        "truncated": [False, False, False, True, False, False],
        "statuses": ["correct"] * 5 + ["timeout"],
        "entropy_BT": torch.tensor([[0.5, 0, 0]] * 2 + [[1, 2, 1.5]] + [[0.5, 0, 0]] * 3).double(),
    }
    mask = [[1, 0, 0]] * 2 + [[1, 1, 1]] + [[1, 0, 0]] * 3
    return synthetic(REWARDS, torch.zeros(6, 3), mask, GROUPS, **{**values, **more})


def entropy(batch: RolloutBatch) -> dict[str, float]:
    return mean_entropy("train/entropy", entropy_sums(batch))


def test_group_metrics_by_hand() -> None:
    wanted = {
        **{"train/accuracy": 3 / 6, "train/truncated": 1 / 6, "train/responses": 6},
        **{"train/groups": 3, "train/no_signal_groups": 1 / 3},
        **{"train/all_right_groups": 1 / 3, "train/all_wrong_groups": 1 / 3},
        **{"grade/timeout": 1 / 6, "grade/no_answer": 0, "template/a/accuracy": 3 / 4},
        **{"template/b/share": 2 / 6, "template/b/length": 2, "template/b/format": 0.25},
        "template/b/entropy": (1 + 2 + 1.5 + 0.5) / 4,
    }
    result = step_metrics(rollouts(), torch.tensor(REWARDS), by_rephrasing=False)
    assert {key: result[key] for key in wanted} == pytest.approx(wanted)


def test_the_entropy_is_a_mean_over_tokens() -> None:
    """(5 x 0.5 + 1 + 2 + 1.5) / 8 tokens; a mean over responses would be 2/3."""
    assert entropy(rollouts()) == {"train/entropy": pytest.approx(7 / 8)}
    # without the long response: filtered, or in a filler group
    trained = torch.tensor([True, True, False, True, True, True])
    assert entropy(rollouts(trained_B=trained)) == {"train/entropy": pytest.approx(0.5)}
    # without the token that rollout correction rejects
    mask = torch.tensor([[1, 0, 0]] * 2 + [[1, 0, 1]] + [[1, 0, 0]] * 3) != 0
    assert entropy(rollouts(mask_BT=mask)) == {"train/entropy": pytest.approx(5 / 7)}
    assert entropy(rollouts(entropy_BT=None)) == {}
    assert entropy(rollouts(trained_B=torch.zeros(6, dtype=torch.bool))) == {}


def test_the_entropy_of_the_whole_is_the_mean_of_its_parts_by_tokens() -> None:
    """Templates a and b have 4 tokens each; without row 3 b has 3. By responses it would be 2/3."""
    for left_out, (of_a, of_b) in ((None, (4, 4)), (3, (4, 3))):
        trained = torch.tensor([row != left_out for row in range(6)])
        batch = rollouts(trained_B=trained)
        parts = group_metrics(batch, torch.tensor(REWARDS), entropy_sums(batch))
        total = of_a * parts["template/a/entropy"] + of_b * parts["template/b/entropy"]
        assert entropy(batch)["train/entropy"] == pytest.approx(total / (of_a + of_b))


def test_rephrasing_metrics_by_hand() -> None:
    """Group 0: q^0 and q^1 have zero variance; group 1: only q^0 has variance.

    The gap is a mean over all tokens, also those that rollout correction rejects.
    """
    rewards = [1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 1.0]
    rephrasings = [0, 0, 1, 1, 0, 0, 1, 2]
    theirs = torch.full((8, 2), -2.0, dtype=torch.float64)
    batch = synthetic(
        rewards,
        torch.full((8, 2), -1.5),
        [[1, 1]] * 7 + [[1, 0]],
        [0] * 4 + [1] * 4,
        rephrasings,
        lengths=[2] * 8,
        rollout_logprobs_BT=theirs,
        entropy_BT=torch.tensor([[1.0, 2.0]] * 8).double(),
    )
    metrics = step_metrics(batch, torch.tensor(rewards), by_rephrasing=True)
    assert metrics["rephrasing/0/accuracy"] == 0.75
    assert metrics["rephrasing/1/accuracy"] == pytest.approx(1 / 3)
    assert metrics["rephrasing/2/logprob_gap"] == 0.5
    assert (metrics["rephrasing/1/entropy"], metrics["rephrasing/2/entropy"]) == (1.5, 1.0)
    assert metrics["train/no_signal_original"] == 0.5
    assert metrics["train/no_signal_rephrasings"] == 1.0
    assert metrics["train/groups"] == 5
    assert metrics["train/no_signal_groups"] == pytest.approx(4 / 5)
    alone = synthetic([1.0], [[0.0]], [[1]], [0])
    assert rephrasing_metrics(alone, torch.ones(1), entropy_sums(alone)) == {}


def test_validation_counts_failed_rollouts_as_wrong() -> None:
    # two samples of u1, four of u2; three of u2 failed and are absent
    expected = {("math", "u1"): 2, ("math", "u2"): 4}
    infos = {"acc": [1.0, 1.0, 1.0], "format": [1.0, 0.5, 0.0]}
    infos["parts"] = [{"score": 1.0}, {"score": 0.5, "more": 2.0}, {}]
    metrics = validation_metrics(["math"] * 3, ["u1", "u1", "u2"], infos, expected)
    assert metrics["val/math/accuracy"] == pytest.approx((1.0 + 0.25) / 2)
    # values 1 and 0.25: s^2 = 0.28125, standard error sqrt(0.28125 / 2) = 0.375
    assert metrics["val/math/standard_error"] == pytest.approx(0.375)
    assert metrics["val/math/format"] == pytest.approx(0.5)
    assert metrics["val/math/questions"] == 2.0
    assert metrics["val/math/part/score"] == 0.75
    assert metrics["val/math/part/more"] == 2.0


def test_sources_are_told_apart_by_hand() -> None:
    ones = torch.ones(4, 1)
    changes = {"sources": ["a", "a", "a", "b"], "accuracy": [1.0, 0.0, 0.0, 1.0]}
    parts = [{"score": 1.0}, {"score": 0.5}, {}, {}]
    mixed = synthetic([0.0] * 4, -ones, ones, [0, 0, 1, 1], **changes, parts=parts)
    assert source_metrics(mixed) == {
        "source/a/share": 0.75,
        "source/a/accuracy": pytest.approx(1 / 3),
        "source/b/share": 0.25,
        "source/b/accuracy": 1.0,
        "source/a/part/score": 0.75,
    }
    alone = synthetic([0.0], -ones[:1], ones[:1], [0])
    assert source_metrics(alone) == {}
