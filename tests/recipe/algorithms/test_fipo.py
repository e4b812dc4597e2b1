"""FIPO: values by hand, a direct double loop, laws, and broken copies."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from verl.trainer.ppo.core_algos import get_policy_loss_fn
from verl.workers.config import ActorConfig

import recipe.algorithms.fipo as module
from recipe.algorithms.fipo import FIPOLossConfig, discounted_sum

ROWS, TOKENS = 7, 13


def gradient(
    name: str,
    ratios_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    total: int | None = None,
    weights_BT: torch.Tensor | None = None,
    **settings: Any,
) -> torch.Tensor:
    """Return the loss's gradient in every token's log-probability; the loss is a token mean."""
    old = torch.full_like(ratios_BT, -1.5)
    new = (old + ratios_BT.log()).requires_grad_()
    config = ActorConfig(
        **{"strategy": "fsdp", "rollout_n": 2, "ppo_micro_batch_size_per_gpu": 2},
        policy_loss=FIPOLossConfig(**settings),
        **{"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0},
        global_batch_info={
            "batch_num_tokens": total or int(mask_BT.sum()),
            **{"global_batch_size": 2, "dp_size": 1},
        },
    )
    loss, metrics = get_policy_loss_fn(name)(
        old,
        new,
        advantages_BT,
        mask_BT,
        loss_agg_mode="token-mean",
        config=config,
        rollout_is_weights=weights_BT,
    )
    loss.backward()
    assert all(math.isfinite(value) for value in metrics.values())
    return new.grad


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ratios of which some leave the clip and the dual clip, advantages, masks with a hole."""
    made = torch.Generator().manual_seed(seed)
    ratios_BT = torch.randn(ROWS, TOKENS, generator=made, dtype=torch.float64).mul(0.6).exp()
    advantages_B = torch.randn(ROWS, 1, generator=made, dtype=torch.float64)
    mask_BT = torch.arange(TOKENS) < torch.randint(1, TOKENS + 1, (ROWS, 1), generator=made)
    mask_BT[:, 3] = False
    return ratios_BT, advantages_B.expand(-1, TOKENS).clone(), mask_BT.double()


def test_values_by_hand() -> None:
    """Half-life 1: gamma = 1/2. Row 0 has d = (0, log 1.21, -log 1.1), so F = (F_1 / 2, F_1, d_2).

    F_1 = log 1.21 - log(1.1) / 2 = log 1.1^1.5. In row 1 the third token is masked and the first
    one's ratio exceeds 3, so only log 0.9 counts; it is in the dual clip and has no gradient.
    """
    ratios_BT = torch.tensor([[1.0, 1.21, 1 / 1.1], [4.0, 0.9, 1.2]]).double()
    advantages_BT = torch.tensor([[1.0] * 3, [-2.0] * 3]).double()
    mask_BT = torch.tensor([[1.0, 1, 1], [1, 1, 0]]).double()
    settings: dict[str, Any] = {"half_life": 1.0, "low": 0.5, "high": 2.0}
    result = gradient("fipo", ratios_BT, advantages_BT, mask_BT, **settings)
    factors = [[1.1**0.75, 1.1**1.5, 1 / 1.1], [0.0, 0.9, 0.0]]
    expected = -torch.tensor(factors).double() * ratios_BT * advantages_BT / 5
    torch.testing.assert_close(result, expected, atol=1e-7, rtol=1e-6)
    narrow = gradient("fipo", ratios_BT, advantages_BT, mask_BT, half_life=1.0)  # 1 to 1.2
    factors = [[1.1**0.75, 1.1**1.5, 1.0], [0.0, 1.0, 0.0]]
    expected = -torch.tensor(factors).double() * ratios_BT * advantages_BT / 5
    torch.testing.assert_close(narrow, expected, atol=1e-7, rtol=1e-6)


def test_two_tokens_in_the_dual_clip_drop_the_response() -> None:
    ratios_BT = torch.tensor([[4.0, 4.0, 1.0], [4.0, 1.0, 1.0], [4.0, 4.0, 1.0]]).double()
    advantages_BT = torch.tensor([[-1.0] * 3, [-1.0] * 3, [1.0] * 3]).double()
    ones = torch.ones(3, 3).double()
    result = gradient("fipo", ratios_BT, advantages_BT, ones)
    assert not result[0].any()  # one of them dropped by hand, as in the next row, leaves a gradient
    expected = torch.tensor([[0.0, 1, 1], [0, 0, -1]]).double() / 9
    torch.testing.assert_close(result[1:], expected)


def test_a_negative_token_of_large_ratio_weighs_at_most_one() -> None:
    """Ratio 2.5: later tokens of ratio 2 would raise its factor to 1.2."""
    ratios_BT = torch.tensor([[2.5, 2.0, 2.0]]).double()
    negative_BT, ones = -torch.ones(1, 3).double(), torch.ones(1, 3).double()
    plain = gradient("fipo", ratios_BT, negative_BT, ones)
    safe = gradient("fipo", ratios_BT, negative_BT, ones, safe_ratio=2.4)
    torch.testing.assert_close(plain, 1.2 * ratios_BT / 3)
    torch.testing.assert_close(safe / plain, torch.tensor([[1 / 1.2, 1, 1]]).double())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("low", "high"), [(1.0, 1.2), (0.3, 3.0)])
def test_factors_are_those_of_a_double_loop(seed: int, low: float, high: float) -> None:
    """The gradient divided by that of PPO, token by token."""
    ratios_BT, advantages_BT, mask_BT = batch(seed)
    settings: dict[str, Any] = {"low": low, "high": high, "half_life": 2.5}
    result = gradient("fipo", ratios_BT, advantages_BT, mask_BT, **settings)
    plain = gradient("vanilla", ratios_BT, advantages_BT, mask_BT)
    inside = 0
    for i in range(ROWS):
        tokens = [t for t in range(TOKENS) if mask_BT[i, t]]
        dual = [t for t in tokens if advantages_BT[i, t] < 0 and ratios_BT[i, t] > 3]
        for t in tokens:
            d = {k: math.log(ratios_BT[i, k]) for k in tokens if k >= t and ratios_BT[i, k] <= 3}
            future = sum(0.5 ** ((k - t) / 2.5) * value for k, value in d.items())
            factor = min(max(math.exp(future), low), high) if len(dual) < 2 else 0.0
            assert result[i, t].item() == pytest.approx(factor * plain[i, t].item(), rel=1e-6)
            inside += bool(plain[i, t]) and low < factor < high
    assert inside > 10 or high < 2


def test_on_policy_it_is_ppo() -> None:
    _, advantages_BT, mask_BT = batch(0)
    ones = torch.ones(ROWS, TOKENS).double()
    result = gradient("fipo", ones, advantages_BT, mask_BT)
    torch.testing.assert_close(result, gradient("vanilla", ones, advantages_BT, mask_BT))
    assert result.any()


@pytest.mark.parametrize("size", [1, 2, 5])
def test_micro_batches_do_not_matter(size: int) -> None:
    ratios_BT, advantages_BT, mask_BT = batch(1)
    total = int(mask_BT.sum())
    cuts = zip(*(x.split(size) for x in (ratios_BT, advantages_BT, mask_BT)), strict=True)
    parts = [gradient("fipo", a, b, c, total=total) for a, b, c in cuts]
    torch.testing.assert_close(
        torch.cat(parts), gradient("fipo", ratios_BT, advantages_BT, mask_BT)
    )


def test_weights_of_the_engine_multiply_the_loss() -> None:
    ratios_BT, advantages_BT, mask_BT = batch(2)
    weights_BT = torch.rand(ROWS, TOKENS, generator=torch.Generator().manual_seed(1)).double()
    result = gradient("fipo", ratios_BT, advantages_BT, mask_BT, weights_BT=weights_BT)
    plain = gradient("fipo", ratios_BT, advantages_BT, mask_BT)
    torch.testing.assert_close(result, weights_BT * plain)


@pytest.mark.parametrize(
    "settings", [{"low": 0.0}, {"low": 1.1}, {"high": 0.9}, {"half_life": 0.0}]
)
def test_settings_without_a_meaning_are_rejected(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"policy_loss\.\w+="):
        FIPOLossConfig(**settings)


def past(values_BT: torch.Tensor, gamma: float) -> torch.Tensor:
    return discounted_sum(values_BT.flip(1), gamma).flip(1)


def without_the_token_itself(values_BT: torch.Tensor, gamma: float) -> torch.Tensor:
    return discounted_sum(values_BT, gamma) - values_BT


BROKEN: list[Callable[..., Any]] = [
    past,
    without_the_token_itself,
    lambda x, gamma: -discounted_sum(x, gamma),
    lambda x, gamma: discounted_sum(x, 1.0),
]


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_copy_fails(broken: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "discounted_sum", broken)
    with pytest.raises(AssertionError):
        test_values_by_hand()
    with pytest.raises(AssertionError):
        test_factors_are_those_of_a_double_loop(0, 0.3, 3.0)
