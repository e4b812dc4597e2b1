"""No advantage: the loss consists of the entropy term and the KL term."""

import torch

from recipe.algorithms.groups import Numbers, group_statistics
from recipe.algorithms.registry import advantage


@advantage(uses_rewards=False)
def none(rewards_B: Numbers, group_B: Numbers) -> torch.Tensor:
    """A = 0 for every response: entropy loss alone (arXiv 2504.20571), or the KL term alone.

    float64 of shape B. The inputs are still validated: ValueError as in `grpo`.
    """
    return torch.zeros_like(group_statistics(rewards_B, group_B).rewards_B)
