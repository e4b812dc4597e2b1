"""TA-GRPO (arXiv 2601.22478 v5): a group is a question with its rephrasings; ablation TA-GRPO*.

Both are GRPO with another grouping. The rollout (`recipe.rollout.agent_loop`) sets up the ratio
under q^0's prompt (Eq. 4).
"""

import torch

from recipe.algorithms.groups import Numbers
from recipe.algorithms.grpo import grpo
from recipe.algorithms.registry import advantage


@advantage(rephrasings=True)
def ta_grpo(rewards_B: Numbers, group_B: Numbers) -> torch.Tensor:
    """Eq. 3: A_i^n = (R_i^n - mean) / (std + 1e-6) over the (N+1)G rewards of a question.

    `group_B` holds the question's id (`recipe.trainer.batch` fills it): the same for its G
    responses to the question itself (n = 0) and to each of its N rephrasings. For a question with
    fewer rephrasings the group keeps its size, and texts repeat (`prompt_aug.draw.rephrasing`). If
    the (N+1)G rewards are equal, all are exactly 0. Equation, units, errors and departures are
    those of `grpo`.
    """
    return grpo(rewards_B, group_B)


@advantage(group="rephrasing", rephrasings=True)
def ta_grpo_star(rewards_B: Numbers, group_B: Numbers) -> torch.Tensor:
    """A_i^n = (R_i^n - mean) / (std + 1e-6) over the G rewards of one rephrasing q^n.

    `group_B` must hold an id per rephrasing: the question and each of its N rephrasings are N + 1
    groups of G. The rest is as in `ta_grpo`.
    """
    return grpo(rewards_B, group_B)
