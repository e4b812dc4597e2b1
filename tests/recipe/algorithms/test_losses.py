"""GMPO, VESPO and LUSPO: scale, kernel, gradient; which losses token weights go with."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.config import ActorConfig

import recipe.algorithms.gmpo  # noqa: F401  (registers the loss)
from recipe.algorithms.fipo import FIPOLossConfig
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
    full = loss("geo_mean", slice(0, ROWS), config(None))
    starts = [0, *cuts[:-1]]
    parts = [loss("gmpo", slice(a, b), config(ROWS)) for a, b in zip(starts, cuts, strict=True)]
    assert sum(parts) == pytest.approx(full)
    ranks = [loss("gmpo", slice(i, i + 3), config(ROWS, ranks=2)) for i in (0, 3)]
    assert sum(ranks) / 2 == pytest.approx(full)  # FSDP averages over ranks
    assert loss("gmpo", slice(0, ROWS), config(None)) == full  # without the sizes: verl's value


def test_verls_own_is_too_large_by_the_number_of_micro_batches() -> None:
    """The gap: fails when verl scales `geo_mean` by the mini-batch. Then delete gmpo."""
    parts = [loss("geo_mean", slice(i, i + 3), config(ROWS)) for i in (0, 3)]
    assert sum(parts) == pytest.approx(2 * loss("geo_mean", slice(0, ROWS), config(None)))


def gradient(name: str, weights_BT: torch.Tensor) -> torch.Tensor:
    """Of verl's loss `name` of advantages times weights, in the log-probability of every token."""
    from verl.workers.config.actor import ActorConfig

    settings = ActorConfig(
        **{"strategy": "fsdp", "rollout_n": 2, "ppo_micro_batch_size_per_gpu": ROWS},
        policy_loss=(FIPOLossConfig if name == "fipo" else VESPOLossConfig)(
            loss_mode=name, dro_beta=0.1
        ),
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


MASK_BT = torch.tensor([[1.0, 1, 1], [1, 1, 0]]).double()
RATIOS_BT = torch.tensor([[2.0, 1, 0.5], [0.5, 0.5, 7]]).double()  # W = 1 and 1/4
ADVANTAGES_BT = torch.tensor([[1.0], [-2]]).double() * MASK_BT


def gradient_by_hand(
    name: str, rows: slice = slice(0, 2), mode: str = "token-mean", **more: Any
) -> torch.Tensor:
    """Return the loss's gradient in the log-probability of every token."""
    old = torch.full((2, 3), -1.5).double()[rows]
    new = (old + RATIOS_BT[rows].log()).requires_grad_()
    config = ActorConfig(
        **{"strategy": "fsdp", "rollout_n": 2, "ppo_micro_batch_size_per_gpu": 2},
        policy_loss=VESPOLossConfig(),
        clip_ratio_low=more.pop("low", 0.2),
        global_batch_info={"batch_num_tokens": 5, "global_batch_size": 2, "dp_size": 1},
    )
    given = {"advantages": ADVANTAGES_BT[rows], "response_mask": MASK_BT[rows]}
    loss, _ = get_policy_loss_fn(name)(old, new, **given, loss_agg_mode=mode, config=config, **more)
    loss.backward()
    return new.grad


def test_vespo_by_hand() -> None:
    kernel = (1 / 4) ** 3 * math.exp(2 * (1 - 1 / 4))  # of a negative advantage: c1=3, c2=2
    expected = torch.tensor([[-1.0] * 3, [2 * kernel] * 2 + [0]]).double() / 5
    torch.testing.assert_close(gradient_by_hand("vespo"), expected)


def test_micro_batches_do_not_matter() -> None:
    parts = [gradient_by_hand("vespo", slice(i, i + 1)) for i in range(2)]
    torch.testing.assert_close(torch.cat(parts), gradient_by_hand("vespo"))


def test_weights_of_the_engine_multiply_the_ratio() -> None:
    """4 for the second response: W = 1, and the gradient is REINFORCE's."""
    weights_BT = torch.tensor([[1.0, 1, 1], [4, 1, 9]]).double()
    result = gradient_by_hand("vespo", rollout_is_weights=weights_BT)
    torch.testing.assert_close(result, -ADVANTAGES_BT / 5)


def test_the_gradient_of_a_stale_response_is_bounded() -> None:
    """phi(w) / w <= K = ((c1 - 1) / c2)^(c1 - 1) exp(c2 - c1 + 1): the paper has 2.46 and 1."""
    w = torch.logspace(-6, 6, 10_001).double()
    for (c1, c2), bound in (((2, 3), math.e**2 / 3), ((3, 2), 1.0)):
        phi = (c1 * w.log() + c2 * (1 - w)).exp()
        assert (phi / w).max() == pytest.approx(bound, rel=1e-4)


@pytest.mark.parametrize("exponents", [(0.5, 1.0), (2.0, 0.0)])
def test_exponents_without_a_bound_are_rejected(exponents: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match=r"policy_loss\.negative=\["):
        VESPOLossConfig(negative=exponents)


def test_luspo_is_gspo_times_the_length() -> None:
    wide = {"low": 1.0}  # nothing is clipped
    lengths_B = MASK_BT.sum(-1, keepdim=True)
    luspo = gradient_by_hand("gspo", mode="seq-mean-token-sum", **wide)
    gspo = gradient_by_hand("gspo", mode="seq-mean-token-mean", **wide)
    torch.testing.assert_close(luspo, lengths_B * gspo)
    assert (gspo != 0).sum() == 5
