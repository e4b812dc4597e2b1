"""Token weights for an ablation of CW-GRPO; no paper has them.

c is a token's covariance and sigma its standard deviation over the group, both as in the preset
``paper`` of `recipe.algorithms.cw_grpo`.
"""

from collections.abc import Mapping
from typing import Any

import torch

from recipe.algorithms.covariance import covariance_of, require_choice
from recipe.algorithms.cw_grpo import exponent_of
from recipe.algorithms.groups import Numbers
from recipe.algorithms.registry import token_weight
from recipe.algorithms.tokens import validated


def settings(section: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of `covariance_split` after validation. Raises ValueError."""
    for key in section:
        require_choice("an argument of covariance_split", key, ("widths", "extremes"))
    widths, extremes = section.get("widths", 1.0), section.get("extremes", False)
    number = isinstance(widths, int | float) and not isinstance(widths, bool)
    if not (number and 0 < widths < float("inf")):
        raise ValueError(f"widths={widths!r} must be a number above 0")
    if not isinstance(extremes, bool):
        raise ValueError(f"extremes={extremes!r} must be true or false")
    return dict(section)


@token_weight(settings=settings)
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

    With widths=1 the first is CW-GRPO's weight before normalization, and the second is what CW-GRPO
    removes. The two gradients add up to GRPO's, so nothing is normalized here. Where sigma = 0 (a
    zero-variance group) the exponential is 1. float64. Raises ValueError for inputs that `settings`
    or `tokens.validated` rejects.
    """
    settings({"widths": widths, "extremes": extremes})
    tokens = validated(logprobs_BT, advantages_BT, mask_BT, group_B)
    c_BT = covariance_of(tokens, centre="group", advantage_centre="responses")
    kernel_BT = torch.exp(exponent_of(c_BT, tokens, "group") / widths**2)
    return (1.0 - kernel_BT if extremes else kernel_BT) * tokens.mask_BT
