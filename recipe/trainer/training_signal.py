"""The learning signal of a step: from graded rollouts to advantages, metrics and records."""

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor
from verl import DataProto
from verl.trainer.ppo.ray_trainer import apply_kl_penalty
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch

from recipe.algorithms.compute import compute_advantages, group_of
from recipe.algorithms.rollouts import RolloutBatch
from recipe.run import folder as run_folder
from recipe.trainer import batch as batches
from recipe.trainer import metrics as statistics
from recipe.trainer import records
from recipe.trainer.order import group_id
from recipe.trainer.question_stats import QuestionStats


def signal_of(
    fetched: batches.Fetched,
    config: DictConfig,
    *,
    step: int,
    stats: QuestionStats,
    filled_groups: Collection[str],
    in_flight: Collection[str] = (),
    kl_controller: Any,
    weight_logprobs: Tensor | None,
    hinted_logprobs: Tensor | None = None,
    metrics: dict,
) -> tuple[RolloutBatch, Tensor, dict[str, Tensor]]:
    """Return rollouts, rewards and the actor's columns; add to `metrics`, write tensors/."""
    recipe = config.recipe
    rewards, mask, changed = apply_corrections(fetched, config.algorithm, kl_controller, metrics)
    rollouts = batches.rollouts_of(
        fetched,
        seed=int(recipe.seed) * 1_000_003 + step,
        rewards=rewards,
        mask=mask,
        weight_logprobs=weight_logprobs,
        hinted_logprobs=hinted_logprobs,
    )
    overlong_filter = bool(recipe.overlong_filter)
    excluded = [overlong_filter and cut for cut in rollouts.truncated]
    filled = [group_id(key) in filled_groups for key in rollouts.keys]
    rollouts = dataclasses.replace(
        rollouts,
        trained_B=~(torch.tensor(excluded) | torch.tensor(filled)),
        shortest=stats.shortest_of(rollouts.questions),
    )
    loss_agg_mode = config.actor_rollout_ref.actor.loss_agg_mode
    made = compute_advantages(rollouts, recipe, loss_agg_mode)
    columns = batches.columns_of(
        fetched,
        made.advantages_BT,
        made.returns_BT,
        changed=changed,
        excluded=excluded,
        by_token=loss_agg_mode == "token-mean",
    )
    by_rephrasing = group_of(recipe.advantage) == "rephrasing"
    metrics.update(statistics.step_metrics(rollouts, made.rewards_B, by_rephrasing))
    metrics.update({**made.metrics, **stats.see_step(rollouts, in_flight)})
    every = recipe.save_tensors_every
    if every and step % every == 0:
        arrays = records.arrays(rollouts, made.rewards_B, made.advantages_BT)
        folder = run_folder.RunFolder(Path(recipe.run_dir))
        run_folder.write_arrays(folder.tensors(step), arrays)
    return rollouts, made.rewards_B, columns


def apply_corrections(
    fetched: batches.Fetched, algorithm: DictConfig, kl_controller: Any, metrics: dict
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Return (rewards, mask, columns to write back), all R x T; add verl's metrics to `metrics`.

    These are the other steps of verl's `_compute_advantage`, KL in the reward and rollout
    correction, by the same functions in the same order on the same rows, padding included.
    `RecipeTrainer` replaces that method, so that the batch is read and written once.
    """
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
        if correction.rollout_rs:  # else verl's mask is a copy
            changed["response_mask"] = data.batch["response_mask"]
        if "rollout_is_weights" in data.batch:
            changed["rollout_is_weights"] = data.batch["rollout_is_weights"]
    return rewards, data.batch["response_mask"], changed
