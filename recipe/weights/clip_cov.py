"""Clip-Cov (arXiv 2505.22617), made independent of how the batch is cut into micro-batches.

Symbols: B responses, T token positions, N real tokens of the batch, c covariance of a token.
"""

import torch

from recipe.advantages.groups import Numbers
from recipe.weights.covariance import covariance_of
from recipe.weights.tokens import checked


def clip_cov(
    logprobs_BT: Numbers,
    advantages_BT: Numbers,
    mask_BT: Numbers,
    group_B: Numbers,
    *,
    ratio: float = 0.0002,
    lower: float = 1.0,
    upper: float = 5.0,
    seed: int = 0,
) -> torch.Tensor:
    """w_BT in {0, 1}: 0 for max(int(ratio N), 1) random tokens with lower < c < upper.

    c is centred over the batch's real tokens. Fewer lose their gradient where fewer qualify. They
    are drawn by a generator seeded with `seed` from the candidates in (row, token) order: the order
    of rows decides which, so sort the rows for a draw that repeats. float64, 0 where the mask is 0.
    verl's ``clip_cov`` differs: its statistics are a micro-batch's, its log-probabilities the
    current policy's (ours: the sampling policy's), and tokens that the PPO clip stops already are
    no candidates.
    ValueError for a ratio outside (0, 1], lower >= upper, and what `tokens.checked` refuses.
    """
    if not 0 < ratio <= 1:
        raise ValueError(f"ratio={ratio}: a share of the tokens, above 0 and at most 1")
    if not lower < upper:
        raise ValueError(f"lower={lower}, upper={upper}: no covariance lies between them")
    tokens = checked(logprobs_BT, advantages_BT, mask_BT, group_B)
    c_BT = covariance_of(tokens, centre="batch", advantage_centre="batch")
    candidates = ((c_BT > lower) & (c_BT < upper) & tokens.mask_BT).nonzero()
    count = max(int(ratio * int(tokens.mask_BT.sum())), 1)
    generator = torch.Generator().manual_seed(seed)
    drawn = candidates[torch.randperm(len(candidates), generator=generator)[:count]]
    weights_BT = tokens.mask_BT.double()
    weights_BT[drawn[:, 0], drawn[:, 1]] = 0.0
    return weights_BT
