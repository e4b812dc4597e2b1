"""The covariance of tokens and its distribution, Clip-Cov: by hand, laws, verl's own loss."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from covariance_cases import (
    ADVANTAGES,
    GROUP,
    LOGPROBS,
    MASK,
    X,
    close,
    example,
    token_covariance,
)

from recipe.algorithms import TOKEN_WEIGHTS
from recipe.algorithms.clip_cov import clip_cov
from recipe.algorithms.covariance import covariance_metrics, covariance_of
from recipe.algorithms.tokens import validated


@pytest.mark.parametrize(
    ("centre", "advantage_centre", "wanted"),
    [
        # log-probs of group 4: mean -3, so 2 0 -2; advantages: mean 1/3, so 2/3 2/3 -4/3
        ("group", "tokens", [[4 / 3, 0], [8 / 3, 0], [0, 0]]),
        # the responses' advantages 1 and -1: mean 0
        ("group", "responses", [[2, 0], [2, 0], [0, 0]]),
        # each response by itself: 1 -1, then 0
        ("sequence", "tokens", [[2 / 3, -2 / 3], [0, 0], [0, 0]]),
        ("sequence", "responses", [[1, -1], [0, 0], [0, 0]]),
        # all five tokens: mean log-prob -11/5, mean advantage 2/5
        ("batch", "batch", [[1.2 * 0.6, -0.8 * 0.6], [2.8 * 1.4, 0], [1.2 * 0.1, 1.2 * 0.1]]),
        ("group", "batch", [[1.2, 0], [2.8, 0], [0, 0]]),
        ("batch", "tokens", [[0.8, -1.6 / 3], [2.8 * 4 / 3, 0], [0, 0]]),
    ],
)
def test_covariance_by_hand(centre: str, advantage_centre: str, wanted: list) -> None:
    scopes = {"centre": centre, "advantage_centre": advantage_centre}
    close(token_covariance(LOGPROBS, ADVANTAGES, MASK, GROUP, **scopes), wanted)


def test_one_record_of_tokens_keeps_each_covariance_apart() -> None:
    tokens = validated(LOGPROBS, ADVANTAGES, MASK, GROUP)
    for scopes in (("group", "tokens"), ("sequence", "responses"), ("group", "tokens")):
        chosen = dict(zip(("centre", "advantage_centre"), scopes, strict=True))
        wanted = token_covariance(LOGPROBS, ADVANTAGES, MASK, GROUP, **chosen)
        assert torch.equal(covariance_of(tokens, **chosen), wanted)
    assert len(tokens.covariances) == 2


def test_responses_without_tokens_do_not_count() -> None:
    advantages_BT = [[3.0, 3.0], [-1.0, X], [0.5, 0.5]]  # of group 4: means not 0
    more = ([*LOGPROBS, [X, X]], [*advantages_BT, [X, X]], [*MASK, [0, 0]], [*GROUP, 4])
    for scope in ("tokens", "responses", "batch"):
        wanted = token_covariance(LOGPROBS, advantages_BT, MASK, GROUP, advantage_centre=scope)
        result = token_covariance(*more, advantage_centre=scope)
        close(result, [*wanted.tolist(), [0, 0]])


def test_the_mean_over_a_group_is_the_covariance_over_its_tokens() -> None:
    logprobs_BT, advantages_BT, mask_BT, group_B = example()
    c_BT = token_covariance(logprobs_BT, advantages_BT, mask_BT, group_B)
    for group in range(3):
        real = (mask_BT == 1) & (group_B == group)[:, None]
        pairs = np.cov(logprobs_BT[real].numpy(), advantages_BT[real].numpy(), bias=True)
        assert float(c_BT[real].mean()) == pytest.approx(pairs[0, 1], abs=1e-12)


def test_without_variance_it_is_exactly_zero() -> None:
    logprobs_BT, _, mask_BT, group_B = example(size=7)
    mask_BT[:, 0] = 0  # responses need not begin with a real token, nor have one
    for value in (1.1, 4 / 3, 0.1):  # plain sums give means that are off
        equal_BT = torch.full_like(logprobs_BT, value)
        c_BT = token_covariance(logprobs_BT, equal_BT, mask_BT, group_B)
        assert not c_BT.any()
        assert not token_covariance(equal_BT, logprobs_BT, mask_BT, group_B).any()
        assert set(covariance_metrics(c_BT, mask_BT).values()) == {0.0}


def test_its_distribution_by_hand() -> None:
    # positive 1 .. 5, negative -10 .. -1, one 0, and padding that must not count
    values = [*range(1, 6), *range(-10, 0), 0]
    result = covariance_metrics([[*values, 99.0]], [[1] * 16 + [0]])
    wanted = {
        # k = 1 1 1 2 5 of the positive values, 1 1 2 4 10 of the negative ones
        "positive": {"p0.01": 5, "p1": 5, "p20": 5, "p40": 4, "p100": 1, "mean": 3},
        "negative": {"p0.01": -10, "p1": -10, "p20": -9, "p40": -7, "p100": -1, "mean": -5.5},
    }
    for side, numbers in wanted.items():
        assert {key: result[f"covariance/{side}/{key}"] for key in numbers} == numbers
    assert result["covariance/mean"] == pytest.approx((15 - 55) / 16)
    # squares 55 + 385 = 440; population: 440 / 16 - 2.5^2
    assert result["covariance/std"] == pytest.approx(math.sqrt(27.5 - 6.25))


@pytest.mark.parametrize(("n", "key", "k"), [(700, "p1", 7), (701, "p1", 8), (20001, "p0.01", 3)])
def test_ranks_round_up(n: int, key: str, k: int) -> None:
    values = np.random.default_rng(0).permutation(np.arange(1.0, n + 1))
    metrics = covariance_metrics(values[None], np.ones((1, n)))
    assert metrics[f"covariance/positive/{key}"] == n + 1 - k


BATCH = (LOGPROBS, ADVANTAGES, MASK, GROUP)
# Log-probs 0 -2, advantages 1 -1, both of mean 0 (after centering): c is 1 at both tokens.
ONES = ([[0.0], [-2.0]], [[1.0], [-1.0]], [[1], [1]], [0, 0])


@pytest.mark.parametrize(
    ("batch", "settings", "wanted"),
    [
        # c over the batch: 0.72 -0.48 | 3.92 | 0.12 0.12; max(int(0.5 x 5), 1) = 2 drawn
        (BATCH, {"ratio": 0.5, "lower": 0.5}, [[0, 1], [0, 0], [1, 1]]),
        (BATCH, {"ratio": 0.5, "lower": 0.73}, [[1, 1], [0, 0], [1, 1]]),  # one qualifies
        (BATCH, {"ratio": 0.5, "upper": 3.0}, [[1, 1], [1, 0], [1, 1]]),  # none does
        (BATCH, {"ratio": 1.0, "lower": -1.0}, [[0, 0], [0, 0], [0, 0]]),
        # the bounds are open
        (ONES, {"ratio": 1.0, "lower": 1.0, "upper": 5.0}, [[1], [1]]),
        (ONES, {"ratio": 1.0, "lower": 0.0, "upper": 1.0}, [[1], [1]]),
        (ONES, {"ratio": 1.0, "lower": 0.999, "upper": 1.001}, [[0], [0]]),
    ],
)
def test_clip_cov_by_hand(batch: tuple, settings: dict[str, float], wanted: list) -> None:
    close(clip_cov(*batch, **settings), wanted)


@pytest.mark.parametrize(("ratio", "count"), [(0.0001, 1), (0.09, 3), (0.1, 4), (1.0, 24)])
def test_clip_cov_draws_the_configured_share(ratio: float, count: int) -> None:
    *matrices, group_B = example()
    real, bounds = matrices[2] == 1, {"lower": 0.0, "upper": 9.0}  # of N = 42 tokens, 24 above 0
    c_BT = token_covariance(*matrices, group_B, centre="batch", advantage_centre="batch")
    assert (int(real.sum()), int((c_BT[real] > 0).sum())) == (42, 24)
    weights_BT = clip_cov(*matrices, group_B, ratio=ratio, **bounds)
    dropped = real & (weights_BT == 0)
    assert int(dropped.sum()) == count
    assert bool((c_BT[dropped] > 0).all())
    assert set(weights_BT[real].tolist()) <= {0.0, 1.0}
    assert not weights_BT[~real].any()


def test_a_draw_of_clip_cov_depends_on_its_seed_and_on_the_keys_of_rows() -> None:
    """Values at padding, its width, other generators and the order of rows do not matter."""
    *matrices, group_B = example()
    settings = {"ratio": 0.1, "lower": 0.0, "upper": 9.0}
    wanted_BT = clip_cov(*matrices, group_B, seed=3, **settings)
    torch.manual_seed(99)
    fill = (7.0, X, 0)
    wide = [F.pad(m, (0, 2), value=v) for m, v in zip(matrices, fill, strict=True)]
    found_BT = clip_cov(*wide, group_B, seed=3, **settings)
    assert torch.equal(found_BT, F.pad(wanted_BT, (0, 2)))
    reverse = torch.arange(len(group_B) - 1, -1, -1)
    turned = [m[reverse] for m in (*matrices, group_B)]
    assert torch.equal(clip_cov(*turned, seed=3, key_B=reverse, **settings), wanted_BT[reverse])
    draws = {
        tuple(clip_cov(*matrices, group_B, seed=seed, **settings).flatten().tolist())
        for seed in range(20)
    }
    assert len(draws) > 15


def verl_gradient_is_zero(*batch: torch.Tensor, lower: float, upper: float) -> torch.Tensor:
    """The tokens that verl's clip_cov loss stops at old == current, if every candidate is drawn."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.workers.config.actor import ActorConfig, PolicyLossConfig

    logprobs_BT, advantages_BT, mask_BT, _ = batch
    bounds = {"clip_cov_lb": lower, "clip_cov_ub": upper}
    config = ActorConfig(
        **{"strategy": "fsdp", "rollout_n": 1, "ppo_micro_batch_size_per_gpu": 1},
        policy_loss=PolicyLossConfig(loss_mode="clip_cov", clip_cov_ratio=1.0, **bounds),
    )
    current_BT = logprobs_BT.clone().requires_grad_()
    loss, _ = get_policy_loss_fn("clip_cov")(
        logprobs_BT, current_BT, advantages_BT.clone(), mask_BT, "token-mean", config
    )
    loss.backward()
    return current_BT.grad == 0


def check_verl(fn) -> None:
    *matrices, group_B = example()
    mask_BT, bounds = matrices[2], {"lower": 0.1, "upper": 1.0}
    stopped_BT = verl_gradient_is_zero(*matrices, group_B, **bounds)
    assert 0 < int((stopped_BT & (mask_BT == 1)).sum()) < 24
    assert torch.equal(fn(*matrices, group_B, ratio=1.0, **bounds) == 0, stopped_BT)


def test_clip_cov_stops_the_tokens_that_verl_stops() -> None:
    check_verl(clip_cov)


def per_response(*batch: torch.Tensor, **settings: float) -> torch.Tensor:
    """Statistics of micro-batches of one response: there are no candidates."""
    return torch.cat([clip_cov(*(p[i : i + 1] for p in batch), **settings) for i in range(12)])


def negated(logprobs_BT, advantages_BT, mask_BT, group_B, **settings: float) -> torch.Tensor:
    return clip_cov(logprobs_BT, -advantages_BT, mask_BT, group_B, **settings)


def unmasked(logprobs_BT, advantages_BT, mask_BT, group_B, **settings: float) -> torch.Tensor:
    everything_BT = torch.ones_like(mask_BT)
    return clip_cov(logprobs_BT, advantages_BT, everything_BT, group_B, **settings) * mask_BT


@pytest.mark.parametrize("broken", [per_response, negated, unmasked])
def test_the_comparison_with_verl_fails_on_another_function(broken) -> None:
    with pytest.raises(AssertionError):
        check_verl(broken)


@pytest.mark.parametrize("settings", [{"ratio": 0.0}, {"ratio": 1.5}, {"lower": 5.0}])
def test_clip_cov_rejects(settings: dict[str, float]) -> None:
    ((name, value),) = settings.items()
    with pytest.raises(ValueError, match=f"{name}={value}"):
        clip_cov(*BATCH, **settings)


def test_settings_of_clip_cov_that_are_not_set_are_those_of_its_authors() -> None:
    _, given = TOKEN_WEIGHTS.call({"name": "clip_cov", "clip_cov": {"ratio": None, "upper": 3}})
    assert given == {"ratio": 0.0002, "lower": 1.0, "upper": 3.0}
