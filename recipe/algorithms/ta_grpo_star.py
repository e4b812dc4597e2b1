"""TA-GRPO* (arXiv 2601.22478 v5, its ablation): every phrasing of a question by itself."""

import torch

from recipe.algorithms.groups import Numbers
from recipe.algorithms.grpo import grpo


def ta_grpo_star(rewards_B: Numbers, group_B: Numbers) -> torch.Tensor:
    """A_i^n = (R_i^n - mean) / (std + 1e-6) over the G rewards of one question text.

    `group_B` must hold an id per question text: the question and each of its N rephrasings are
    N + 1 groups of G. The maths, the units, the errors and the departures are those of `grpo`.
    """
    return grpo(rewards_B, group_B)
