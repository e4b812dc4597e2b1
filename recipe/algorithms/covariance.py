"""The covariance of a token: its contribution to Cov(log pi, A), which drives the entropy.

Used by the Gaussian weights (arXiv 2605.11538) and by Clip-Cov (arXiv 2505.22617). Symbols: B
responses, T token positions, c the covariance of a token, in nats x units of the advantage.
"""

import dataclasses

import numpy as np
import torch

from recipe.algorithms.groups import Numbers, float64
from recipe.algorithms.tokens import Tokens

CENTRES = ("group", "sequence", "batch")
ADVANTAGE_CENTRES = ("tokens", "responses", "batch")
# Shares in units of 0.01 %: with integers the ranks are exact.
PERCENTILES = {"p0.01": 1, "p1": 100, "p20": 2000, "p40": 4000, "p100": 10000}


def covariance_of(tokens: Tokens, *, centre: str, advantage_centre: str) -> torch.Tensor:
    """c_BT = (logp - mean logp) (A - mean A) at real tokens, 0 where the mask is 0; float64.

    `centre` names the tokens over which log-probabilities are averaged: ``group`` (all real tokens
    of the group's responses), ``sequence`` (those of each response), ``batch``.
    `advantage_centre`: ``responses`` (each response of the group counts once, a response without
    real tokens not at all: arXiv 2605.11538), ``tokens`` (the group's real tokens: with centre
    ``group`` the mean of c is then the covariance over tokens), ``batch`` (all tokens of the
    batch). A scope of equal advantages, or of equal log-probabilities, has c = 0 exactly.
    Cached in `tokens`: do not modify it. ValueError for an unknown scope.
    """
    require_choice("centre", centre, CENTRES)
    require_choice("advantage_centre", advantage_centre, ADVANTAGE_CENTRES)
    scopes = (centre, advantage_centre)
    if scopes not in tokens.covariances:
        logp_B = tokens.mean(tokens.logprobs_BT, centre)
        if advantage_centre == "responses":
            mean_B = _mean_over_responses(tokens)
        else:
            scope = "group" if advantage_centre == "tokens" else "batch"
            mean_B = tokens.mean(tokens.advantages_BT, scope)
        c_BT = tokens.logprobs_BT - logp_B[:, None]
        c_BT.mul_(tokens.advantages_BT - mean_B[:, None]).mul_(tokens.mask_BT)
        tokens.covariances[scopes] = c_BT
    return tokens.covariances[scopes]


def _mean_over_responses(tokens: Tokens) -> torch.Tensor:
    """The group's mean of its responses' advantages, shape B; every response counts once."""
    # Each response becomes a row of one token, so the mean over tokens is over responses.
    responses = dataclasses.replace(
        tokens,
        mask_BT=tokens.mask_BT.any(1, keepdim=True),
        lengths_B=tokens.lengths_B.clamp(max=1),
        first_B=torch.zeros_like(tokens.first_B),
    )
    return responses.mean(tokens.mean(tokens.advantages_BT, "sequence")[:, None], "group")


def require_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """ValueError naming the choices unless `value` is one of them."""
    if value not in choices:
        raise ValueError(f"{name}={value!r} is unknown: choose one of {', '.join(choices)}")


def covariance_metrics(c_BT: Numbers, mask_BT: Numbers) -> dict[str, float]:
    """The distribution of c over real tokens, as in Table 1 of arXiv 2605.11538.

    ``covariance/positive/p20``: the k-th largest of the n positive values, k = ceil(0.2 n).
    ``negative``: the same for the negative values, from the most negative one up. ``.../p100`` is
    thus the value nearest to 0. ``covariance/positive/mean`` is over the positive values,
    ``covariance/mean`` and ``covariance/std`` (population) over all.
    ``covariance/positive/share_p20``: the share of the sum of the positive values that those 20
    percent hold, as in Figure 3 (cumulative contribution). 0.0 without values.
    The table's row for 100 % (0.06 and -0.04) is not the mean over all positives: that is at least
    0.4 x 0.33 = 0.13 given its 40 % row. The paper does not say what it is.
    ValueError if the shapes differ.
    """
    c, mask = float64(c_BT), torch.as_tensor(mask_BT, device="cpu") != 0
    if c.shape != mask.shape:
        raise ValueError(f"c of shape {tuple(c.shape)} with a mask of shape {tuple(mask.shape)}")
    values = c[mask].numpy()
    metrics = {
        "covariance/mean": float(values.mean()) if values.size else 0.0,
        "covariance/std": float(values.std()) if values.size else 0.0,
    }
    sides = (("positive", 1.0, values[values > 0]), ("negative", -1.0, -values[values < 0]))
    for name, sign, side in sides:
        mean = float(side.mean()) if side.size else 0.0
        metrics[f"covariance/{name}/mean"] = sign * mean if mean else 0.0
        for key, (value, share) in _percentiles(side).items():
            metrics[f"covariance/{name}/{key}"] = sign * value if value else 0.0
            if key != "p100":
                metrics[f"covariance/{name}/share_{key}"] = share
    return metrics


def _percentiles(values: np.ndarray) -> dict[str, tuple[float, float]]:
    """Return {p: (the k-th largest value, share of the k largest in the sum)}, k = ceil(p n).

    `values` are n positive numbers; without any, all entries are 0.
    """
    n = values.size
    if n == 0:
        return dict.fromkeys(PERCENTILES, (0.0, 0.0))
    places = {key: n + (-n * share // 10000) for key, share in PERCENTILES.items()}
    ordered = np.partition(values, sorted(set(places.values())))
    total = float(values.sum())
    return {
        key: (float(ordered[place]), float(ordered[place:].sum()) / total)
        for key, place in places.items()
    }
