"""Dr. GRPO (arXiv 2503.20783): GRPO without the division by the standard deviation."""

import torch

from recipe.algorithms.groups import Numbers, group_statistics, zero_if_equal
from recipe.algorithms.registry import advantage


@advantage()
def dr_grpo(rewards_B: Numbers, group_B: Numbers) -> torch.Tensor:
    """A = R - mean, the mean over the rewards of the group.

    `rewards_B` and the advantages (float64, shape B) in the same unit. Equal rewards and groups of
    one: exactly 0. ValueError as in `grpo`.
    This is half of the method. The other half is a loss that is not divided by the length of a
    response: verl's ``loss_agg_mode=seq-mean-token-sum-norm`` with a constant ``loss_scale_factor``
    (by default verl divides by the longest response of each micro-batch).
    """
    groups = group_statistics(rewards_B, group_B)
    return zero_if_equal(groups.rewards_B - groups.mean_B, groups)
