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
from recipe.start.algorithm import BY_RATIO, HOMOGENEOUS

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


def gradient(name: str, weights_BT: torch.Tensor, *, moved: bool = True) -> torch.Tensor:
    """Of verl's loss `name` of advantages times weights, in the log-probability of every token."""
    from verl.workers.config.actor import ActorConfig

    settings = ActorConfig(
        **{"strategy": "fsdp", "rollout_n": 2, "ppo_micro_batch_size_per_gpu": ROWS},
        policy_loss=(FIPOLossConfig if name == "fipo" else VESPOLossConfig)(
            loss_mode=name, dro_beta=0.1
        ),
    )
    given = inputs()
    if not moved:
        given["log_prob"] = given["old_log_prob"].clone()
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


@pytest.mark.parametrize("name", BY_RATIO)
def test_at_ratio_1_a_loss_by_ratios_has_vanillas_gradient(name: str) -> None:
    """What the start says of one optimizer step per batch."""
    ones, close = torch.ones(ROWS, TOKENS), {"atol": 1e-9, "rtol": 1e-6}
    plain = gradient("vanilla", ones, moved=False)
    torch.testing.assert_close(gradient(name, ones, moved=False), plain, **close)
    assert not torch.allclose(gradient(name, ones), gradient("vanilla", ones), **close)


MASK_BT = torch.tensor([[1.0, 1, 1], [1, 1, 0]]).double()
RATIOS_BT = torch.tensor([[2.0, 1, 0.5], [0.5, 0.5, 7]]).double()  # W = 1 and 1/4
ADVANTAGES_BT = torch.tensor([[1.0], [-2]]).double() * MASK_BT


def gradient_of(
    name: str,
    ratios_BT: torch.Tensor,
    advantages_BT: torch.Tensor,
    mask_BT: torch.Tensor,
    total: int | None = None,
    weights_BT: torch.Tensor | None = None,
    mode: str = "token-mean",
    clip_low: float = 0.2,
    **settings: Any,
) -> torch.Tensor:
    """Return the loss's gradient in the log-probability of every token."""
    old = torch.full_like(ratios_BT, -1.5)
    new = (old + ratios_BT.log()).requires_grad_()
    config = ActorConfig(
        **{"strategy": "fsdp", "rollout_n": 2, "ppo_micro_batch_size_per_gpu": 2},
        policy_loss=(FIPOLossConfig if name == "fipo" else VESPOLossConfig)(**settings),
        **{"clip_ratio_low": clip_low, "clip_ratio_high": 0.28, "clip_ratio_c": 3.0},
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
        loss_agg_mode=mode,
        config=config,
        rollout_is_weights=weights_BT,
    )
    loss.backward()
    assert all(math.isfinite(value) for value in metrics.values())
    return new.grad


def gradient_by_hand(name: str, rows: slice = slice(0, 2), **more: Any) -> torch.Tensor:
    """The gradient of these responses, in a mini-batch of 5 tokens."""
    given = (RATIOS_BT[rows], ADVANTAGES_BT[rows], MASK_BT[rows])
    return gradient_of(name, *given, total=5, **more)


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
    result = gradient_by_hand("vespo", weights_BT=weights_BT)
    torch.testing.assert_close(result, -ADVANTAGES_BT / 5)


def test_luspo_is_gspo_times_the_length() -> None:
    wide = {"clip_low": 1.0}  # nothing is clipped
    lengths_B = MASK_BT.sum(-1, keepdim=True)
    luspo = gradient_by_hand("gspo", mode="seq-mean-token-sum", **wide)
    gspo = gradient_by_hand("gspo", mode="seq-mean-token-mean", **wide)
    torch.testing.assert_close(luspo, lengths_B * gspo)
    assert (gspo != 0).sum() == 5


# ------------------------------------------------------------------------- fipo
# FIPO: values by hand, a direct double loop, and laws.


B, T = 7, 13


def batch(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ratios of which some leave the clip and the dual clip, advantages, masks with a hole."""
    made = torch.Generator().manual_seed(seed)
    ratios_BT = torch.randn(B, T, generator=made, dtype=torch.float64).mul(0.6).exp()
    advantages_B = torch.randn(B, 1, generator=made, dtype=torch.float64)
    mask_BT = torch.arange(T) < torch.randint(1, T + 1, (B, 1), generator=made)
    mask_BT[:, 3] = False
    return ratios_BT, advantages_B.expand(-1, T).clone(), mask_BT.double()


def test_values_by_hand() -> None:
    """Half-life 1: gamma = 1/2. Row 0 has d = (0, log 1.21, -log 1.1), so F = (F_1 / 2, F_1, d_2).

    F_1 = log 1.21 - log(1.1) / 2 = log 1.1^1.5. In row 1 the third token is masked and the first
    one's ratio exceeds 3, so only log 0.9 counts; it is in the dual clip and has no gradient.
    """
    ratios_BT = torch.tensor([[1.0, 1.21, 1 / 1.1], [4.0, 0.9, 1.2]]).double()
    advantages_BT = torch.tensor([[1.0] * 3, [-2.0] * 3]).double()
    mask_BT = torch.tensor([[1.0, 1, 1], [1, 1, 0]]).double()
    settings: dict[str, Any] = {"half_life": 1.0, "low": 0.5, "high": 2.0}
    result = gradient_of("fipo", ratios_BT, advantages_BT, mask_BT, **settings)
    factors = [[1.1**0.75, 1.1**1.5, 1 / 1.1], [0.0, 0.9, 0.0]]
    expected = -torch.tensor(factors).double() * ratios_BT * advantages_BT / 5
    torch.testing.assert_close(result, expected, atol=1e-7, rtol=1e-6)
    narrow = gradient_of("fipo", ratios_BT, advantages_BT, mask_BT, half_life=1.0)  # 1 to 1.2
    factors = [[1.1**0.75, 1.1**1.5, 1.0], [0.0, 1.0, 0.0]]
    expected = -torch.tensor(factors).double() * ratios_BT * advantages_BT / 5
    torch.testing.assert_close(narrow, expected, atol=1e-7, rtol=1e-6)


def test_two_tokens_in_the_dual_clip_drop_the_response() -> None:
    ratios_BT = torch.tensor([[4.0, 4.0, 1.0], [4.0, 1.0, 1.0], [4.0, 4.0, 1.0]]).double()
    advantages_BT = torch.tensor([[-1.0] * 3, [-1.0] * 3, [1.0] * 3]).double()
    ones = torch.ones(3, 3).double()
    result = gradient_of("fipo", ratios_BT, advantages_BT, ones)
    assert not result[0].any()  # one of them dropped by hand, as in the next row, leaves a gradient
    expected = torch.tensor([[0.0, 1, 1], [0, 0, -1]]).double() / 9
    torch.testing.assert_close(result[1:], expected)


def test_a_negative_token_of_large_ratio_weighs_at_most_one() -> None:
    """Ratio 2.5: later tokens of ratio 2 would raise its factor to 1.2."""
    ratios_BT = torch.tensor([[2.5, 2.0, 2.0]]).double()
    negative_BT, ones = -torch.ones(1, 3).double(), torch.ones(1, 3).double()
    plain = gradient_of("fipo", ratios_BT, negative_BT, ones)
    safe = gradient_of("fipo", ratios_BT, negative_BT, ones, safe_ratio=2.4)
    torch.testing.assert_close(plain, 1.2 * ratios_BT / 3)
    torch.testing.assert_close(safe / plain, torch.tensor([[1 / 1.2, 1, 1]]).double())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("low", "high"), [(1.0, 1.2), (0.3, 3.0)])
def test_factors_are_those_of_a_double_loop(seed: int, low: float, high: float) -> None:
    """The gradient divided by that of PPO, token by token."""
    ratios_BT, advantages_BT, mask_BT = batch(seed)
    settings: dict[str, Any] = {"low": low, "high": high, "half_life": 2.5}
    result = gradient_of("fipo", ratios_BT, advantages_BT, mask_BT, **settings)
    plain = gradient_of("vanilla", ratios_BT, advantages_BT, mask_BT)
    inside = 0
    for i in range(B):
        tokens = [t for t in range(T) if mask_BT[i, t]]
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
    ones = torch.ones(B, T).double()
    result = gradient_of("fipo", ones, advantages_BT, mask_BT)
    torch.testing.assert_close(result, gradient_of("vanilla", ones, advantages_BT, mask_BT))
    assert result.any()


@pytest.mark.parametrize("size", [1, 2, 5])
def test_micro_batches_do_not_matter_of_fipo(size: int) -> None:
    ratios_BT, advantages_BT, mask_BT = batch(1)
    total = int(mask_BT.sum())
    cuts = zip(*(x.split(size) for x in (ratios_BT, advantages_BT, mask_BT)), strict=True)
    parts = [gradient_of("fipo", a, b, c, total=total) for a, b, c in cuts]
    torch.testing.assert_close(
        torch.cat(parts), gradient_of("fipo", ratios_BT, advantages_BT, mask_BT)
    )


def test_weights_of_the_engine_multiply_the_loss() -> None:
    ratios_BT, advantages_BT, mask_BT = batch(2)
    weights_BT = torch.rand(B, T, generator=torch.Generator().manual_seed(1)).double()
    result = gradient_of("fipo", ratios_BT, advantages_BT, mask_BT, weights_BT=weights_BT)
    plain = gradient_of("fipo", ratios_BT, advantages_BT, mask_BT)
    torch.testing.assert_close(result, weights_BT * plain)
