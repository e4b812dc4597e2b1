"""The learning signal of a step: from graded rollouts to advantages, metrics and records."""

import dataclasses
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor

from recipe.algorithms.compute import compute_advantages, group_of
from recipe.algorithms.rollouts import RolloutBatch
from recipe.run import folder as run_folder
from recipe.trainer import batch as batches
from recipe.trainer import metrics as statistics
from recipe.trainer import records
from recipe.trainer.order import group_id
from recipe.trainer.question_stats import QuestionStats
from recipe.trainer.verl_part import apply_corrections


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
    excluded = [bool(recipe.overlong_filter and cut) for cut in rollouts.truncated]
    filled = [group_id(key) in filled_groups for key in rollouts.keys]
    rollouts = dataclasses.replace(
        rollouts,
        trained_B=~(torch.tensor(excluded) | torch.tensor(filled)),
        shortest=stats.shortest_of(rollouts.questions),
    )
    made = compute_advantages(rollouts, recipe)
    by_token = config.actor_rollout_ref.actor.loss_agg_mode == "token-mean"
    columns = batches.columns_of(
        fetched,
        made.advantages_BT,
        made.returns_BT,
        changed=changed,
        excluded=excluded,
        by_token=by_token,
    )
    by_rephrasing = group_of(recipe.advantage) == "rephrasing"
    metrics.update(statistics.entropy(rollouts))
    metrics.update(statistics.group_metrics(rollouts, made.rewards_B, by_rephrasing))
    metrics.update(statistics.rephrasing_metrics(rollouts, made.rewards_B))
    metrics.update(statistics.source_metrics(rollouts))
    metrics.update({**made.metrics, **stats.see_step(rollouts, in_flight)})
    every = recipe.save_tensors_every
    if every and step % every == 0:
        arrays = records.arrays(rollouts, made.rewards_B, made.advantages_BT)
        folder = run_folder.RunFolder(Path(recipe.run_dir))
        run_folder.write_arrays(folder.tensors(step), arrays)
    return rollouts, made.rewards_B, columns
