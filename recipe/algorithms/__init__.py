"""The algorithms: one file each. Pure functions of whole groups, in float64; torch and numpy only.

`ADVANTAGES`: name -> function (rewards_B, group_B) -> advantages_B. Every one gives exactly 0 to a
group whose rewards are all equal, a group of one included, refuses rewards that are not finite, and
does not depend on the order of the rows or the ids of the groups.

`TOKEN_WEIGHTS`: name -> function (logprobs_BT, advantages_BT, mask_BT, group_B, **settings) ->
weights_BT, which multiply the advantages; 0 where the mask is 0. Statistics are over whole groups,
or the whole batch: micro-batches, padding and data-parallel ranks change nothing.
"""

from collections.abc import Callable

import torch

from recipe.algorithms.clip_cov import clip_cov
from recipe.algorithms.cw_grpo import gaussian_covariance
from recipe.algorithms.dr_grpo import dr_grpo
from recipe.algorithms.groups import Numbers
from recipe.algorithms.grpo import grpo
from recipe.algorithms.maxrl import maxrl
from recipe.algorithms.none import none
from recipe.algorithms.rloo import rloo
from recipe.algorithms.ta_grpo import ta_grpo
from recipe.algorithms.ta_grpo_star import ta_grpo_star

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

TOKEN_WEIGHTS: dict[str, Callable[..., torch.Tensor]] = {
    "gaussian_covariance": gaussian_covariance,
    "clip_cov": clip_cov,
}
