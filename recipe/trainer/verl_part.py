"""The other steps of verl's `_compute_advantage`: KL in the reward and rollout correction.

`RecipeTrainer` replaces verl's `_compute_advantage`, so that the batch is read and written once
instead of twice. The other steps are done here with the same functions of verl, in the same order
and on the same rows, padding included. tests/recipe/trainer/test_verl_part.py compares the two.
"""

from typing import Any

from omegaconf import DictConfig
from torch import Tensor
from verl import DataProto
from verl.trainer.ppo.ray_trainer import apply_kl_penalty
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch

from recipe.trainer.batch import Fetched


def apply_corrections(
    fetched: Fetched, algorithm: DictConfig, kl_controller: Any, metrics: dict
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return (rewards, mask, columns to write back), all R x T; add verl's metrics to `metrics`."""
    names = ("response_mask", "rm_scores", "rollout_log_probs", "old_log_probs", "ref_log_prob")
    data = DataProto.from_dict({n: fetched.padded[n] for n in names if n in fetched.padded})
    changed: dict[str, Tensor] = {}
    rewards = data.batch["token_level_scores"] = data.batch["rm_scores"]
    if algorithm.use_kl_in_reward:
        data, kl = apply_kl_penalty(data, kl_controller, algorithm.kl_penalty)
        metrics.update(kl)
        rewards = changed["token_level_rewards"] = data.batch["token_level_rewards"]
    correction = algorithm.get("rollout_correction", None)
    # In bypass mode the engine's log-probabilities are the old ones: nothing to correct.
    if correction is not None and "rollout_log_probs" in data.batch and not correction.bypass_mode:
        data, corrected = compute_rollout_correction_and_add_to_batch(data, correction)
        metrics.update(corrected)
        for name in ("response_mask", "rollout_is_weights"):
            if name in data.batch:
                changed[name] = data.batch[name]
    return rewards, data.batch["response_mask"], changed
