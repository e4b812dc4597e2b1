"""The trainer: verl's synchronous V1 trainer with our advantages, epochs and run folder.

Every subclass of a class of verl lists in its docstring what it overrides, and why; tests compare
(tests/recipe/test_overrides.py). They are:

    RecipeTrainer                recipe.trainer.trainer
    SavingTrainer                recipe.trainer.saving
    BoundedReplayBuffer          recipe.trainer.replay_buffer
    RecipeTaskRunner             recipe.trainer.task_runner
    PromptAugmentationAgentLoop  recipe.rollout.agent_loop
    GroupedAgentLoopWorker       recipe.rollout.workers
    GroupedAgentLoopManager      recipe.rollout.workers
    GroupedClient                recipe.rollout.client
    RecipeRewardManager          recipe.rollout.reward
    StatedDtypeMerger            recipe.export.merge
    PrefixTreeEngine             recipe.actor.engine
    PlatformCPU                  recipe.patches.cpu.cpu_platform
    GMPOLossConfig               recipe.algorithms.gmpo, which overrides nothing

`recipe.rollout.server` adds a method to verl's vLLM server when it is made, and overrides nothing.
What replaces foreign code is listed in recipe.patches.
"""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import torch
from omegaconf import DictConfig, open_dict
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.utils import tensordict_utils as tu
from verl.utils.seqlen_balancing import log_seqlen_unbalance
from verl.workers.utils.padding import response_from_nested

from prompt_aug.base.files import write_lines
from recipe.algorithms.compute import (
    Advantages,
    compute_advantages,
    group_of,
    logprob_temperature,
)
from recipe.algorithms.rollouts import RolloutBatch
from recipe.rollout.agent_loop import EPOCH
from recipe.run import folder as run_folder
from recipe.trainer import batch as batches
from recipe.trainer import metrics as statistics
from recipe.trainer import records
from recipe.trainer.order import deal, group_id, training_order
from recipe.trainer.question_stats import QuestionStats
from recipe.trainer.replay_buffer import BoundedReplayBuffer
from recipe.trainer.saving import SavingTrainer
from recipe.trainer.verl_part import correct


@register_trainer("recipe_sync")
class RecipeTrainer(SavingTrainer):
    """``trainer.v1.trainer_mode=recipe_sync``.

    Overrides of verl, beside those of `SavingTrainer`:
      __init__               verl branches on the trainer's name; our state
      _build_replay_buffer   a bound on dynamic sampling; verl looks for finished groups every 2 s
      _fetch_one_gen_batch   gives every row its epoch, which draws depend on, and groups ids that
                             are the same in every run; the curriculum chooses
      _balance_batch         mini-batches that do not depend on which rollout finished first
      _compute_old_log_prob  sends the workers only what they read
      _compute_ref_log_prob  the same
      _compute_advantage     advantages, weights and statistics of whole groups, on the driver, from
                             one read of the batch; does not call verl's (verl_part.py)
      _update_actor          the same; counts optimizer steps
      _compute_metrics       writes metrics.jsonl and rollouts/ into the run folder
      _val_metrics_update    mean and standard error; verl's bootstrap is slow and biased as pass@k
    """

    def __init__(self, config: DictConfig) -> None:
        with open_dict(config):
            # verl branches on this name: any other than "sync" means an asynchronous trainer.
            config.trainer.v1.trainer_mode = "sync"
        # Before verl's __init__, which builds the buffer that tells it of evicted groups.
        self.question_stats = QuestionStats(config.recipe)
        super().__init__(config)
        self.batches_fetched = 0
        self.optimizer_steps = 0
        self.earlier_seconds = 0.0
        self.started = time.monotonic()
        self.rollouts: RolloutBatch  # of the step, once advantages are computed
        self.rewards_B: torch.Tensor

    def _build_replay_buffer(self) -> Any:
        buffer = super()._build_replay_buffer()
        bounded = BoundedReplayBuffer.of(
            buffer,
            settings=self.config.recipe.dynamic_sampling,
            group_size=int(self.config.actor_rollout_ref.rollout.n),
            in_rounds=bool(self.config.recipe.rollout.request_seeds),
            on_evicted=self.question_stats.see_group,
        )
        bounded.on_poll, bounded.on_look = self.check_stop, self.look
        bounded.poll_interval = float(self.config.recipe.rollout.poll_seconds)
        return bounded

    def _fetch_one_gen_batch(self) -> Any:
        """The next questions, each with its epoch; with a curriculum the fittest of several."""
        chunks = []
        for _ in range(self.question_stats.candidates):
            epoch = self.batches_fetched // len(self.train_dataloader)
            chunk = super()._fetch_one_gen_batch()
            chunk[EPOCH] = torch.full((len(chunk),), epoch)
            # verl's id of a group is random; ours is its place in the data order and its question,
            # so that what is drawn or sorted by it is the same in every run with the same seed.
            # With a dash: verl's replay buffer cuts the group from a row's key at the first _.
            first = self.batches_fetched * len(chunk)
            names = [f"{first + i:09d}-{e['uid']}" for i, e in enumerate(chunk["extra_info"])]
            tu.assign_non_tensor_stack(chunk, "uid", names)
            self.batches_fetched += 1
            chunks.append(chunk)
        batch = chunks[0]
        if len(chunks) > 1:
            batch = tu.concat_tensordict(chunks)
            questions = [e["uid"] for e in batch["extra_info"]]
            chosen = self.question_stats.choose(questions, len(chunks[0]))
            batch = tu.index_select_tensor_dict(batch, chosen)
        self.question_stats.fetch(list(batch["uid"]), [e["uid"] for e in batch["extra_info"]])
        return batch

    def _balance_batch(self, batch: Any, metrics: dict, *args: Any, **kwargs: Any) -> Any:
        """verl's padding rows, then our order (`recipe.trainer.order`) in place of verl's."""
        # verl's order goes, its padding stays: only whole mini-batches reach every rank.
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

    # ---------------------------------------------------------------- passes of the actor

    def _compute_old_log_prob(self, batch: Any, metrics: dict) -> Any:
        with batches.for_actor(batch):
            return super()._compute_old_log_prob(batch, metrics)

    def _compute_ref_log_prob(self, batch: Any, metrics: dict) -> Any:
        with batches.for_actor(batch):
            return super()._compute_ref_log_prob(batch, metrics)

    def _update_actor(self, batch: Any, metrics: dict) -> Any:
        actor = self.config.actor_rollout_ref.actor
        mini_batch = actor.ppo_mini_batch_size * self.config.actor_rollout_ref.rollout.n
        self.watchdog.begin()
        # verl has padded the batch to whole mini-batches, so nothing is left over.
        self.optimizer_steps += actor.ppo_epochs * (len(batch) // mini_batch)
        with batches.for_actor(batch):
            return super()._update_actor(batch, metrics)

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
            # A copy by itself: `step` takes it before a step that may be discarded.
            "question_stats": self.question_stats.state(),
            "kl_in_reward": getattr(self._kl_controller, "value", None),
        }

    def load_own_state(self, state: dict[str, Any]) -> None:
        self.batches_fetched = state["batches_fetched"]
        self.optimizer_steps = state["optimizer_steps"]
        self.earlier_seconds = state["wall_seconds"]
        self.question_stats.load(state.get("question_stats", {}))
        if self._kl_controller is not None and state.get("kl_in_reward") is not None:
            self._kl_controller.value = state["kl_in_reward"]  # an adaptive one has moved

    @property
    def _kl_controller(self) -> Any:
        """The coefficient of the KL in the reward: verl makes it where the settings want one."""
        return getattr(self, "kl_ctrl_in_reward", None)

    # ---------------------------------------------------------------- advantages

    def _compute_advantage(self, batch: Any, metrics: dict) -> Any:
        """In place of verl's: one read, verl's corrections, our advantages, one write."""
        recipe = self.config.recipe
        fetched, weight_logprobs = self._fetch(batch)
        rewards, mask, changed = correct(
            fetched, self.config.algorithm, self._kl_controller, metrics
        )
        rollouts = batches.rollouts_of(
            fetched,
            seed=int(recipe.seed) * 1_000_003 + self.global_steps,
            rewards=rewards,
            mask=mask,
            weight_logprobs=weight_logprobs,
        )
        left_out = [bool(recipe.overlong_filter and cut) for cut in rollouts.truncated]
        filled = [group_id(key) in self.replay_buffer.filled_groups for key in rollouts.keys]
        rollouts = dataclasses.replace(
            rollouts,
            trained_B=~(torch.tensor(left_out) | torch.tensor(filled)),
            shortest=self.question_stats.shortest_of(rollouts.questions),
        )
        made = compute_advantages(rollouts, recipe)
        by_token = self.config.actor_rollout_ref.actor.loss_agg_mode == "token-mean"
        self._record(rollouts, made, metrics)
        return batches.write(
            fetched, made.advantages_BT, changed=changed, left_out=left_out, by_token=by_token
        )

    def _fetch(self, batch: Any) -> tuple[batches.Fetched, torch.Tensor | None]:
        """The batch, and its log-probabilities at the temperature that token weights want.

        verl has them at the rollout's. At any other they cost one more forward pass, here, after
        the reference model's, whose result takes the same column.
        """
        wanted = logprob_temperature(self.config.recipe.weights)
        if wanted in (None, self.config.actor_rollout_ref.rollout.temperature):
            return batches.fetch(batch), None
        # For this pass alone: verl's `_update_actor` sets its own temperature and entropy again.
        batch.extra_info.update(calculate_entropy=False, compute_loss=False, temperature=wanted)
        with batches.for_actor(batch):
            self.actor_rollout_wg.compute_log_prob(batch)
        fetched = batches.fetch(batch, (*batches.FIELDS, "log_probs"))
        mask = fetched.data["response_mask"]
        return fetched, batches.matrix(response_from_nested(fetched.data["log_probs"], mask))

    def _record(self, rollouts: RolloutBatch, made: Advantages, metrics: dict) -> None:
        """Statistics of the step, and tensors/; rollouts/ is written with the step's metrics."""
        recipe = self.config.recipe
        self.rollouts, self.rewards_B = rollouts, made.rewards_B
        by_rephrasing = group_of(recipe.advantage) == "rephrasing"
        metrics.update(statistics.entropy(rollouts))
        metrics.update(statistics.group_metrics(rollouts, made.rewards_B, by_rephrasing))
        metrics.update(statistics.rephrasing_metrics(rollouts, made.rewards_B))
        metrics.update({**made.metrics, **self.question_stats.see_step(rollouts)})
        every = recipe.save_tensors_every
        if every and self.global_steps % every == 0:
            arrays = records.arrays(rollouts, made.rewards_B, made.advantages_BT)
            path = run_folder.RunFolder(self.run_dir).tensors(self.global_steps)
            run_folder.write_arrays(path, arrays)

    # ---------------------------------------------------------------- statistics

    def _compute_metrics(self, batch: Any, metrics: dict, *args: Any, **kwargs: Any) -> None:
        super()._compute_metrics(batch, metrics, *args, **kwargs)
        # Into verl's dict: its fit hands the same one to the loggers next.
        metrics["train/optimizer_steps"] = self.optimizer_steps
        # verl divides steps by steps per epoch, which dynamic sampling and a curriculum make wrong.
        metrics["training/epoch"] = self.batches_fetched / len(self.train_dataloader)
        metrics["train/wall_seconds"] = self.wall_seconds
        run_folder.append_metrics(self.run_dir, self.global_steps, metrics)
        every = self.config.recipe.save_rollouts_every
        if every and self.global_steps % every == 0:
            lines = records.lines(
                self.rollouts, self.rewards_B, step=self.global_steps, tokenizer=self.tokenizer
            )
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
        return statistics.validation_metrics(
            data_sources, sample_uids, reward_extra_infos_dict, expected_acc_counts or {}
        )
