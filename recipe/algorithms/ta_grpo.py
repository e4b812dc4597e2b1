"""TA-GRPO (arXiv 2601.22478 v5, Eq. 3): one standard score over all phrasings of a question."""

import torch

from recipe.algorithms.groups import Numbers
from recipe.algorithms.grpo import grpo


def ta_grpo(rewards_B: Numbers, group_B: Numbers) -> torch.Tensor:
    """A_i^n = (R_i^n - mean) / (std + 1e-6) over the (N+1)G rewards of a question.

    `group_B` must hold the question's id: the same for its G responses to the question itself
    (n = 0) and to each of its N rephrasings. Fewer rephrasings, or none, make a smaller group.
    Zero only if all (N+1)G rewards are equal. The maths, the units, the errors and the departures
    are those of `grpo`; the ratio under q^0's prompt (Eq. 4) is the rollout's part, not this one's.
    """
    return grpo(rewards_B, group_B)
