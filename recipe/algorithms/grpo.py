"""GRPO (arXiv 2402.03300): the reward's standard score in its group."""

import torch

from recipe.algorithms.groups import Numbers, group_statistics, zero_if_equal
from recipe.algorithms.registry import advantage

EPSILON = 1e-6  # in units of reward, as in verl


@advantage()
def grpo(rewards_B: Numbers, group_B: Numbers) -> torch.Tensor:
    """A = (R - mean) / (std + 1e-6), mean and std over the n rewards of the group.

    `rewards_B` in any unit, `group_B` integer ids; the advantages (float64, shape B) have no unit.
    std divides by n - 1, as verl's does; the paper does not say which. A group whose rewards are
    all equal, a group of one included, has A = 0 exactly. verl differs in two cases: a group of
    one keeps its raw reward, and in float32 eight rewards of 4/3 get +-0.1.
    ValueError for different lengths, rewards that are not finite and ids that are not integers.
    """
    groups = group_statistics(rewards_B, group_B)
    score_B = (groups.rewards_B - groups.mean_B) / (groups.std_B + EPSILON)
    return zero_if_equal(score_B, groups)
