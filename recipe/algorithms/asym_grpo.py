"""AsymGRPO (arXiv 2604.04894): the odds of the group, with an exponent for each outcome."""

from collections.abc import Sequence

import torch

from recipe.algorithms.groups import Numbers, group_statistics, zero_if_equal
from recipe.algorithms.registry import advantage


@advantage(inputs=("accuracy",), parts=("accuracy",))
def asym_grpo(
    rewards_B: Numbers,
    group_B: Numbers,
    *,
    accuracy: Sequence[float],
    positive: float = 0.9,
    negative: float = 0.4,
) -> torch.Tensor:
    """A = ((1 - p) / p)^positive if right, -(p / (1 - p))^negative if wrong; p is the pass rate.

    p is over the n responses of the group; 0 if all are right or all wrong. Exponents of 1/2 give
    GRPO with a standard deviation over n (ours is over n - 1), of 0 the advantages 1 and -1. A
    larger `positive` raises rare right answers, a larger `negative` rare wrong ones.
    `accuracy` (0 or 1) is read instead of `rewards_B`. The advantages, float64 of shape B, have no
    unit. ValueError for an accuracy that is not 0 or 1 or a negative exponent, and as in `grpo`.
    Source: the equation of version 1, as two public summaries agree; one of them has the exponents
    0.9 and 0.4. We found no code of the authors. Departures: none known.
    """
    del rewards_B
    if positive < 0 or negative < 0:
        raise ValueError(f"positive={positive}, negative={negative}: must be 0 or more")
    groups = group_statistics(accuracy, group_B)
    right_B = groups.rewards_B == 1
    if not (right_B | (groups.rewards_B == 0)).all():
        raise ValueError("accuracy must be 0 or 1")
    rate_B = groups.mean_B
    odds_B = torch.where(groups.equal_B, 1.0, (1 - rate_B) / rate_B)  # of a wrong answer
    return zero_if_equal(torch.where(right_B, odds_B**positive, -(odds_B ** (-negative))), groups)
