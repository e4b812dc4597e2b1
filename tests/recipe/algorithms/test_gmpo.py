"""GMPO with a scale that does not depend on micro-batches; which losses token weights go with."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from verl.trainer.ppo.core_algos import get_policy_loss_fn

import recipe.algorithms.gmpo  # noqa: F401  (registers the loss)
from recipe.algorithms.vespo import VESPOLossConfig
from recipe.preflight.algorithm import HOMOGENEOUS

ROWS, TOKENS = 6, 5


def inputs() -> dict[str, torch.Tensor]:
    made = torch.Generator().manual_seed(3)
    old = -torch.rand(ROWS, TOKENS, generator=made, dtype=torch.float64)
    mask = torch.ones(ROWS, TOKENS)
    mask[1, 3:] = mask[4, 1:] = 0
    return {
        "old_log_prob": old,
        "log_prob": old + 0.3 * torch.randn(ROWS, TOKENS, generator=made, dtype=torch.float64),
        "advantages": torch.randn(ROWS, 1, generator=made, dtype=torch.float64) * mask,
        "response_mask": mask,
    }


def config(size: int | None, ranks: int = 1) -> Any:
    return SimpleNamespace(
        clip_ratio=0.4,
        clip_ratio_low=0.4,
        clip_ratio_high=0.4,
        global_batch_info={"global_batch_size": size, "dp_size": ranks},
    )


def loss(name: str, rows: slice, settings: Any) -> float:
    given = {key: value[rows] for key, value in inputs().items()}
    value, _ = get_policy_loss_fn(name)(**given, loss_agg_mode="x", config=settings)
    return value.item()


@pytest.mark.parametrize("cuts", [[6], [3, 6], [1, 2, 3, 4, 5, 6], [2, 6]])
def test_micro_batches_add_up_to_the_mini_batch(cuts: list[int]) -> None:
    whole = loss("geo_mean", slice(0, ROWS), config(None))
    starts = [0, *cuts[:-1]]
    parts = [loss("gmpo", slice(a, b), config(ROWS)) for a, b in zip(starts, cuts, strict=True)]
    assert sum(parts) == pytest.approx(whole)
    ranks = [loss("gmpo", slice(i, i + 3), config(ROWS, ranks=2)) for i in (0, 3)]
    assert sum(ranks) / 2 == pytest.approx(whole)  # FSDP averages over ranks
    assert loss("gmpo", slice(0, ROWS), config(None)) == whole  # without the sizes: verl's value


def test_verls_own_is_too_large_by_the_number_of_micro_batches() -> None:
    """The gap: fails when verl scales `geo_mean` by the mini-batch. Then delete gmpo."""
    parts = [loss("geo_mean", slice(i, i + 3), config(ROWS)) for i in (0, 3)]
    assert sum(parts) == pytest.approx(2 * loss("geo_mean", slice(0, ROWS), config(None)))


def gradient(name: str, weights_BT: torch.Tensor) -> torch.Tensor:
    """Of verl's loss `name` of advantages times weights, in the log-probability of every token."""
    from verl.workers.config.actor import ActorConfig

    settings = ActorConfig(
        **{"strategy": "fsdp", "rollout_n": 2, "ppo_micro_batch_size_per_gpu": ROWS},
        policy_loss=VESPOLossConfig(loss_mode=name, dro_beta=0.1),
    )
    given = inputs()
    given["log_prob"].requires_grad_()
    given["advantages"] = given["advantages"] * weights_BT
    # Means over tokens or responses are linear, and SAPO and GMPO know only the latter.
    value, _ = get_policy_loss_fn(name)(
        **given, loss_agg_mode="seq-mean-token-mean", config=settings
    )
    value.backward()
    return given["log_prob"].grad


WEIGHTS_BT = 3 * torch.rand(ROWS, TOKENS, generator=torch.Generator().manual_seed(5)).double()


@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_a_weight_on_the_advantage_is_a_weight_on_the_tokens_gradient(name: str) -> None:
    """What lets `recipe.weights` go with a loss of verl's: sign, clip and dual clip stay."""
    plain = gradient(name, torch.ones(ROWS, TOKENS))
    assert (plain != 0).sum() > 10
    torch.testing.assert_close(gradient(name, WEIGHTS_BT), WEIGHTS_BT * plain, atol=1e-9, rtol=1e-6)


@pytest.mark.parametrize("name", ["dro", "geo_mean"])
def test_other_losses_are_not_so(name: str) -> None:
    """Negative control, and why these are refused with weights."""
    plain = gradient(name, torch.ones(ROWS, TOKENS))
    assert not torch.allclose(gradient(name, WEIGHTS_BT), WEIGHTS_BT * plain, atol=1e-4)
