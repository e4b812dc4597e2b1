"""The trainer: verl's synchronous V1 trainer with our epochs, run folder and diagnostics.

What is overridden, and why:
  _build_replay_buffer    verl looks for finished groups every 2 s; a CPU step is about that long
  _fetch_one_gen_batch    tells every row its epoch, which the draw of the template depends on
  _save/_load_checkpoint  the count of batches fetched travels with the checkpoint
  _compute_advantage      adds the group statistics of the whole batch, on the driver
  _compute_metrics        writes metrics.jsonl and rollouts/ into the run folder
  _val_metrics_update     mean and standard error; verl's bootstrap is slow and biased as pass@k
"""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transfer_queue as tq
from omegaconf import DictConfig, open_dict
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from recipe import diagnostics, run_folder
from recipe.agent_loop import EPOCH

STATE = "recipe_state.json"


@register_trainer("recipe_sync")
class RecipeTrainer(PPOTrainerSync):
    """``trainer.v1.trainer_mode=recipe_sync``."""

    def __init__(self, config: DictConfig) -> None:
        with open_dict(config):
            # verl branches on this name: any other than "sync" means an asynchronous trainer.
            config.trainer.v1.trainer_mode = "sync"
        super().__init__(config)
        self.run_dir = Path(config.recipe.run_dir)
        self.batches_fetched = 0
        self.optimizer_steps = 0
        self.earlier_seconds = 0.0
        self.started = time.monotonic()
        self.rollouts: list[diagnostics.Rollout] = []

    def _build_replay_buffer(self) -> Any:
        buffer = super()._build_replay_buffer()
        buffer.poll_interval = float(self.config.recipe.rollout.poll_seconds)
        return buffer

    def _fetch_one_gen_batch(self) -> Any:
        epoch = self.batches_fetched // len(self.train_dataloader)
        batch = super()._fetch_one_gen_batch()
        batch[EPOCH] = torch.full((len(batch),), epoch)
        self.batches_fetched += 1
        return batch

    # ---------------------------------------------------------------- resume

    @property
    def wall_seconds(self) -> float:
        """Seconds of training up to now, those before a resume included."""
        return self.earlier_seconds + time.monotonic() - self.started

    def _checkpoint_dir(self) -> Path:
        return Path(self.config.trainer.default_local_dir) / f"global_step_{self.global_steps}"

    def _save_checkpoint(self) -> None:
        # Before verl's own files: its tracker, written last, says that the checkpoint is whole.
        run_folder.write_json(
            self._checkpoint_dir() / STATE,
            {
                "batches_fetched": self.batches_fetched,
                "optimizer_steps": self.optimizer_steps,
                "wall_seconds": self.wall_seconds,
            },
        )
        super()._save_checkpoint()

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.global_steps:
            state = run_folder.read_json(self._checkpoint_dir() / STATE)
            self.batches_fetched = state["batches_fetched"]
            self.optimizer_steps = state["optimizer_steps"]
            self.earlier_seconds = state["wall_seconds"]
        # Steps after the checkpoint are trained again: their lines would stand twice.
        run_folder.truncate_metrics(self.run_dir, last_step=self.global_steps)

    # ---------------------------------------------------------------- statistics

    def _compute_advantage(self, batch: Any, metrics: dict) -> Any:
        batch = super()._compute_advantage(batch, metrics)
        self.rollouts = self._read_rollouts(batch)
        metrics.update(diagnostics.group_metrics(self.rollouts))
        return batch

    def _read_rollouts(self, batch: Any) -> list[diagnostics.Rollout]:
        """The rollouts of the batch, without the padding rows that verl appends."""
        real = [i for i, tag in enumerate(batch.tags) if not tag.get("is_padding", False)]
        fields = [
            "uid",
            "session_id",
            "prompts",
            "extra_info",
            "extra_fields",
            "rm_scores",
            "entropy",
        ]
        data = tq.kv_batch_get(
            keys=[batch.keys[i] for i in real],
            partition_id=batch.partition_id,
            select_fields=fields,
        )
        columns = {name: list(data[name]) for name in fields}
        return [
            diagnostics.from_row({name: values[i] for name, values in columns.items()})
            for i in range(len(real))
        ]

    def _update_actor(self, batch: Any, metrics: dict) -> Any:
        actor = self.config.actor_rollout_ref.actor
        mini_batch = actor.ppo_mini_batch_size * self.config.actor_rollout_ref.rollout.n
        self.optimizer_steps += actor.ppo_epochs * (len(batch) // mini_batch)
        return super()._update_actor(batch, metrics)

    def _compute_metrics(self, batch: Any, metrics: dict, *args: Any, **kwargs: Any) -> None:
        super()._compute_metrics(batch, metrics, *args, **kwargs)
        metrics["train/optimizer_steps"] = self.optimizer_steps
        metrics["train/wall_seconds"] = self.wall_seconds
        run_folder.append_metrics(self.run_dir, self.global_steps, metrics)
        every = self.config.recipe.save_rollouts_every
        if every and self.global_steps % every == 0:
            lines = (r.as_line(self.global_steps, self.tokenizer) for r in self.rollouts)
            path = self.run_dir / "rollouts" / f"step_{self.global_steps}.jsonl"
            run_folder.write_lines(path, lines)

    def _val_metrics_update(
        self,
        data_sources: Sequence[str],
        sample_uids: Sequence[str],
        reward_extra_infos_dict: dict[str, list],
        sample_turns: Sequence[int],
        expected_acc_counts: dict[tuple[str, str], int] | None = None,
    ) -> dict[str, float]:
        return diagnostics.validation_metrics(
            data_sources, sample_uids, reward_extra_infos_dict, expected_acc_counts or {}
        )
