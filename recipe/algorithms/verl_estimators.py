"""verl's own advantage estimators under the name ``verl:NAME``, such as ``verl:opo``.

``verl:gae`` is PPO (arXiv 1707.06347); it needs ``critic.enable`` and returns the critic's targets:

    delta_t = r_t + gamma V_{t+1} - V_t,   A_t = delta_t + gamma lambda A_{t+1}   (arXiv 1506.02438)
    returns_t = A_t + V_t,   advantages: A whitened over the tokens of the batch

Rejected are estimators that need what this trainer does not compute, a greedy baseline (remax) or
the sum of squared probabilities (the optimal token baselines), and gpg, whose factor is not its
paper's (AMAP-ML/GPG).
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from recipe.algorithms.groups import Numbers, float64
from recipe.errors import ConfigError

GAE, OPO = "gae", "opo"
MISSING = {
    "gpg": "divides by the share of rewards not 0, its paper by that of groups with a signal",
    "remax": "needs the reward of a greedy response, which this trainer does not compute",
    **dict.fromkeys(
        ("optimal_token_baseline", "tir_optimal_token_baseline"),
        "needs the sum of squared probabilities, which this trainer does not compute",
    ),
}
INPUTS = ("mask_BT", "trained_B", "accuracy", "formats", "values_BT")


def _of_verl(name: str) -> Callable[..., Any]:
    from verl.trainer.ppo.core_algos import ADV_ESTIMATOR_REGISTRY, get_adv_estimator_fn

    if name not in ADV_ESTIMATOR_REGISTRY:
        names = ", ".join(sorted(set(ADV_ESTIMATOR_REGISTRY) - set(MISSING)))
        raise ConfigError(f"recipe.advantage.name=verl:{name}: unknown to verl. Known are {names}.")
    if name in MISSING:
        raise ConfigError(
            f"recipe.advantage.name=verl:{name}: {MISSING[name]}. Choose another estimator."
        )
    return get_adv_estimator_fn(name)


@functools.cache  # the registry keeps facts by function
def estimator(name: str) -> Callable[..., torch.Tensor]:
    """Return verl's estimator `name` as an advantage function of this project.

    The function takes (rewards_B, group_B, **INPUTS, **arguments) and returns A_BT and returns_BT
    in float64, computed by verl in float32: the reward lies on the last token of each response, the
    group id replaces verl's uid, `arguments` are fields of verl's AlgoConfig. For `gdpo` the
    components are accuracy and format (``gdpo_reward_keys``). Rows that are not `trained_B` are
    excluded from the whitening. With ``gae`` they still have returns, so that the critic also
    learns from filler groups.
    ConfigError for an unknown name and for an estimator that needs other inputs.
    """
    function = _of_verl(name)
    # Some estimators read this key of verl from a parameter, others from the configuration.
    by_std = "norm_adv_by_std_in_grpo"
    takes_std = by_std in inspect.signature(function).parameters

    def advantages(
        rewards_B: Numbers,
        group_B: Numbers,
        *,
        mask_BT: torch.Tensor,
        trained_B: torch.Tensor,
        accuracy: Sequence[float] = (),
        formats: Sequence[float] = (),
        values_BT: torch.Tensor | None = None,
        **arguments: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        import numpy as np
        from verl.trainer.config import AlgoConfig

        config = AlgoConfig(**{"gdpo_reward_keys": ["accuracy", "format"], **arguments})
        rewards_BT = torch.zeros(mask_BT.shape)
        positions = torch.arange(mask_BT.shape[1])
        last_B = torch.where(mask_BT, positions, 0).amax(1)
        rewards_BT[torch.arange(len(mask_BT)), last_B] = float64(rewards_B).float()
        prompt = torch.ones(len(mask_BT), 1, dtype=torch.int64)
        attended = torch.cat([prompt, mask_BT.long()], 1)
        components: dict[str, Any] = {}
        if name == "gdpo":
            components = {
                "non_tensor_batch": {"accuracy": np.array(accuracy), "format": np.array(formats)},
                "batch": {"prompts": prompt, "attention_mask": attended},
            }
        if name == GAE:
            assert values_BT is not None
            components = {"values": values_BT.float(), "gamma": config.gamma, "lam": config.lam}
        else:
            index = [str(group) for group in torch.as_tensor(group_B).tolist()]
            components |= {"index": np.array(index, dtype=object), "config": config}
        if takes_std:
            components[by_std] = config.norm_adv_by_std_in_grpo

        def over(mask_BT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            if mask_BT.sum() < 2:  # verl's whitening raises
                return torch.zeros_like(float64(mask_BT)), torch.zeros_like(float64(mask_BT))
            mask = mask_BT.long()
            result = function(token_level_rewards=rewards_BT, response_mask=mask, **components)
            return float64(result[0]) * mask_BT, float64(result[1]) * mask_BT

        # OPO weights its baseline by the lengths of all rows.
        advantages_BT, returns_BT = over(mask_BT & (trained_B[:, None] | (name == OPO)))
        return advantages_BT, over(mask_BT)[1] if name == GAE else returns_BT

    return advantages
