"""Advantages: pure functions (rewards_B, group_B) -> advantages_B over whole groups, in float64.

Every one gives exactly 0 to a group whose rewards are all equal, a group of one included, refuses
rewards that are not finite, and does not depend on the order of the rows or the ids of the groups.
"""

from collections.abc import Callable

import torch

from recipe.advantages.dr_grpo import dr_grpo
from recipe.advantages.groups import Numbers
from recipe.advantages.grpo import grpo
from recipe.advantages.maxrl import maxrl
from recipe.advantages.none import none
from recipe.advantages.rloo import rloo
from recipe.advantages.ta_grpo import ta_grpo
from recipe.advantages.ta_grpo_star import ta_grpo_star

Advantage = Callable[[Numbers, Numbers], torch.Tensor]

ADVANTAGES: dict[str, Advantage] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "ta_grpo": ta_grpo,
    "ta_grpo_star": ta_grpo_star,
    "rloo": rloo,
    "maxrl": maxrl,
    "none": none,
}
