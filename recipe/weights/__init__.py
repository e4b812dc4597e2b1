"""Token weights: pure functions of (logprobs_BT, advantages_BT, mask_BT, group_B), in float64.

A weight multiplies the advantage of its token; 0 where the mask is 0. Statistics are over whole
groups, or the whole batch: micro-batches, padding and data-parallel ranks change nothing.
"""

from collections.abc import Callable

import torch

from recipe.weights.clip_cov import clip_cov
from recipe.weights.gaussian_covariance import gaussian_covariance

WEIGHTS: dict[str, Callable[..., torch.Tensor]] = {
    "gaussian_covariance": gaussian_covariance,
    "clip_cov": clip_cov,
}
