"""Gaussian covariance weights: values by hand and laws."""

import functools
import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from covariance_cases import ADVANTAGES, GROUP, LOGPROBS, MASK, X, close, example, token_covariance

from recipe.algorithms.clip_cov import clip_cov
from recipe.algorithms.covariance import covariance_metrics, covariance_of
from recipe.algorithms.cw_grpo import PRESETS, gaussian_covariance
from recipe.algorithms.tokens import validated

Weight = Callable[..., torch.Tensor]
A94, A34, A2512 = math.exp(-9 / 4), math.exp(-3 / 4), math.exp(-25 / 12)


@pytest.mark.parametrize(
    ("settings", "kernel", "scales"),
    [
        # log pi: mean -3 over three tokens; A: mean 0 over two responses. c = 2 0 2: mean 4/3,
        # variance 8/3 - 16/9 = 8/9, so c^2 / (2 var) is 9/4, 0 and 9/4. The group of one has zero
        # variance. N = 3 and 2.
        ({}, [A94, 1, A94], (3 / (2 * A94 + 1), 1)),
        (PRESETS["paper"], [A94, 1, A94], (3 / (2 * A94 + 1), 1)),
        # Mean 1 over the five tokens of the batch instead.
        ({"normaliser": "batch"}, [A94, 1, A94], (5 / (2 * A94 + 3),) * 2),
        # A: mean 1/3 over three tokens. c = 4/3 0 8/3: mean 4/3, variance (0 + 16/9 + 16/9) / 3 =
        # 32/27, so c^2 / (2 var) is 16/9 x 27/64 = 3/4, 0 and 64/9 x 27/64 = 3.
        ({"advantage_centre": "tokens"}, [A34, 1, math.exp(-3)], (3 / (A34 + 1 + math.exp(-3)), 1)),
        # c = 1 -1 0: variance 2/3, so exp(-1 / (4/3)) for both and 1; N = 2 rows x 2 columns. The
        # group of one has no padding, so its weights are 1.
        (PRESETS["official_code"], [A34, A34, 1], (4 / (2 * A34 + 1), 1)),
        # c = 2 0 2 0 0: mean 4/5, variance 8/5 - 16/25 = 24/25, so c^2 / (2 var) is 25/12
        ({"sigma": "batch"}, [A2512, 1, A2512], (3 / (2 * A2512 + 1), 1)),
    ],
)
def test_weights_by_hand(settings: dict, kernel: list[float], scales: tuple[float, float]) -> None:
    a, b, c = (value * scales[0] for value in kernel)
    wanted = [[a, b], [c, 0], [scales[1], scales[1]]]
    close(gaussian_covariance(LOGPROBS, ADVANTAGES, MASK, GROUP, **settings), wanted)


def test_with_zero_variance_the_weight_is_one() -> None:
    logprobs_BT, _, mask_BT, group_B = example(size=7)
    for value in (0.0, 1.1, 4 / 3):
        equal_BT = torch.full_like(logprobs_BT, value)
        assert torch.equal(
            gaussian_covariance(logprobs_BT, equal_BT, mask_BT, group_B), mask_BT.double()
        )
    # sigma = 0 although c is 1 everywhere; 0 but for rounding; small, every kernel below 1e-300
    opposite = ([[-1.0], [-3.0]], [[1.0], [-1.0]], [[1], [1]], [0, 0])
    close(gaussian_covariance(*opposite), [[1], [1]])
    opposite = ([[-0.1], [-2.3]] * 3, [[0.7], [-0.7]] * 3, [[1]] * 6, [0] * 6)
    close(gaussian_covariance(*opposite), [[1]] * 6)
    opposite = ([[-1.0], [-3.0 - 1e-3], [-1.0], [-3.0]], [[1.0], [-1.0]] * 2, [[1]] * 4, [0] * 4)
    assert float(gaussian_covariance(*opposite).mean()) == pytest.approx(1.0)


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_a_group_without_real_tokens_has_no_weight(preset: str) -> None:
    arguments = ([*LOGPROBS, [X, X]], [*ADVANTAGES, [X, X]], [*MASK, [0, 0]], [*GROUP, 5])
    wanted_BT = gaussian_covariance(LOGPROBS, ADVANTAGES, MASK, GROUP, **PRESETS[preset])
    close(gaussian_covariance(*arguments, **PRESETS[preset]), [*wanted_BT.tolist(), [0, 0]])


def check_padding(fn: Weight) -> None:
    """Columns without a real token, whatever they hold, change no weight and get none."""
    logprobs_BT, advantages_BT, mask_BT, group_B = example()
    wanted_BT = fn(logprobs_BT, advantages_BT, mask_BT, group_B)
    assert torch.equal(wanted_BT[mask_BT == 0], torch.zeros(int((mask_BT == 0).sum())).double())
    wide_BT = [F.pad(m, (0, 3), value=77.0) for m in (logprobs_BT, advantages_BT)]
    close(fn(*wide_BT, F.pad(mask_BT, (0, 3)), group_B), F.pad(wanted_BT, (0, 3)))
    filled_BT = [torch.where(mask_BT == 1, m, -55.0) for m in (logprobs_BT, advantages_BT)]
    close(fn(*filled_BT, mask_BT, group_B), wanted_BT)


def check_split(fn: Weight) -> None:
    """Whole groups by themselves have the weights they have in the batch."""
    batch = example()
    wanted_BT = fn(*batch)
    for rows in (slice(0, 4), slice(4, 12)):
        close(fn(*(part[rows] for part in batch)), wanted_BT[rows])


def check_order_and_names(fn: Weight) -> None:
    """The order of rows and the ids of groups decide nothing."""
    *matrices, group_B = example()
    wanted_BT = fn(*matrices, group_B)
    order = torch.randperm(len(group_B), generator=torch.Generator().manual_seed(1))
    found_BT = fn(*(m[order] for m in matrices), torch.tensor([7, -(2**40), 0])[group_B[order]])
    close(found_BT, wanted_BT[order])


def check_mean(fn: Weight) -> None:
    """The mean weight of every group's real tokens is 1."""
    *matrices, group_B = example()
    weights_BT, mask_BT = fn(*matrices, group_B), matrices[2]
    for group in range(3):
        real = (mask_BT == 1) & (group_B == group)[:, None]
        assert float(weights_BT[real].mean()) == pytest.approx(1.0, abs=1e-12)


def check_monotone(fn: Weight) -> None:
    """In a group a token of larger |c| weighs less, whichever the sign."""
    *matrices, group_B = example()
    weights_BT, c_BT = fn(*matrices, group_B), token_covariance(*matrices, group_B)
    for group in range(3):
        real = (matrices[2] == 1) & (group_B == group)[:, None]
        ordered = weights_BT[real][c_BT[real].abs().argsort()]
        assert bool((ordered[1:] < ordered[:-1]).all())


def check_units(fn: Weight) -> None:
    """Shifts of either factor, scales and signs cancel: c is centred, and measured in sigmas."""
    logprobs_BT, advantages_BT, mask_BT, group_B = example()
    wanted_BT = fn(logprobs_BT, advantages_BT, mask_BT, group_B)
    shift_B = group_B.double()[:, None]
    close(fn(3 * logprobs_BT - shift_B, 5 - advantages_BT / 4, mask_BT, group_B), wanted_BT, 1e-10)


OFFICIAL: Weight = functools.partial(gaussian_covariance, **PRESETS["official_code"])
BOTH = (check_padding, check_split, check_order_and_names, check_units)


@pytest.mark.parametrize(
    ("law", "weights"),
    [
        *((law, gaussian_covariance) for law in (*BOTH, check_mean, check_monotone)),
        *((law, OFFICIAL) for law in BOTH),
    ],
)
def test_law(law: Callable[[Weight], None], weights: Weight) -> None:
    law(weights)


# ------------------------------------------------------------------------- covariance
# The covariance of tokens and its distribution, Clip-Cov: by hand, laws, verl's own loss.


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


def test_clip_cov_stops_the_tokens_that_verl_stops() -> None:
    *matrices, group_B = example()
    mask_BT, bounds = matrices[2], {"lower": 0.1, "upper": 1.0}
    stopped_BT = verl_gradient_is_zero(*matrices, group_B, **bounds)
    assert 0 < int((stopped_BT & (mask_BT == 1)).sum()) < 24
    assert torch.equal(clip_cov(*matrices, group_B, ratio=1.0, **bounds) == 0, stopped_BT)
