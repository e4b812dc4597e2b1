"""Balanced Aggregation (arXiv 2605.04077): a separate token mean for each sign of advantage."""

import torch

from recipe.algorithms.groups import Numbers, group_sum
from recipe.algorithms.registry import token_weight
from recipe.algorithms.tokens import Tokens, validated


@token_weight(inputs=("tokens",))
def balanced(
    logprobs_BT: Numbers,
    advantages_BT: Numbers,
    mask_BT: Numbers,
    group_B: Numbers,
    *,
    tokens: Tokens | None = None,
) -> torch.Tensor:
    """w = (n / G) (1 / L) (N / P) at the tokens of a response.

    Of the G responses of its group, n have the sign of its advantage, with L tokens in all. The
    batch has P groups and N tokens. With ``loss_agg_mode=token-mean``, which divides by N, the loss
    is the mean over groups of (n+ / G) mean+ + (n- / G) mean-, with means over the tokens of a
    sign. Advantages of 0 form their own subset, without a gradient. The mean weight is 1.
    Returns float64 of shape B x T, 0 where the mask is 0. Errors as `tokens.validated`.
    Departure: with several mini-batches verl divides by the tokens of each, so the means of
    mini-batches with unequal token counts are approximate.
    """
    tokens = tokens or validated(logprobs_BT, advantages_BT, mask_BT, group_B)
    sign_B = tokens.advantages_BT.sum(1).sign().long() + 1  # 0 negative, 1 zero, 2 positive
    real_B = (tokens.lengths_B > 0).double()
    subset_B, subsets = 3 * tokens.group_B + sign_B, 3 * tokens.groups
    count_B = group_sum(real_B, subset_B, subsets)[subset_B]
    length_B = group_sum(tokens.lengths_B, subset_B, subsets)[subset_B].clamp(min=1)
    size_B = tokens.total(real_B, "group").clamp(min=1)
    groups = int((group_sum(real_B, tokens.group_B, tokens.groups) > 0).sum())
    scale_B = count_B / size_B / length_B * tokens.lengths_B.sum() / max(groups, 1)
    return scale_B[:, None] * tokens.mask_BT
