"""FIPO (arXiv 2603.19835): each token's advantage grows with the log-ratios from it on.

``method=fipo`` sets ``actor_rollout_ref.actor.policy_loss._target_`` to
``recipe.algorithms.fipo.FIPOLossConfig``, so every actor process imports this module, which
registers the loss ``fipo``.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from verl.trainer.ppo.core_algos import compute_policy_loss_vanilla, register_policy_loss
from verl.utils.torch_functional import masked_mean
from verl.workers.config import PolicyLossConfig

LARGEST = 20.0  # nats: verl cuts the log-ratio of a token here
SAFE = (0.8, 1.0)  # range of the factor for a negative token of large ratio


@dataclass
class FIPOLossConfig(PolicyLossConfig):
    """verl's settings of a policy loss, and FIPO's; defaults: the authors' run with 32B.

    `half_life` in tokens; the factor lies in [`low`, `high`]. The authors suggest low=0.8 for
    models of 7B and smaller. Above a ratio of `safe_ratio` a negative token's factor is at most 1.
    """

    half_life: float = 32.0
    low: float = 1.0
    high: float = 1.2
    safe_ratio: float = 10.0

    def __post_init__(self) -> None:
        for name, valid, limits in (
            ("half_life", self.half_life > 0, "above 0"),
            ("low", 0 < self.low <= 1, "above 0 and at most 1"),
            ("high", self.high >= 1, "1 or more"),
            ("safe_ratio", self.safe_ratio > 0, "above 0"),
        ):
            if not valid:
                raise ValueError(f"policy_loss.{name}={getattr(self, name)}: must be {limits}.")


def discounted_sum(values_BT: torch.Tensor, gamma: float) -> torch.Tensor:
    """S_t = sum over k >= t of gamma^(k - t) x_k, in log2(T) steps that double the window."""
    sum_BT, width = values_BT, 1
    while width < values_BT.shape[1]:
        later_BT = torch.nn.functional.pad(sum_BT[:, width:], (0, width))
        sum_BT, width = sum_BT + gamma**width * later_BT, 2 * width
    return sum_BT


@register_policy_loss("fipo")
def fipo(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """PPO's clipped loss of f_t A_t, with a factor f_t from the tokens k >= t; arguments: verl's.

        d_k = log pi(o_k) - log pi_old(o_k)      0 if masked or if the ratio exceeds clip_ratio_c
        F_t = sum over k >= t of 2^(-(k - t) / half_life) d_k                      "future KL"
        f_t = clip(exp(F_t), low, high)          not differentiated

    If A_t < 0 and the ratio exceeds `safe_ratio`, f_t is also clipped to [0.8, 1]. A response with
    two or more tokens in the dual clip (A_t < 0, ratio above clip_ratio_c) has no gradient. All
    tensors are (responses, tokens). At the first optimizer step of a batch d = 0, and this is
    PPO's loss. Computed per response, so micro-batches do not matter.

    Source: the authors' code (qwenpilot/FIPO at 1493daf, `compute_policy_loss_future_kl`).
    Departure: it divides by the tokens of the responses that keep their gradient in a micro-batch;
    here verl divides by all tokens of the mini-batch.
    """
    settings = config.policy_loss
    log_ratio_BT = (log_prob - old_log_prob).detach().clamp(-LARGEST, LARGEST)
    mask_BT, negative_BT = response_mask.bool(), advantages < 0
    outside_BT = log_ratio_BT > math.log(config.clip_ratio_c)
    counted_BT = torch.where(mask_BT & ~outside_BT, log_ratio_BT, 0.0)
    factor_BT = discounted_sum(counted_BT, 2 ** (-1 / settings.half_life)).exp()
    factor_BT = factor_BT.clamp(settings.low, settings.high)
    large_BT = negative_BT & (log_ratio_BT > math.log(settings.safe_ratio))
    factor_BT = torch.where(large_BT, factor_BT.clamp(*SAFE), factor_BT)
    kept_B = (mask_BT & negative_BT & outside_BT).sum(-1, keepdim=True) < 2
    loss, metrics = compute_policy_loss_vanilla(
        old_log_prob,
        log_prob,
        advantages * factor_BT * kept_B,
        response_mask,
        loss_agg_mode,
        config,
        rollout_is_weights,
    )
    metrics["actor/fipo_factor"] = masked_mean(factor_BT, response_mask).item()
    metrics["actor/fipo_dropped"] = 1 - kept_B.float().mean().item()
    return loss, metrics
