"""Gaussian covariance weights: values by hand, laws, and broken copies that break them."""

import functools
import math
from collections.abc import Callable

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
from recipe.algorithms.cw_grpo import PRESETS, gaussian_covariance
from recipe.algorithms.cw_grpo import settings as resolve

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


def sequence_micro_batches(*batch: torch.Tensor) -> torch.Tensor:
    """One response at a time: its advantage is its mean, c is 0, and the method is gone."""
    return torch.cat([gaussian_covariance(*(p[i : i + 1] for p in batch)) for i in range(12)])


def ignoring_the_mask(logprobs_BT, advantages_BT, mask_BT, group_B) -> torch.Tensor:
    everything_BT = torch.ones_like(mask_BT)
    return gaussian_covariance(logprobs_BT, advantages_BT, everything_BT, group_B) * mask_BT


def by_position(logprobs_BT, advantages_BT, mask_BT, group_B) -> torch.Tensor:
    return gaussian_covariance(logprobs_BT, advantages_BT, mask_BT, torch.arange(12) // 4)


with_option = functools.partial(functools.partial, gaussian_covariance)


def wrong_sign(*batch: torch.Tensor) -> torch.Tensor:
    """exp(+c^2 / (2 sigma^2)), up to a factor per group."""
    return 1 / gaussian_covariance(*batch)


@pytest.mark.parametrize(
    ("law", "broken"),
    [
        (check_padding, ignoring_the_mask),
        (check_split, with_option(sigma="batch")),
        (check_split, with_option(centre="batch")),
        (check_split, with_option(advantage_centre="batch")),
        (check_split, with_option(normaliser="batch")),
        (check_order_and_names, by_position),
        (check_mean, with_option(normaliser="padded")),
        (check_mean, ignoring_the_mask),
        (check_monotone, wrong_sign),
        (check_monotone, sequence_micro_batches),
        (check_monotone, with_option(centre="sequence")),
        (check_units, lambda *batch: (-token_covariance(*batch).square()).exp() * batch[2]),
    ],
)
def test_a_law_fails_on_weights_that_break_it(
    law: Callable[[Weight], None], broken: Weight
) -> None:
    with pytest.raises(AssertionError):
        law(broken)


def test_settings_are_completed_from_the_preset() -> None:
    keys = ("centre", "advantage_centre", "sigma", "normaliser")
    empty = dict.fromkeys(keys)
    paper = {**PRESETS["paper"], "logprob_temperature": None}
    assert resolve({}) == resolve({"preset": None, **empty}) == paper
    code = resolve({"preset": "official_code", **empty, "sigma": "batch"})
    assert [code[key] for key in keys] == ["sequence", "responses", "batch", "padded"]
    assert code["logprob_temperature"] == 1.0
    changed = resolve({"preset": "official_code", "logprob_temperature": 0.7})
    assert changed["logprob_temperature"] == 0.7
    assert PRESETS["official_code"]["sigma"] == "group"  # the preset itself does not change


@pytest.mark.parametrize(
    ("key", "value", "choices"),
    [
        ("preset", "papers", "paper, official_code"),
        ("centre", "tokens", "group, sequence, batch"),
        ("advantage_centre", "group", "tokens, responses, batch"),
        ("sigma", "sequence", "group, batch"),
        ("normaliser", 1, "group, batch, padded"),
        ("logprob_temperature", 0, ""),
        ("bandwidth", 1.0, "preset, centre"),
    ],
)
def test_bad_settings_are_rejected(key: str, value: object, choices: str) -> None:
    with pytest.raises(ValueError, match=f"{key}.*{choices}"):
        resolve({key: value})
    if key in ("centre", "advantage_centre", "sigma", "normaliser"):
        with pytest.raises(ValueError, match=f"{key}.*{choices}"):
            gaussian_covariance(LOGPROBS, ADVANTAGES, MASK, GROUP, **{key: value})


@pytest.mark.parametrize("name", sorted(set(TOKEN_WEIGHTS) - {"high_entropy"}))
@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (0, [[-1.0, X], [-5.0, X], [-1.0, -1.0]], "log-probabilities that are not finite"),
        (1, [[1.0, 1.0], [math.inf, 0], [0.5, 0.5]], "advantages that are not finite.*row 1"),
        (0, [[-1.0], [-5.0], [-1.0]], "log-probabilities of shape"),
        (2, [1, 1, 1], "a mask of shape"),
        (2, [[], [], []], "a mask of shape"),
        (3, [4, 4], "one id per response"),
        (3, [4.0, 4.0, 9.0], "integers"),
    ],
)
def test_invalid_inputs_are_rejected(name: str, place: int, value: list, message: str) -> None:
    arguments = [LOGPROBS, ADVANTAGES, MASK, GROUP]
    arguments[place] = value
    with pytest.raises(ValueError, match=message):
        TOKEN_WEIGHTS[name](*arguments)


@pytest.mark.parametrize("name", sorted(set(TOKEN_WEIGHTS) - {"high_entropy"}))
def test_other_types_of_input_give_the_same_float64_weights(name: str) -> None:
    logprobs_BT, advantages_BT, mask_BT, group_B = example()
    singles = [logprobs_BT.float(), advantages_BT.float()]
    wanted_BT = TOKEN_WEIGHTS[name](*(m.double() for m in singles), mask_BT, group_B)
    found_BT = TOKEN_WEIGHTS[name](*(m.numpy() for m in singles), mask_BT.bool(), group_B.numpy())
    assert found_BT.dtype == torch.float64
    assert torch.equal(found_BT, wanted_BT)
    nothing_BT = torch.zeros(0, 3)
    assert TOKEN_WEIGHTS[name](nothing_BT, nothing_BT, nothing_BT, []).shape == (0, 3)
