"""The two halves of CW-GRPO's weight: values by hand, and laws that tie them to it."""

import math

import pytest
import torch
from covariance_cases import ADVANTAGES, GROUP, LOGPROBS, MASK, close, example

from recipe.algorithms import TOKEN_WEIGHTS
from recipe.algorithms.cw_grpo import gaussian_covariance
from recipe.errors import ConfigError
from recipe.lab.kernels import covariance_split

PATH = "recipe.lab.kernels.covariance_split"


def test_both_halves_by_hand() -> None:
    # c = 2 0 2, variance 8/9 (tests of cw_grpo): c^2 / (2 var) is 9/4, with twice the width 9/16.
    # The last group is one response: no signal.
    a, b = math.exp(-9 / 4), math.exp(-9 / 16)
    close(covariance_split(LOGPROBS, ADVANTAGES, MASK, GROUP), [[a, 1], [a, 0], [1, 1]])
    wide = covariance_split(LOGPROBS, ADVANTAGES, MASK, GROUP, widths=2.0)
    close(wide, [[b, 1], [b, 0], [1, 1]])
    extremes = covariance_split(LOGPROBS, ADVANTAGES, MASK, GROUP, extremes=True)
    close(extremes, [[1 - a, 0], [1 - a, 0], [0, 0]])


def test_the_halves_add_up_and_the_first_is_the_papers_weight_but_for_its_mean() -> None:
    logprobs_BT, advantages_BT, mask_BT, group_B = example(size=7)
    kernel_BT = covariance_split(logprobs_BT, advantages_BT, mask_BT, group_B)
    extremes_BT = covariance_split(logprobs_BT, advantages_BT, mask_BT, group_B, extremes=True)
    assert torch.equal(kernel_BT + extremes_BT, mask_BT.double())
    paper_BT = gaussian_covariance(logprobs_BT, advantages_BT, mask_BT, group_B)
    for group in group_B.unique():
        real = (group_B == group)[:, None] & mask_BT.bool()
        mean = kernel_BT[real].mean()
        torch.testing.assert_close(kernel_BT[real] / mean, paper_BT[real])
    assert not torch.allclose(kernel_BT, paper_BT)  # the paper's has mean 1


def test_rounding_is_no_signal() -> None:
    # c is one number in all six, but for rounding: a variance of 1e-34 would make the kernel 0.
    opposite = ([[-0.1], [-2.3]] * 3, [[0.7], [-0.7]] * 3, [[1]] * 6, [0] * 6)
    close(covariance_split(*opposite), [[1]] * 6)
    close(covariance_split(*opposite, extremes=True), [[0]] * 6)


def test_a_run_names_it_by_its_path_and_bad_arguments_are_refused_before_it_starts() -> None:
    section = {"name": PATH, "arguments": {"widths": 4.0}}
    assert TOKEN_WEIGHTS.call(section) == (covariance_split, {"widths": 4.0})
    for arguments, message in (
        ({"widths": 0.0}, r"widths=0\.0 must be a number above 0"),
        ({"widths": "wide"}, "widths='wide' must be a number above 0"),
        ({"widths": math.inf}, "widths=inf must be a number above 0"),
        ({"extremes": 1}, "extremes=1 must be true or false"),
        ({"width": 2.0}, "width"),
    ):
        with pytest.raises(ConfigError, match=message):
            TOKEN_WEIGHTS.call({"name": PATH, "arguments": arguments})
    with pytest.raises(ValueError, match=r"widths=0\.0"):
        covariance_split(LOGPROBS, ADVANTAGES, MASK, GROUP, widths=0.0)
