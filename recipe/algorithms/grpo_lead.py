"""GRPO-LEAD (arXiv 2504.09696) favors short right answers and hard questions."""

from collections.abc import Sequence

import torch

from recipe.algorithms.groups import Numbers, float64, group_index, group_sum
from recipe.algorithms.grpo import EPSILON, grpo
from recipe.algorithms.registry import advantage

# The logistic weight of a question in the authors' code (aeroplanepaper/GRPO-LEAD).
LEAST, MOST, MIDDLE, STEEPNESS = 0.4, 1.5, 0.75, 10.0


def difficulty_weight(rate: torch.Tensor) -> torch.Tensor:
    """w(rho) = 0.4 + (1.5 - 0.4) / (1 + exp(10 (rho - 0.75))), falling with the pass rate rho."""
    return LEAST + (MOST - LEAST) * torch.sigmoid(-STEEPNESS * (rate - MIDDLE))


@advantage(inputs=("accuracy", "lengths"), parts=("accuracy",), equal_accuracy=True)
def grpo_lead(
    rewards_B: Numbers,
    group_B: Numbers,
    *,
    accuracy: Sequence[float],
    lengths: Sequence[int],
    alpha: float = 0.05,
) -> torch.Tensor:
    """A = w grpo(R),  R = exp(-alpha z) if right, -1 if wrong,  z = (l - mean l) / (std l + 1e-6).

    Mean and std (n - 1; z = 0 for a single one) of the lengths l, in tokens, are over the right
    responses of the group. w is `difficulty_weight` of rho where grpo(R) > 0, else of 1 - rho; rho
    is the group's pass rate. `accuracy` (0 or 1) is read instead of `rewards_B`.
    A group of right answers only has a signal too; `algorithm.filter_groups` would evict it. Errors
    as `grpo`. Source: the authors' code, whose alpha is 0.05.
    Departure: that code shapes lengths only if the three shortest responses of a group have more
    than 4000 tokens on average; the paper's formula has no such condition.
    """
    del rewards_B
    right_B, length_B = float64(accuracy) == 1, float64(lengths)
    index_B, groups = group_index(group_B, len(right_B))

    def total(values_B: torch.Tensor) -> torch.Tensor:
        return group_sum(values_B, index_B, groups)[index_B]

    count_B = total(right_B.double())
    mean_B = total(torch.where(right_B, length_B, 0.0)) / count_B.clamp(min=1)
    square_B = total(torch.where(right_B, (length_B - mean_B) ** 2, 0.0))
    std_B = (square_B / (count_B - 1).clamp(min=1)).sqrt()
    z_B = (length_B - mean_B) / (std_B + EPSILON)
    score_B = grpo(torch.where(right_B, torch.exp(-alpha * z_B), -1.0), group_B)
    rate_B = count_B / total(torch.ones_like(length_B))
    return score_B * torch.where(
        score_B > 0, difficulty_weight(rate_B), difficulty_weight(1 - rate_B)
    )
