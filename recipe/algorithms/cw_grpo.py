"""CW-GRPO (arXiv 2605.11538, section 2.3): tokens of extreme covariance count less.

Symbols: B responses, T token positions, N tokens of a group, c covariance (`recipe.algorithms.
covariance`), sigma its standard deviation, w a weight without unit.

The paper leaves four things open, and the authors' public code answers them in its own way. Each
is a key, `PRESETS` has both answers:

- ``centre``: over which tokens is "mean log pi"? All of the group | each response by itself.
- ``advantage_centre``: "mean A" is over responses in the paper's text ("means ... computed over
  responses") and in the code; ``tokens``, where long responses weigh more, is there to compare.
- ``sigma``: over the group | over the batch. (The code: over a micro-batch, which in the authors'
  run was one group of 12. Ours never is a micro-batch: the weights do not depend on its size.)
- ``normaliser``: mean weight 1 over the real tokens of the group | of the batch; ``padded``, as in
  the code, lets N count padding as well: rows x longest response of the group.

At which temperature log pi is taken the paper does not say either. Its runs, and ours after them,
sample at 0.7. verl divides logits by the rollout's temperature, so by default (preset ``paper``)
log pi is that of the distribution that was sampled; the authors' code takes it at 1, and so does
its preset. ``logprob_temperature`` is the key: where it is not the rollout's, every step has one
more forward pass of the actor (`RecipeTrainer`).

Whether w is detached is moot here: it is made once per step on the driver, from the
log-probabilities of the policy that sampled, and is a constant. The authors' code differentiates
through w, which adds A dw/dtheta to the gradient of every step; no key brings that back.

Multiplying the advantage is enough: min, max and dual clip of verl's loss are positively
homogeneous in A, so that the clipped loss of w A is w times the clipped loss of A.
"""

from collections.abc import Mapping
from typing import Any

import torch

from recipe.algorithms.covariance import ADVANTAGE_CENTRES, CENTRES, covariance_of, known
from recipe.algorithms.groups import Numbers, group_extremes
from recipe.algorithms.registry import token_weight
from recipe.algorithms.tokens import Tokens, checked

CHOICES = {
    "centre": CENTRES,
    "advantage_centre": ADVANTAGE_CENTRES,
    "sigma": ("group", "batch"),
    "normaliser": ("group", "batch", "padded"),
}
PRESETS = {
    "paper": {
        "centre": "group",
        "advantage_centre": "responses",
        "sigma": "group",
        "normaliser": "group",
    },
    "official_code": {
        "centre": "sequence",
        "advantage_centre": "responses",
        "sigma": "group",
        "normaliser": "padded",
    },
}
TEMPERATURES = {"paper": None, "official_code": 1.0}  # None: the rollout's
# A sigma this small beside the largest |c| is rounding: every c of the scope is the same number.
SMALLEST_SIGMA = 1e-12


def settings(section: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `gaussian_covariance`, and logprob_temperature, which is the trainer's.

    `section` is recipe.weights.gaussian_covariance of the configuration: a value of None, or none
    at all, is as the preset says; no preset is ``paper``. ValueError, naming what is known, for
    an unknown key, preset or value.
    """
    keys = (*CHOICES, "logprob_temperature")
    for key in section:
        known("a key of gaussian_covariance", key, ("preset", *keys))
    preset = section.get("preset") or "paper"
    known("preset", preset, tuple(PRESETS))
    given = {key: section[key] for key in keys if section.get(key) is not None}
    for key in CHOICES.keys() & given.keys():
        known(key, given[key], CHOICES[key])
    temperature = given.get("logprob_temperature", 1.0)
    if not isinstance(temperature, int | float) or not 0 < temperature < float("inf"):
        raise ValueError(f"logprob_temperature={temperature!r} must be a number above 0")
    return {**PRESETS[preset], "logprob_temperature": TEMPERATURES[preset], **given}


@token_weight(settings=settings)
def gaussian_covariance(
    logprobs_BT: Numbers,
    advantages_BT: Numbers,
    mask_BT: Numbers,
    group_B: Numbers,
    *,
    centre: str = "group",
    advantage_centre: str = "responses",
    sigma: str = "group",
    normaliser: str = "group",
) -> torch.Tensor:
    """w_BT = exp(-c^2 / (2 sigma^2)) N / (sum of exp(...)): mean 1 over the group's real tokens.

    `logprobs_BT` in nats, `advantages_BT` each response's advantage at its real tokens, `mask_BT`
    not 0 there, `group_B` integer ids. sigma is the population standard deviation of c. The paper
    does not say which; over thousands of tokens the two are the same. float64, 0 where the mask is
    0. Where sigma = 0 (a group without signal) the exponential is 1. The keys: see the module.
    Departure: with ``normaliser="padded"`` the mean over real tokens is N / real tokens, above 1.
    ValueError for an unknown choice and for what `tokens.checked` refuses.
    """
    chosen = {
        "centre": centre,
        "advantage_centre": advantage_centre,
        "sigma": sigma,
        "normaliser": normaliser,
    }
    for name, value in chosen.items():
        known(name, value, CHOICES[name])
    tokens = checked(logprobs_BT, advantages_BT, mask_BT, group_B)
    c_BT = covariance_of(tokens, centre=centre, advantage_centre=advantage_centre)
    kernel_BT, sum_B = _kernel(c_BT, tokens, sigma, "batch" if normaliser == "batch" else "group")
    count_B = _tokens_counted(tokens, normaliser)
    return kernel_BT.mul_(torch.where(sum_B > 0, count_B / sum_B, 0.0)[:, None])


def variance_of(c_BT: torch.Tensor, tokens: Tokens, scope: str) -> torch.Tensor:
    """sigma^2: for every row the population variance of c over the real tokens of its scope."""
    count_B = tokens.total(tokens.lengths_B, scope).clamp(min=1)
    mean_B = tokens.total(c_BT.sum(1), scope) / count_B
    deviation_BT = (c_BT - mean_B[:, None]).mul_(tokens.mask_BT).square_()
    return tokens.total(deviation_BT.sum(1), scope) / count_B


def exponent_of(c_BT: torch.Tensor, tokens: Tokens, scope: str) -> torch.Tensor:
    """-c^2 / (2 sigma^2), sigma over `scope`; 0 where sigma is 0 beside the rounding of c."""
    variance_B = variance_of(c_BT, tokens, scope)
    largest_B = _largest(c_BT.abs().amax(1), tokens, scope)
    signal_B = variance_B.sqrt() > SMALLEST_SIGMA * largest_B
    scale_B = torch.where(signal_B, -0.5 / torch.where(signal_B, variance_B, 1.0), 0.0)
    return c_BT.square().mul_(scale_B[:, None])


def _kernel(
    c_BT: torch.Tensor, tokens: Tokens, sigma: str, scope: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """exp(-c^2 / (2 sigma^2)) up to a factor common to `scope`, and its sum over the scope."""
    log_BT = exponent_of(c_BT, tokens, sigma).masked_fill_(~tokens.mask_BT, -torch.inf)
    # The largest of the scope becomes 1: the factor cancels, and not all can underflow to 0.
    shift_B = _largest(log_BT.amax(1), tokens, scope)
    kernel_BT = log_BT.sub_(torch.where(torch.isfinite(shift_B), shift_B, 0.0)[:, None]).exp_()
    return kernel_BT, tokens.total(kernel_BT.sum(1), scope)


def _largest(values_B: torch.Tensor, tokens: Tokens, scope: str) -> torch.Tensor:
    """For every row the largest of its scope's values."""
    index_B, scopes = tokens.scope(scope)
    return group_extremes(values_B, values_B, index_B, scopes)[1][index_B]


def _tokens_counted(tokens: Tokens, normaliser: str) -> torch.Tensor:
    """N for every row: real tokens of the batch or of the group, or the group's with padding."""
    if normaliser == "padded":
        rows_B = tokens.total(torch.ones_like(tokens.lengths_B), "group")
        return rows_B * _largest(tokens.lengths_B, tokens, "group")
    return tokens.total(tokens.lengths_B, normaliser)
