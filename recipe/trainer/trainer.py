"""The trainer: verl's synchronous V1 trainer with our advantages, epochs and run folder.

What is overridden, and why:
  _build_replay_buffer    a bound on dynamic sampling; and verl looks for finished groups every 2 s
  _fetch_one_gen_batch    tells every row its epoch, which draws depend on; the curriculum chooses
  own_state               counts and what is remembered of questions travel with the checkpoint
  _balance_batch          mini-batches that do not depend on which rollout finished first
  _compute_advantage      advantages, weights and statistics of whole groups, on the driver
  _compute_metrics        writes metrics.jsonl and rollouts/ into the run folder
  _val_metrics_update     mean and standard error; verl's bootstrap is slow and biased as pass@k
When it saves and how it ends early: saving.py.
"""

import copy
import time
from collections.abc import Sequence
from typing import Any

import torch
from omegaconf import DictConfig, open_dict
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.utils import tensordict_utils as tu
from verl.utils.seqlen_balancing import log_seqlen_unbalance

from prompt_aug.files import write_lines
from recipe.algorithms.compute import compute_advantages, group_of
from recipe.rollout.agent_loop import EPOCH
from recipe.run import folder as run_folder
from recipe.trainer import batch as batches
from recipe.trainer import metrics as diagnostics
from recipe.trainer.order import deal, training_order
from recipe.trainer.question_stats import QuestionStats
from recipe.trainer.replay_buffer import BoundedReplayBuffer
from recipe.trainer.saving import SavingTrainer


@register_trainer("recipe_sync")
class RecipeTrainer(SavingTrainer):
    """``trainer.v1.trainer_mode=recipe_sync``."""

    def __init__(self, config: DictConfig) -> None:
        with open_dict(config):
            # verl branches on this name: any other than "sync" means an asynchronous trainer.
            config.trainer.v1.trainer_mode = "sync"
        # Before verl's __init__, which builds the buffer that tells it of evicted groups.
        self.memory = QuestionStats(config.recipe)
        super().__init__(config)
        self.batches_fetched = 0
        self.optimizer_steps = 0
        self.earlier_seconds = 0.0
        self.started = time.monotonic()
        self.rollouts: list[diagnostics.Rollout] = []

    def _build_replay_buffer(self) -> Any:
        buffer = super()._build_replay_buffer()
        bounded = BoundedReplayBuffer.of(
            buffer,
            settings=self.config.recipe.dynamic_sampling,
            on_evicted=self.memory.see_visit,
        )
        bounded.on_poll = self.check_stop
        bounded.poll_interval = float(self.config.recipe.rollout.poll_seconds)
        return bounded

    def _fetch_one_gen_batch(self) -> Any:
        """The next questions, each with its epoch; with a curriculum the fittest of several."""
        chunks = []
        for _ in range(self.memory.candidates):
            epoch = self.batches_fetched // len(self.train_dataloader)
            chunk = super()._fetch_one_gen_batch()
            chunk[EPOCH] = torch.full((len(chunk),), epoch)
            # verl's id of a group is random; ours is its place in the data order and its question,
            # so that what is drawn or sorted by it is the same in every run with the same seed.
            first = self.batches_fetched * len(chunk)
            names = [f"{first + i:09d}-{e['uid']}" for i, e in enumerate(chunk["extra_info"])]
            tu.assign_non_tensor_stack(chunk, "uid", names)
            self.batches_fetched += 1
            chunks.append(chunk)
        batch = chunks[0]
        if len(chunks) > 1:
            batch = tu.concat_tensordict(chunks)
            chosen = self.memory.choose([e["uid"] for e in batch["extra_info"]], len(chunks[0]))
            batch = tu.index_select_tensor_dict(batch, chosen)
        self.memory.fetch(list(batch["uid"]), [e["uid"] for e in batch["extra_info"]])
        return batch

    def _balance_batch(self, batch: Any, metrics: dict, *args: Any, **kwargs: Any) -> Any:
        """verl's padding rows, then our order (`recipe.trainer.order`) in place of verl's."""
        batch = super()._balance_batch(batch, metrics, *args, **kwargs)
        ranks = max(self.actor_rollout_wg._dispatch_info["actor"]) + 1
        size = int(self.config.actor_rollout_ref.rollout.n)
        order = training_order(
            batch.keys,
            [bool(tag.get("is_padding", False)) for tag in batch.tags],
            size=size,
            seed=int(self.config.recipe.seed),
            step=self.global_steps,
        )
        lengths = [int(tag["seq_len"]) for tag in batch.tags]
        mini_batch = int(self.config.actor_rollout_ref.actor.ppo_mini_batch_size) * size
        dealt = deal(order, lengths, mini_batch=mini_batch, ranks=ranks)
        metrics.update(log_seqlen_unbalance(lengths, dealt, prefix="global_seqlen"))
        batch.reorder([i for rows in dealt for i in rows])
        return batch

    # ---------------------------------------------------------------- resume

    @property
    def wall_seconds(self) -> float:
        """Seconds of training up to now, those before a resume included."""
        return self.earlier_seconds + time.monotonic() - self.started

    def own_state(self) -> dict[str, Any]:
        return {
            "batches_fetched": self.batches_fetched,
            "optimizer_steps": self.optimizer_steps,
            "wall_seconds": self.wall_seconds,
            "memory": copy.deepcopy(self.memory.state()),
        }

    def load_own_state(self, state: dict[str, Any]) -> None:
        self.batches_fetched = state["batches_fetched"]
        self.optimizer_steps = state["optimizer_steps"]
        self.earlier_seconds = state["wall_seconds"]
        self.memory.load(state.get("memory", {}))

    # ---------------------------------------------------------------- statistics

    def _compute_advantage(self, batch: Any, metrics: dict) -> Any:
        batch = super()._compute_advantage(batch, metrics)
        recipe = self.config.recipe
        rows = batches.read(batch)
        rewards, shaped = self.memory.shape(rows)
        left_out = [bool(recipe.overlong_filter and cut) for cut in rows.truncated()]
        advantages_BT, signal = compute_advantages(
            batches.responses(rows, rewards, left_out),
            recipe.advantage,
            recipe.weights,
            seed=int(recipe.seed) * 1_000_003 + self.global_steps,
        )
        filled = self.replay_buffer.filled_visits
        advantages_BT = batches.without_visits(rows, advantages_BT, filled)
        mean = self.config.actor_rollout_ref.actor.loss_agg_mode
        batches.write_advantages(rows, advantages_BT, left_out, by_token=mean == "token-mean")
        self.rollouts = [diagnostics.from_row(rows[i], r) for i, r in enumerate(rewards)]
        by_text = group_of(recipe.advantage) == "text"
        metrics.update(diagnostics.group_metrics(self.rollouts, by_text))
        metrics.update(diagnostics.neighbour_metrics(self.rollouts))
        metrics.update({**shaped, **signal, **self.memory.see_step(rows)})
        every = recipe.save_tensors_every
        if every and self.global_steps % every == 0:
            path = run_folder.RunFolder(self.run_dir).tensors(self.global_steps)
            batches.save_tensors(path, rows, rewards, advantages_BT)
        return batch

    def _update_actor(self, batch: Any, metrics: dict) -> Any:
        actor = self.config.actor_rollout_ref.actor
        mini_batch = actor.ppo_mini_batch_size * self.config.actor_rollout_ref.rollout.n
        self.optimizer_steps += actor.ppo_epochs * (len(batch) // mini_batch)
        return super()._update_actor(batch, metrics)

    def _compute_metrics(self, batch: Any, metrics: dict, *args: Any, **kwargs: Any) -> None:
        super()._compute_metrics(batch, metrics, *args, **kwargs)
        metrics["train/optimizer_steps"] = self.optimizer_steps
        # verl divides steps by steps per epoch, which dynamic sampling and a curriculum make wrong.
        metrics["training/epoch"] = self.batches_fetched / len(self.train_dataloader)
        metrics["train/wall_seconds"] = self.wall_seconds
        run_folder.append_metrics(self.run_dir, self.global_steps, metrics)
        every = self.config.recipe.save_rollouts_every
        if every and self.global_steps % every == 0:
            lines = (r.as_line(self.global_steps, self.tokenizer) for r in self.rollouts)
            path = run_folder.RunFolder(self.run_dir).rollouts(self.global_steps)
            write_lines(path, lines)

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
