"""Token weights that ask where CW-GRPO's effect comes from. No paper has them.

c is a token's covariance and sigma its standard deviation over the group, both as CW-GRPO's preset
``paper`` has them (`recipe.algorithms.cw_grpo`).
"""

import torch

from recipe.algorithms.covariance import covariance_of
from recipe.algorithms.cw_grpo import variance_of
from recipe.algorithms.groups import Numbers
from recipe.algorithms.tokens import checked


def covariance_split(
    logprobs_BT: Numbers,
    advantages_BT: Numbers,
    mask_BT: Numbers,
    group_B: Numbers,
    *,
    widths: float = 1.0,
    extremes: bool = False,
) -> torch.Tensor:
    """w = exp(-c^2 / (2 (widths sigma)^2)), or with `extremes` 1 minus that; 0 where the mask is 0.

    With widths=1 the first is CW-GRPO's weight before it is made to have mean 1, and the second
    what CW-GRPO takes away: the two gradients add up to GRPO's, so nothing is normalised here.
    Where sigma = 0 (a group without signal) the exponential is 1. float64. ValueError for widths
    that are not above 0 and for what `tokens.checked` refuses.
    """
    if not widths > 0:
        raise ValueError(f"widths={widths!r} must be above 0")
    tokens = checked(logprobs_BT, advantages_BT, mask_BT, group_B)
    c_BT = covariance_of(tokens, centre="group", advantage_centre="responses")
    variance_B = variance_of(c_BT, tokens, "group")
    scale_B = torch.where(variance_B > 0, 0.5 / (widths**2 * variance_B), 0.0)
    kernel_BT = torch.exp(-c_BT.square() * scale_B[:, None])
    return (1.0 - kernel_BT if extremes else kernel_BT) * tokens.mask_BT
