"""Clip-Cov (arXiv 2505.22617), independent of how the batch is cut into micro-batches.

Symbols: B responses, T token positions, N real tokens of the batch, c covariance of a token.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from recipe.algorithms.covariance import covariance_of, require_choice
from recipe.algorithms.groups import Numbers
from recipe.algorithms.registry import token_weight
from recipe.algorithms.tokens import Tokens, validated


def settings(section: Mapping[str, Any]) -> dict[str, Any]:
    """Validate recipe.weights.clip_cov, {ratio, lower, upper}; None is the default."""
    given = {"ratio": 0.0002, "lower": 1.0, "upper": 5.0}
    for key, value in section.items():
        require_choice("a key of clip_cov", key, tuple(given))
        given[key] = given[key] if value is None else float(value)
    if not 0 < given["ratio"] <= 1:
        raise ValueError(f"ratio={given['ratio']}: a share of the tokens, above 0 and at most 1")
    if not given["lower"] < given["upper"]:
        raise ValueError(
            f"lower={given['lower']}, upper={given['upper']}: no covariance lies between them"
        )
    return given


@token_weight(inputs=("seed", "key_B", "tokens"), settings=settings)
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
    key_B: Numbers | None = None,
    tokens: Tokens | None = None,
) -> torch.Tensor:
    """w_BT in {0, 1}: 0 for max(int(ratio N), 1) random tokens with lower < c < upper.

    c is centered over the batch's real tokens. If fewer tokens qualify, all of those lose their
    gradient. The drawn tokens are those with the smallest hash of (`seed`, the row's integer in
    `key_B`, token position). The draw does not depend on the order of rows, and an added candidate
    does not reorder the others. Without `key_B` a row's key is its index. Returns float64, 0 where
    the mask is 0. `tokens`: the first four inputs, already validated.
    verl's ``clip_cov`` differs: it takes statistics over a micro-batch, uses the current policy's
    log-probabilities (ours: the sampling policy's), and excludes tokens that the PPO clip stops.
    ValueError for a ratio outside (0, 1], lower >= upper, and inputs that `tokens.validated`
    rejects.
    """
    settings({"ratio": ratio, "lower": lower, "upper": upper})
    tokens = tokens or validated(logprobs_BT, advantages_BT, mask_BT, group_B)
    c_BT = covariance_of(tokens, centre="batch", advantage_centre="batch")
    candidates = ((c_BT > lower) & (c_BT < upper) & tokens.mask_BT).nonzero()
    count = max(int(ratio * int(tokens.mask_BT.sum())), 1)
    keys = np.arange(len(tokens.mask_BT)) if key_B is None else np.asarray(key_B)
    places = token_hash(seed, keys[candidates[:, 0].numpy()], candidates[:, 1].numpy())
    drawn = candidates[torch.from_numpy(np.argsort(places)[:count])]
    weights_BT = tokens.mask_BT.double()
    weights_BT[drawn[:, 0], drawn[:, 1]] = 0.0
    return weights_BT


def token_hash(seed: int, keys: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """A uint64 for every token: SplitMix64's finalizer over seed, row key and position."""
    with np.errstate(over="ignore"):  # arithmetic is modulo 2^64
        x = np.full(len(keys), seed % 2**64, np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        for part in (keys, positions):
            x = x + part.astype(np.int64).view(np.uint64) * np.uint64(0xD1342543DE82EF95)
            x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            x = x ^ (x >> np.uint64(31))
    return x
