"""From the rewards of a batch to the advantage of every token.

    R_i      = reward_i + weight * length_reward(l_i, h)                   HAPO, if enabled
    A_i      = ADVANTAGES[name](R_i over the group)                        recipe.advantage
    A_{i,t}  = w_{i,t} A_i,   w = TOKEN_WEIGHTS[name](log pi, A, group)    recipe.weights
               + g_{i,t}      with CW-GRPO's gradient through w            `through_weights`

Computed on the driver, in float64, over whole groups, without padding rows. The result depends on
neither the micro-batch size nor the number of data-parallel ranks. The actor keeps verl's own
loss: min, max and the dual clip are positively homogeneous in A, so w A through the clipped loss
is the weighted clipped loss. The log-probabilities are those of the policy that starts the step
(verl's ``old_log_probs``). At the first optimizer step of a batch they are the current policy's.

Symbols: B responses, T tokens of the longest; q^n the n-th rephrasing of a question.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from recipe.algorithms.covariance import covariance_metrics, covariance_of
from recipe.algorithms.cw_grpo import through_weights
from recipe.algorithms.groups import float64
from recipe.algorithms.hapo import length_reward
from recipe.algorithms.registry import ADVANTAGES, TOKEN_WEIGHTS
from recipe.algorithms.rollouts import RolloutBatch
from recipe.algorithms.tokens import validated


@dataclass(frozen=True, kw_only=True, slots=True)
class Advantages:
    """The training signal of a step, float64; `advantages_BT` is 0 where no token is trained."""

    rewards_B: Tensor  # from which the advantages were computed
    advantages_BT: Tensor
    returns_BT: Tensor | None  # targets of the critic
    metrics: dict[str, float]


def group_of(advantage: Mapping[str, Any]) -> str:
    """Return "question" or "rephrasing": the group over which ``recipe.advantage`` is taken."""
    return ADVANTAGES.facts(advantage["name"]).group


def logprob_temperature(weights: Mapping[str, Any]) -> float | None:
    """The temperature of the log-probabilities for ``recipe.weights``; None: the rollout's."""
    if weights["name"] == "none":
        return None
    return TOKEN_WEIGHTS.call(weights)[1].get("logprob_temperature")


def ratio_temperature(weights: Mapping[str, Any]) -> float | None:
    """The temperature of ratio, KL and entropy in training; None: the rollout's.

    With a gradient through the weights they have the weights' (`through_weights`).
    """
    if weights["name"] == "none":
        return None
    settings = TOKEN_WEIGHTS.call(weights)[1]
    return settings["logprob_temperature"] if settings.get("gradient") == "through" else None


def compute_advantages(
    rollouts: RolloutBatch, recipe: Mapping[str, Any], loss_agg_mode: str = ""
) -> Advantages:
    """Return the advantage of every token; `recipe` is that section of the configuration.

    `loss_agg_mode` is the actor's, which only a gradient through the weights needs.
    Rows that are not `trained_B` (filtered truncated responses, filler groups) count in the rewards
    of their group, but not in covariances, token weights and draws. Metrics: `covariance_metrics`
    with the advantages before weighting; of the weights, the range, the share of zeros, and the
    effective share of tokens (sum w)^2 / (N sum w^2), which is 1 for equal weights. With a
    gradient through w also `through_metrics`.
    """
    rewards_B, metrics = shaped_rewards(rollouts, recipe["history"])

    by_question = group_of(recipe["advantage"]) == "question"
    group_B = rollouts.group_B if by_question else rollouts.rephrasing_B
    function, arguments = ADVANTAGES.call(recipe["advantage"])
    inputs = ADVANTAGES.facts(recipe["advantage"]["name"]).inputs
    arguments.update({name: getattr(rollouts, name) for name in inputs})
    mask_BT = rollouts.mask_BT & rollouts.trained_B[:, None]
    result = function(rewards_B.clone(), group_B, **arguments)  # it may write into it
    values, returns_BT = result if isinstance(result, tuple) else (torch.as_tensor(result), None)
    values = finite("advantages", values, mask_BT.shape if values.dim() == 2 else rewards_B.shape)
    advantages_BT = torch.where(mask_BT, values if values.dim() == 2 else values[:, None], 0.0)
    matrices = (rollouts.weight_logprobs_BT, advantages_BT, mask_BT, group_B)
    tokens = validated(*matrices)
    c_BT = covariance_of(tokens, centre="group", advantage_centre="responses")
    metrics |= covariance_metrics(c_BT, mask_BT)

    if recipe["weights"]["name"] != "none":
        function, arguments = TOKEN_WEIGHTS.call(recipe["weights"])
        arguments.pop("logprob_temperature", None)  # the trainer has applied it
        for name in TOKEN_WEIGHTS.facts(recipe["weights"]["name"]).inputs:
            arguments[name] = tokens if name == "tokens" else getattr(rollouts, name)
        added_BT: Tensor | None = None
        if arguments.pop("gradient", None) == "through":
            weights, added = through_weights(
                lambda traced: function(*matrices, **{**arguments, "tokens": traced}),
                tokens,
                loss_agg_mode,
            )
            added_BT = finite("advantages through the weights", added, mask_BT.shape)
        else:
            weights = function(*(x.clone() for x in matrices), **arguments)
        weights_BT = finite("weights", weights, mask_BT.shape)
        metrics |= weight_metrics(weights_BT[mask_BT])
        plain_BT, advantages_BT = advantages_BT, advantages_BT * weights_BT
        if added_BT is not None:
            metrics |= through_metrics(plain_BT, advantages_BT, added_BT)
            advantages_BT = advantages_BT + added_BT
    return Advantages(
        rewards_B=rewards_B, advantages_BT=advantages_BT, returns_BT=returns_BT, metrics=metrics
    )


def shaped_rewards(
    rollouts: RolloutBatch, history: Mapping[str, Any]
) -> tuple[Tensor, dict[str, float]]:
    """Return the rewards plus HAPO's length reward, from the history before this step; metrics."""
    if not history["enable"]:
        return rollouts.reward_B, {}
    rows = zip(rollouts.lengths, rollouts.shortest, rollouts.accuracy, strict=True)
    extra = [length_reward(length, shortest, acc == 1.0) for length, shortest, acc in rows]
    extra_B = float(history["weight"]) * torch.tensor(extra, dtype=torch.float64)
    known_share = sum(shortest is not None for shortest in rollouts.shortest) / len(rollouts)
    metrics = {"history/reward": float(extra_B.mean()), "history/known": known_share}
    return rollouts.reward_B + extra_B, metrics


def finite(what: str, values: Tensor, shape: torch.Size) -> Tensor:
    """Return `values` in float64; ValueError for NaN, infinity or another shape."""
    values = float64(values)
    if values.shape != shape:
        raise ValueError(f"{what} of shape {tuple(values.shape)} must have shape {tuple(shape)}")
    if count := int((~torch.isfinite(values)).sum()):
        raise ValueError(f"{count} of {values.numel()} {what} are NaN or infinite")
    return values


def weight_metrics(weights: Tensor) -> dict[str, float]:
    """Metrics of the weights of the N trained tokens; {} without tokens."""
    if not weights.numel():
        return {}
    share = weights.sum() ** 2 / (weights.numel() * (weights**2).sum())
    return {
        "weights/min": weights.min().item(),
        "weights/max": weights.max().item(),
        "weights/zero": (weights == 0).double().mean().item(),
        "weights/effective_tokens": torch.nan_to_num(share).item(),
    }


def through_metrics(plain_BT: Tensor, weighted_BT: Tensor, added_BT: Tensor) -> dict[str, float]:
    """Metrics of the advantages A, w A and g of a gradient through w; 0 where all are 0."""
    total_BT = weighted_BT + added_BT
    tokens = int((plain_BT != 0).sum())
    return {
        "weights/through_ratio": float(added_BT.norm() / weighted_BT.norm()) if tokens else 0.0,
        "weights/through_max": float(total_BT.abs().max()) if total_BT.numel() else 0.0,
        "weights/through_flipped": int((total_BT * plain_BT < 0).sum()) / max(1, tokens),
    }
