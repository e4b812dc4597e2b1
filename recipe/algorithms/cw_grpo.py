"""CW-GRPO (arXiv 2605.11538, section 2.3): tokens of extreme covariance count less.

Symbols: B responses, T token positions, N tokens of a group, c covariance (`recipe.algorithms.
covariance`), sigma its standard deviation, w a weight without unit.

The paper leaves four choices open; the authors' public code makes its own. Each is a key, and
`PRESETS` holds both answers:

- ``centre``: the tokens over which log pi is averaged: all of the group | each response by itself.
- ``advantage_centre``: the paper's text ("means ... computed over responses") and the code average
  A over responses; ``tokens``, where long responses weigh more, is there for comparison.
- ``sigma``: over the group | over the batch. The code takes it over a micro-batch, which in the
  authors' run was one group of 12. Our weights never depend on the size of a micro-batch.
- ``normaliser``: mean weight 1 over the real tokens of the group | of the batch; ``padded``, as in
  the code, counts padding in N as well: rows x longest response of the group.

The paper does not state the temperature of log pi either. Its runs, and examples/cw_grpo, sample at
0.7. verl divides logits by the rollout's temperature, so by default (preset ``paper``) log pi is
that of the distribution that was sampled. The authors' code, and the preset ``official_code``, use
temperature 1. ``logprob_temperature`` sets it; a value other than the rollout's costs one more
forward pass of the actor in every step (`RecipeTrainer`).

The paper does not say whether w is a constant. ``gradient`` decides; w is computed once per step on
the driver, from the log-probabilities of the policy that starts it:

- ``detached``: w is a constant. Multiplying the advantage is enough: min, max and dual clip of
  verl's loss are positively homogeneous in A, so the clipped loss of w A is w times that of A.
- ``through``: the gradient flows through w as well, as in the authors' code, by an advantage that
  `through_weights` adds. This needs one optimizer step per batch, and ratio and log pi at one
  temperature, 1 as theirs: the trainer then takes both at ``logprob_temperature``. `recipe.config.
  compose.not_through` has the conditions; ``null`` is ``through`` where they hold.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import torch

from recipe.algorithms.covariance import ADVANTAGE_CENTRES, CENTRES, covariance_of, require_choice
from recipe.algorithms.groups import Numbers, group_extremes
from recipe.algorithms.registry import token_weight
from recipe.algorithms.tokens import Tokens, validated

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
GRADIENTS = ("detached", "through")
TEMPERATURES = {"paper": None, "official_code": 1.0}  # None: the rollout's
# A sigma this small relative to the largest |c| is rounding: every c of the scope is equal.
SMALLEST_SIGMA = 1e-12


def settings(section: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `gaussian_covariance`, and logprob_temperature and gradient.

    `section` is recipe.weights.gaussian_covariance of the configuration. A missing value, or None,
    is taken from the preset, by default ``paper``, and the gradient is ``detached``: a composed
    configuration has it. ValueError, naming the choices, for an unknown key, preset or value.
    """
    keys = (*CHOICES, "logprob_temperature", "gradient")
    for key in section:
        require_choice("a key of gaussian_covariance", key, ("preset", *keys))
    preset = section.get("preset") or "paper"
    require_choice("preset", preset, tuple(PRESETS))
    given = {key: section[key] for key in keys if section.get(key) is not None}
    for key in CHOICES.keys() & given.keys():
        require_choice(key, given[key], CHOICES[key])
    temperature = given.get("logprob_temperature", 1.0)
    if not isinstance(temperature, int | float) or not 0 < temperature < float("inf"):
        raise ValueError(f"logprob_temperature={temperature!r} must be a number above 0")
    require_choice("gradient", given.setdefault("gradient", "detached"), GRADIENTS)
    return {**PRESETS[preset], "logprob_temperature": TEMPERATURES[preset], **given}


@token_weight(inputs=("tokens",), settings=settings)
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
    tokens: Tokens | None = None,
) -> torch.Tensor:
    """w_BT = exp(-c^2 / (2 sigma^2)) N / (sum of exp(...)): mean 1 over the group's real tokens.

    `logprobs_BT` in nats, `advantages_BT` each response's advantage at its real tokens, `mask_BT`
    not 0 there, `group_B` integer ids. sigma is the population standard deviation of c; the paper
    does not say which, and over thousands of tokens the two agree. float64, 0 where the mask is 0.
    Where sigma = 0 (a zero-variance group) the exponential is 1. The keys: see the module.
    `tokens`: the same four inputs, already validated.
    Departure: with ``normaliser="padded"`` the mean over real tokens is N / real tokens, above 1.
    ValueError for an unknown choice and for inputs that `tokens.validated` rejects.
    """
    chosen = (centre, advantage_centre, sigma, normaliser)
    for (name, choices), value in zip(CHOICES.items(), chosen, strict=True):
        require_choice(name, value, choices)
    tokens = tokens or validated(logprobs_BT, advantages_BT, mask_BT, group_B)
    c_BT = covariance_of(tokens, centre=centre, advantage_centre=advantage_centre)
    log_BT = exponent_of(c_BT, tokens, sigma).masked_fill_(~tokens.mask_BT, -torch.inf)
    # Shift the largest of the scope to 1, so that not all underflow to 0; the factor cancels.
    scope = "batch" if normaliser == "batch" else "group"
    shift_B = _largest(log_BT.detach().amax(1), tokens, scope)
    kernel_BT = log_BT.sub_(torch.where(torch.isfinite(shift_B), shift_B, 0.0)[:, None]).exp_()
    sum_B = tokens.total(kernel_BT.sum(1), scope)
    if normaliser == "padded":
        rows_B = tokens.total(torch.ones_like(tokens.lengths_B), "group")
        count_B = rows_B * _largest(tokens.lengths_B, tokens, "group")
    else:
        count_B = tokens.total(tokens.lengths_B, normaliser)
    # Not in place, and no division by 0: `through_weights` differentiates.
    return kernel_BT * (count_B / torch.where(sum_B > 0, sum_B, torch.inf))[:, None]


def through_weights(
    weight: Callable[[Tokens], torch.Tensor], tokens: Tokens, loss_agg_mode: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (w_BT, g_BT): the advantage w A + g has the gradient of the loss through w.

        F(x) = sum_{i,t} w_{i,t}(x) A_{i,t} / n_i,    g_{i,t} = n_i dF / dx_{i,t},    x = log pi

    where verl's loss divides every token of response i by n_i, and all of them by one number: n_i
    is the response's count of real tokens in `loss_agg_mode` ``seq-mean-token-mean``, else 1. At
    the first update of a batch the ratio r is 1, so the gradient of sum w r A / n in the parameters
    is sum (w A + g) / n dx. KL and entropy losses stay outside w. `weight`: tokens -> w_BT.

    g is not a weight: it is not 0 at A = 0 unless the mean of A is. It has no bound, and grows as
    1 / spread of log pi. Laws: the sum of g / n over a response is 0 with centre ``sequence``, over
    a group with centre ``group``; sum (x - mean) g / n over a group is 0; a group of equal rewards
    has g = 0. Source: the authors' grpo_trainer.py (WangCheng0116/CW-GRPO at 4259d83), lines 744 to
    850. Departure: theirs adds 1e-8 to sigma.
    """
    x_BT = tokens.logprobs_BT.clone().requires_grad_()
    by_response = loss_agg_mode == "seq-mean-token-mean"
    n_B = tokens.lengths_B.clamp(min=1) if by_response else torch.ones_like(tokens.lengths_B)
    w_BT = weight(dataclasses.replace(tokens, logprobs_BT=x_BT))
    (gradient_BT,) = torch.autograd.grad((w_BT * tokens.advantages_BT / n_B[:, None]).sum(), x_BT)
    return w_BT.detach(), gradient_BT * n_B[:, None]


def exponent_of(c_BT: torch.Tensor, tokens: Tokens, scope: str) -> torch.Tensor:
    """-c^2 / (2 sigma^2), sigma over `scope`; 0 where sigma is no larger than the rounding of c."""
    count_B = tokens.total(tokens.lengths_B, scope).clamp(min=1)
    mean_B = tokens.total(c_BT.sum(1), scope) / count_B
    deviation_BT = (c_BT - mean_B[:, None]).mul_(tokens.mask_BT).square_()
    variance_B = tokens.total(deviation_BT.sum(1), scope) / count_B
    signal_B = variance_B.sqrt() > SMALLEST_SIGMA * _largest(c_BT.abs().amax(1), tokens, scope)
    scale_B = torch.where(signal_B, -0.5 / torch.where(signal_B, variance_B, 1.0), 0.0)
    return c_BT.square().mul_(scale_B[:, None])


def _largest(values_B: torch.Tensor, tokens: Tokens, scope: str) -> torch.Tensor:
    index_B, scopes = tokens.scope(scope)
    return group_extremes(values_B, index_B, scopes)[1][index_B]
