"""GMPO with the right scale: verl's own loss, independent of the micro-batch size.

For a response of T tokens with advantage A (arXiv 2507.20673):

    x_t = log p_t - log p_old_t
    y_t = sign(A) min(sign(A) x_t, sign(A) clip(x_t, -low, high)),   loss = -A exp(sum_t y_t / T)

verl 0.9.1's ``geo_mean`` takes a plain mean over the sequences of a micro-batch, and its engine
adds up the losses of the micro-batches. With k of them the policy term is k times too large, which
also changes the weight of gradient clipping and of the KL term. All other losses of verl divide by
the mini-batch. Here, with n sequences in the micro-batch, B in the mini-batch, D data-parallel
ranks:

    gmpo = geo_mean * n D / B

so that the sum over micro-batches, averaged over ranks by FSDP, is the mean over the mini-batch.

``method=gmpo`` sets ``actor_rollout_ref.actor.policy_loss._target_`` to
``recipe.algorithms.gmpo.GMPOLossConfig``, so every actor process imports this module.
"""

from dataclasses import dataclass
from typing import Any

import torch
from verl.trainer.ppo.core_algos import get_policy_loss_fn, register_policy_loss
from verl.workers.config import PolicyLossConfig


@dataclass
class GMPOLossConfig(PolicyLossConfig):
    """verl's settings of a policy loss; importing this class registers ``gmpo``."""


@register_policy_loss("gmpo")
def gmpo(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Geometric-mean policy optimization, arXiv 2507.20673; arguments as verl passes them.

    Without the sizes of the mini-batch in ``config.global_batch_info`` the loss is verl's own.
    """
    loss, metrics = get_policy_loss_fn("geo_mean")(
        old_log_prob, log_prob, advantages, response_mask, loss_agg_mode, config, rollout_is_weights
    )
    sizes = config.global_batch_info
    if sizes.get("global_batch_size"):
        loss = loss * len(log_prob) * sizes.get("dp_size", 1) / sizes["global_batch_size"]
    return loss, metrics
