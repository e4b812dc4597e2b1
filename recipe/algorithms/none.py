"""No advantage: what is left of the loss is the entropy term and the KL term."""

import torch

from recipe.algorithms.groups import Numbers, grouped
from recipe.algorithms.registry import advantage


@advantage(uses_rewards=False)
def none(rewards_B: Numbers, group_B: Numbers) -> torch.Tensor:
    """A = 0 for every response: entropy loss alone (arXiv 2504.20571), or the KL term alone.

    float64 of shape B. The inputs are checked nevertheless: ValueError as in `grpo`.
    """
    return torch.zeros_like(grouped(rewards_B, group_B).rewards_B)
