"""80/20 (arXiv 2506.01939): only the tokens of highest entropy have a gradient."""

import math

import torch

from recipe.algorithms.groups import Numbers, float64
from recipe.algorithms.registry import token_weight
from recipe.algorithms.tokens import Tokens, validated


@token_weight(inputs=("entropy_BT", "tokens"))
def high_entropy(
    logprobs_BT: Numbers,
    advantages_BT: Numbers,
    mask_BT: Numbers,
    group_B: Numbers,
    *,
    entropy_BT: torch.Tensor | None,
    ratio: float = 0.2,
    tokens: Tokens | None = None,
) -> torch.Tensor:
    """w = N / k at the k tokens whose entropy reaches the ceil(ratio N)-th largest, else 0.

    N real tokens of the batch; k is larger than ceil(ratio N) only if entropies are equal. The mean
    weight is 1: with ``loss_agg_mode=token-mean`` the loss is the mean over the k tokens, as in the
    authors' code (Shenzhi-Wang/Beyond-the-80-20-Rule-RLVR), whose ratio is 0.2.
    `entropy_BT` in nats, of the policy that starts the step. ValueError for a ratio outside (0, 1]
    and without entropies, which verl does not compute in bypass mode.
    Departures: the authors take the threshold over a micro-batch and the current policy. With
    several mini-batches verl divides by the tokens of each, so the mean is approximate.
    """
    if not 0 < ratio <= 1:
        raise ValueError(f"ratio={ratio}: must lie in (0, 1]")
    if entropy_BT is None:
        raise ValueError("no entropies: bypass mode computes none")
    tokens = tokens or validated(logprobs_BT, advantages_BT, mask_BT, group_B)
    mask = tokens.mask_BT
    count = int(mask.sum())
    if not count:
        return mask.double()
    entropy = float64(entropy_BT)
    threshold = entropy[mask].kthvalue(count - math.ceil(ratio * count) + 1).values
    chosen = mask & (entropy >= threshold)
    return chosen.double() * (count / int(chosen.sum()))
