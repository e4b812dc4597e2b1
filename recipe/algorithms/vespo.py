"""VESPO (arXiv 2602.10693v3): a smooth kernel of the ratio of a whole response, without a clip.

``method=vespo`` sets ``actor_rollout_ref.actor.policy_loss._target_`` to
``recipe.algorithms.vespo.VESPOLossConfig``, so every actor process imports this module, which
registers the loss ``vespo``.
"""

from dataclasses import dataclass
from typing import Any

import torch
from verl.trainer.ppo.core_algos import agg_loss, register_policy_loss
from verl.utils.torch_functional import masked_mean
from verl.workers.config import PolicyLossConfig

LARGEST = 20.0  # nats: the log-ratio of a response is cut here; the kernel is 0 or negligible there


@dataclass
class VESPOLossConfig(PolicyLossConfig):
    """verl's settings of a policy loss, and (c1, c2) by the sign of the advantage.

    Defaults: section 4.1 of the paper, the same in all its experiments. `c1` >= 1 bounds the
    variance (Proposition 3.1).
    """

    positive: tuple[float, float] = (2.0, 3.0)
    negative: tuple[float, float] = (3.0, 2.0)

    def __post_init__(self) -> None:
        for name in ("positive", "negative"):
            c1, c2 = getattr(self, name)
            if c1 < 1 or c2 <= 0:
                raise ValueError(
                    f"policy_loss.{name}=[{c1}, {c2}]: the variance is not bounded. Set c1 of 1 or "
                    "more and c2 above 0."
                )


@register_policy_loss("vespo")
def vespo(
    old_log_prob: torch.Tensor,
    log_prob: torch.Tensor,
    advantages: torch.Tensor,
    response_mask: torch.Tensor,
    loss_agg_mode: str = "token-mean",
    config: Any = None,
    rollout_is_weights: torch.Tensor | None = None,
) -> tuple[torch.Tensor, dict[str, Any]]:
    """Policy loss whose gradient is -phi(W) A grad log pi (equation 20); arguments are verl's.

        log W_i = sum_t log pi(o_it) - log pi_old(o_it)      over the tokens of response i
        phi(W) = W^c1 exp(c2 (1 - W))                        1 at W = 1, 0 at both ends
        loss_it = -phi(W_i) A_it log pi(o_it)                phi is not differentiated

    (c1, c2) depend on the sign of A_it. All tensors are (responses, tokens). With
    `rollout_is_weights`, the product of a response's weights multiplies W. Computed per response,
    so micro-batches do not matter.

    Departures: a token's engine weight is cut at verl's threshold, so W is not exactly pi / mu as
    with `bypass_mode`; the authors' code (FloyedShen/VESPO) divides by the tokens of a micro-batch,
    here `agg_loss` divides by those of the mini-batch.
    """
    log_ratio_BT = (log_prob - old_log_prob).detach()
    total_BT = log_ratio_BT
    if rollout_is_weights is not None:
        total_BT = total_BT + rollout_is_weights.clamp(min=1e-8).log()
    log_w_B = (total_BT * response_mask).sum(-1, keepdim=True).clamp(-LARGEST, LARGEST)
    settings = config.policy_loss
    rising, falling = (
        torch.where(advantages < 0, settings.negative[i], settings.positive[i]) for i in (0, 1)
    )
    kernel_BT = (rising * log_w_B + falling * (1 - log_w_B.exp())).exp()
    loss = agg_loss(
        -kernel_BT * advantages * log_prob, response_mask, loss_agg_mode, **config.global_batch_info
    )
    metrics = {
        "actor/ppo_kl": masked_mean(-log_ratio_BT, response_mask).item(),
        "actor/vespo_kernel": masked_mean(kernel_BT, response_mask).item(),
    }
    return loss, metrics
