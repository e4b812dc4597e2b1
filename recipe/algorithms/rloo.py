"""RLOO (arXiv 2402.14740): every response is compared with the mean of the others."""

import torch

from recipe.algorithms.groups import Numbers, group_statistics, zero_if_equal
from recipe.algorithms.registry import advantage


@advantage()
def rloo(rewards_B: Numbers, group_B: Numbers) -> torch.Tensor:
    """A = R - (mean of the other n - 1 rewards of the group) = n / (n - 1) (R - mean).

    `rewards_B` and the advantages (float64, shape B) in the same unit. Equal rewards: exactly 0.
    A group of one has no others; here it gets 0, in verl its raw reward. ValueError as in `grpo`.
    Departure: `method=rloo` keeps GRPO's mean over a response's tokens, where the paper sums them.
    """
    groups = group_statistics(rewards_B, group_B)
    scale_B = groups.count_B / (groups.count_B - 1).clamp(min=1)
    return zero_if_equal(scale_B * (groups.rewards_B - groups.mean_B), groups)
