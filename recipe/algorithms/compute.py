"""From rewards to the advantage of every token: what the actor's loss is multiplied with.

    A_i      = ADVANTAGES[name](R_i over the group)                    recipe/advantages
    A_{i,t}  = w_{i,t} A_i,   w = TOKEN_WEIGHTS[name](log pi, A, group)      recipe/weights

Computed on the driver, in float64, over whole groups, without padding rows: the result depends on
neither the micro-batch size nor the number of data-parallel ranks. The actor keeps verl's own
loss: min, max and the dual clip are positively homogeneous in A, so w A through the clipped loss
is the weighted clipped loss. The log-probabilities are those of the policy that starts the step
(verl's ``old_log_probs``): at the first optimizer step of a batch they are the current policy's.

Symbols: B responses, T tokens of the longest; q^n the n-th phrasing of a question.
"""

from dataclasses import dataclass

import torch
from omegaconf import DictConfig
from torch import Tensor

from recipe.algorithms import ADVANTAGES, TOKEN_WEIGHTS
from recipe.algorithms.covariance import covariance_metrics, token_covariance
from recipe.algorithms.cw_grpo import resolve


@dataclass(frozen=True, kw_only=True, slots=True)
class Responses:
    """The real rows of a batch. `question_B` and `text_B` are ids of groups.

    `question_B` is the same for all responses of one visit of a question, neighbours included;
    `text_B` for those to one phrasing of that visit.
    """

    rewards_B: Tensor
    question_B: Tensor
    text_B: Tensor
    logprobs_BT: Tensor
    mask_BT: Tensor
    key_B: Tensor  # int64, a hash of what the response answers and of its number in the group


def group_of(settings: DictConfig) -> str:
    """ "question" or "text": what the advantages of ``recipe.advantage`` are normalised over."""
    return settings.group or ("text" if settings.name == "ta_grpo_star" else "question")


def compute_advantages(
    responses: Responses, advantage: DictConfig, weights: DictConfig, seed: int = 0
) -> tuple[Tensor, dict[str, float]]:
    """(A_BT, metrics): 0 where the mask is 0. Sections ``recipe.advantage``, ``recipe.weights``.

    `seed` matters where tokens are drawn (clip_cov). Metrics: the covariance of the unweighted
    advantages over its group, and of the weights their range and effective share of tokens,
    (sum w)^2 / (N sum w^2), which is 1 for equal weights.
    """
    group_B = responses.text_B if group_of(advantage) == "text" else responses.question_B
    mask_BT = responses.mask_BT
    advantages_B = ADVANTAGES[advantage.name](responses.rewards_B, group_B)
    advantages_BT = advantages_B[:, None] * mask_BT
    inputs = (responses.logprobs_BT, advantages_BT, mask_BT, group_B)
    metrics = covariance_metrics(token_covariance(*inputs), mask_BT)
    if weights.name == "none":
        return advantages_BT, metrics
    if weights.name == "gaussian_covariance":
        weights_BT = TOKEN_WEIGHTS["gaussian_covariance"](
            *inputs, **resolve(weights.gaussian_covariance)
        )
    else:
        weights_BT = TOKEN_WEIGHTS["clip_cov"](
            *inputs, **weights.clip_cov, seed=seed, key_B=responses.key_B
        )
    real = weights_BT[mask_BT.bool()]
    if real.numel():
        metrics["weights/min"], metrics["weights/max"] = real.min().item(), real.max().item()
        metrics["weights/zero"] = (real == 0).double().mean().item()
        share = real.sum() ** 2 / (real.numel() * (real**2).sum())
        metrics["weights/effective_tokens"] = torch.nan_to_num(share).item()
    return advantages_BT * weights_BT, metrics
