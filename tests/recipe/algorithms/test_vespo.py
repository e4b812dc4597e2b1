"""VESPO's kernel and gradient by hand, and LUSPO as verl's GSPO times the length."""

import math
from typing import Any

import pytest
import torch
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.config import ActorConfig

from recipe.algorithms.vespo import VESPOLossConfig

MASK_BT = torch.tensor([[1.0, 1, 1], [1, 1, 0]]).double()
RATIOS_BT = torch.tensor([[2.0, 1, 0.5], [0.5, 0.5, 7]]).double()  # W = 1 and 1/4
ADVANTAGES_BT = torch.tensor([[1.0], [-2]]).double() * MASK_BT


def gradient(
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
    torch.testing.assert_close(gradient("vespo"), expected)


def test_micro_batches_do_not_matter() -> None:
    parts = [gradient("vespo", slice(i, i + 1)) for i in range(2)]
    torch.testing.assert_close(torch.cat(parts), gradient("vespo"))


def test_weights_of_the_engine_multiply_the_ratio() -> None:
    """4 for the second response: W = 1, and the gradient is REINFORCE's."""
    weights_BT = torch.tensor([[1.0, 1, 1], [4, 1, 9]]).double()
    found = gradient("vespo", rollout_is_weights=weights_BT)
    torch.testing.assert_close(found, -ADVANTAGES_BT / 5)


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
    luspo = gradient("gspo", mode="seq-mean-token-sum", **wide)
    gspo = gradient("gspo", mode="seq-mean-token-mean", **wide)
    torch.testing.assert_close(luspo, lengths_B * gspo)
    assert (gspo != 0).sum() == 5
