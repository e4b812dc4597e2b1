"""MaxRL, maximum likelihood reinforcement learning (arXiv 2602.02710)."""

import torch

from recipe.algorithms.groups import Numbers, group_statistics, zero_if_equal
from recipe.algorithms.registry import advantage


@advantage(nonnegative_rewards=True)
def maxrl(rewards_B: Numbers, group_B: Numbers) -> torch.Tensor:
    """A = (R - mean) / mean where the group's mean is above 0, else 0.

    For rewards 0 and 1 the mean is the pass rate p, and 1/p is the factor between the gradients of
    log p and of p: hard questions weigh more. There is no division by a standard deviation.
    `rewards_B` must be 0 or more for the weight to make sense; the paper covers only 0 and 1.
    A mean of 0 or less gives 0. The advantages, float64 of shape B, have no unit.
    Departures: exactly 0 for equal rewards and for groups of one (the method's first order would
    keep the raw reward of the latter); no epsilon in the denominator. ValueError as in `grpo`.
    """
    groups = group_statistics(rewards_B, group_B)
    positive_B = groups.mean_B > 0
    mean_B = torch.where(positive_B, groups.mean_B, 1.0)
    relative_B = torch.where(positive_B, (groups.rewards_B - mean_B) / mean_B, 0.0)
    return zero_if_equal(relative_B, groups)
