"""The trainer: verl's V1 trainers with our advantages, epochs and run folder.

Every subclass of a class of verl lists in its docstring what it overrides, and why.
`recipe.rollout.server` mixes classes into verl's vLLM server. recipe.patches lists all replacements
of foreign code.
"""

import functools
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from omegaconf import DictConfig, open_dict
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils import tensordict_utils as tu
from verl.utils.seqlen_balancing import log_seqlen_unbalance
from verl.workers.utils.padding import response_from_nested

from prompt_aug.base.files import write_lines
from prompt_aug.prompts import Prompts
from prompt_aug.questions import turns_of
from recipe.algorithms import ADVANTAGES
from recipe.algorithms.compute import logprob_temperature, ratio_temperature
from recipe.algorithms.rollouts import RolloutBatch
from recipe.rollout.agent_loop import EPOCH, choose_template
from recipe.run import folder as run_folder
from recipe.trainer import batch as batches
from recipe.trainer import metrics as statistics
from recipe.trainer import records
from recipe.trainer.critic import ValueModel
from recipe.trainer.hints import forward_of, hinted_logprobs
from recipe.trainer.order import distribute, training_order
from recipe.trainer.question_stats import QuestionStats
from recipe.trainer.replay_buffer import BoundedReplayBuffer
from recipe.trainer.saving import SavingTrainer
from recipe.trainer.training_signal import signal_of


class RecipeMixin(SavingTrainer):
    """Our trainer over one of verl's; `RecipeTrainer` and `recipe.trainer.asynchronous` choose it.

    trainer_mode          recipe_sync                     recipe_colocate_async, _separate_async
    verl's trainer        PPOTrainerSync                  PPOTrainerColocateAsync, -SeparateAsync
    engines               on the actor's GPUs             the same; separate: on GPUs of their own
    in flight at a step   its own questions               and those of W more batches
    training begins       when all of them are finished   when the next batch of the data order is
    meanwhile engines     sleep                           sleep; separate: generate
    new weights           for the next questions          for the tokens that follow, too
    staleness (versions)  0                               at most W (verl's num_warmup_batches)
    rollout correction    off                             token-level TIS
    replay buffer         BoundedReplayBuffer             InOrderReplayBuffer
    dynamic sampling      replacements in rounds          a replacement at once, for the window
    data loader           a batch at a time               a question at a time
    checkpoint            weights, data order             and the questions in flight

    Overrides of verl, beside those of `SavingTrainer`:
      __init__               sets verl's name of the mode; a float; adds our state
      _build_replay_buffer   limits dynamic sampling; sets the polling interval (verl: 2 s)
      _fetch_one_gen_batch   adds the epoch and a group id that every run repeats; the curriculum
      _balance_batch         mini-batches that do not depend on which rollout finished first
      _compute_old_log_prob  sends the workers only the columns that they read; its temperature
      _compute_ref_log_prob  the same
      _compute_values        the same; nothing if the critic is PCL's value model
      _update_critic         the same; the value model is trained on pass rates instead
      _compute_advantage     ours, from one read of the batch; verl's is not called (signal_of);
                             writes rollouts/ into the run folder
      _update_actor          sends fewer columns, as above; counts optimizer steps
      _compute_metrics       adds to and removes from the metrics; calls `SavingTrainer.end_step`
      _val_metrics_update    mean and standard error; verl's bootstrap is slow and biased as pass@k
    """

    verl_mode = "sync"  # verl's name of the trainer, on which it branches
    buffer_class = BoundedReplayBuffer
    use_critic: bool
    kl_ctrl_in_reward: Any = None  # verl sets it if that KL is configured

    def __init__(self, config: DictConfig) -> None:
        with open_dict(config):
            config.trainer.v1.trainer_mode = self.verl_mode
            # verl's triton kernels reject the integer of ``temperature=1``, in the first step.
            rollout = config.actor_rollout_ref.rollout
            rollout.temperature = float(rollout.temperature)
        # Before verl's __init__, which builds the buffer that reports evicted groups to it.
        self.question_stats = QuestionStats(config.recipe)
        super().__init__(config)
        self.batches_fetched = 0
        self.optimizer_steps = 0
        self.earlier_seconds = 0.0
        self.started = time.monotonic()
        self.rollouts: RolloutBatch  # of the step, set when advantages are computed
        self.rewards_B: torch.Tensor

    def _build_replay_buffer(self) -> Any:
        buffer = super()._build_replay_buffer()
        seeds = bool(self.config.recipe.rollout.request_seeds)
        bounded = self.buffer_class.of(
            buffer,
            settings=self.config.recipe.dynamic_sampling,
            group_size=int(self.config.actor_rollout_ref.rollout.n),
            train_batch_size=int(self.config.data.train_batch_size),
            in_rounds=seeds and self.verl_mode == "sync",
            on_evicted=self.question_stats.see_group,
        )
        bounded.on_poll = self.while_waiting
        bounded.poll_interval = float(self.config.recipe.rollout.poll_seconds)
        return bounded

    def _fetch_one_gen_batch(self) -> Any:
        """The next questions, each with its epoch; with a curriculum the best of several."""
        chunks = []
        for _ in range(self.question_stats.candidates):
            epoch = self.batches_fetched // len(self.train_dataloader)
            chunk = super()._fetch_one_gen_batch()
            chunk[EPOCH] = torch.full((len(chunk),), epoch)
            # verl's group id is random. Ours is the position in the data order and the question, so
            # that draws and orders by it are the same in every run with the same seed. It contains
            # no "_", at which verl's replay buffer cuts the group from a row's key.
            first = self.batches_fetched * len(chunk)
            names = [f"{first + i:09d}-{e['uid']}" for i, e in enumerate(chunk["extra_info"])]
            tu.assign_non_tensor_stack(chunk, "uid", names)
            self.batches_fetched += 1
            chunks.append(chunk)
        batch = chunks[0]
        if len(chunks) > 1:
            batch = tu.concat_tensordict(chunks)
            questions = [e["uid"] for e in batch["extra_info"]]
            self.question_stats.start(questions, [e.get("pass_rate") for e in batch["extra_info"]])
            model = self.value_model
            rates = model.rate(self._prompts(batch)) if model else None
            chosen = self.question_stats.choose(questions, len(chunks[0]), rates)
            batch = tu.index_select_tensor_dict(batch, chosen)
        self.question_stats.fetch(list(batch["uid"]), [e["uid"] for e in batch["extra_info"]])
        return batch

    @functools.cached_property
    def value_model(self) -> ValueModel | None:
        curriculum = self.config.recipe.curriculum
        used = curriculum.enable and curriculum.value_model
        return ValueModel(self.critic_wg, self.config) if used else None

    @functools.cached_property
    def renderer(self) -> Prompts:
        return Prompts.from_config(self.config)

    def _prompts(self, batch: Any) -> list[torch.Tensor]:
        """The token ids of each question's prompt, as its first rollout has it."""
        recipe, columns = self.config.recipe, (batch["raw_prompt"], batch["extra_info"])
        ids = []
        for messages, extra, epoch in zip(*columns, batch[EPOCH].tolist(), strict=True):
            row = {"extra_info": extra, "session_id": 0, EPOCH: epoch}
            name = choose_template(recipe.augment, self.renderer.bank, recipe.seed, row)
            earlier, text = turns_of(messages)
            prompt = self.renderer.render(name, text, self.tokenizer, earlier)
            ids.append(torch.tensor(prompt.ids))
        return ids

    def _balance_batch(self, batch: Any, metrics: dict, *args: Any, **kwargs: Any) -> Any:
        """Add verl's padding rows, then use our order (`recipe.trainer.order`)."""
        # Only the padding of verl's call is used: it gives every rank whole mini-batches.
        batch = super()._balance_batch(batch, metrics, *args, **kwargs)
        ranks = max(self.actor_rollout_wg._dispatch_info["actor"]) + 1
        padding = [bool(tag.get("is_padding", False)) for tag in batch.tags]
        seed, step = int(self.config.recipe.seed), self.global_steps
        order = training_order(batch.keys, padding, seed=seed, step=step)
        lengths = [int(tag["seq_len"]) for tag in batch.tags]
        actor, rollout = self.config.actor_rollout_ref.actor, self.config.actor_rollout_ref.rollout
        mini_batch = int(actor.ppo_mini_batch_size)
        if self.use_critic:  # both sizes are multiples, so a critic's has the same rows too
            mini_batch = math.gcd(mini_batch, int(self.config.critic.ppo_mini_batch_size))
        mini_batch *= int(rollout.n)
        shares = distribute(order, lengths, mini_batch=mini_batch, ranks=ranks)
        metrics.update(log_seqlen_unbalance(lengths, shares, prefix="global_seqlen"))
        batch.reorder([i for rows in shares for i in rows])
        return batch

    @functools.cached_property
    def temperature(self) -> float:
        """Of the actor's log-probabilities, ratio, KL and entropy; the rollout's by default."""
        wanted = ratio_temperature(self.config.recipe.weights)
        return float(wanted or self.config.actor_rollout_ref.rollout.temperature)

    @contextmanager
    def _for_actor(self, batch: Any) -> Iterator[None]:
        """`batches.for_actor` at `temperature`, which verl reads from the key of the rollout.

        The engines have copies of the configuration, so they sample at their own.
        """
        rollout = self.config.actor_rollout_ref.rollout
        sampled, rollout.temperature = rollout.temperature, self.temperature
        try:
            with batches.for_actor(batch):
                yield
        finally:
            rollout.temperature = sampled

    def _compute_old_log_prob(self, batch: Any, metrics: dict) -> Any:
        with self._for_actor(batch):
            return super()._compute_old_log_prob(batch, metrics)

    def _compute_ref_log_prob(self, batch: Any, metrics: dict) -> Any:
        with self._for_actor(batch):
            return super()._compute_ref_log_prob(batch, metrics)

    def _compute_values(self, batch: Any, metrics: dict) -> Any:
        if self.value_model:
            return batch
        with batches.for_actor(batch):
            return super()._compute_values(batch, metrics)

    def _update_critic(self, batch: Any, metrics: dict) -> Any:
        if self.value_model:
            metrics.update(self.value_model.fit(self.rollouts))
            return batch
        with batches.for_actor(batch):
            return super()._update_critic(batch, metrics)

    def _update_actor(self, batch: Any, metrics: dict) -> Any:
        actor = self.config.actor_rollout_ref.actor
        mini_batch = actor.ppo_mini_batch_size * self.config.actor_rollout_ref.rollout.n
        self.watchdog.begin()
        # verl has padded the batch to whole mini-batches.
        self.optimizer_steps += actor.ppo_epochs * (len(batch) // mini_batch)
        with self._for_actor(batch):
            return super()._update_actor(batch, metrics)

    @property
    def wall_seconds(self) -> float:
        """Seconds of training so far, including those before a resume."""
        return self.earlier_seconds + time.monotonic() - self.started

    def in_flight(self) -> set[str]:
        """Return the groups of later steps that are requested already."""
        return set()

    def own_state(self) -> dict[str, Any]:
        return {
            "batches_fetched": self.batches_fetched,
            "optimizer_steps": self.optimizer_steps,
            "wall_seconds": self.wall_seconds,
            "question_stats": self.question_stats.state(),
            "kl_in_reward": getattr(self.kl_ctrl_in_reward, "value", None),
        }

    def load_own_state(self, state: dict[str, Any]) -> None:
        self.batches_fetched = state["batches_fetched"]
        self.optimizer_steps = state["optimizer_steps"]
        self.earlier_seconds = state["wall_seconds"]
        self.question_stats.load(state.get("question_stats", {}))
        if self.kl_ctrl_in_reward is not None and state.get("kl_in_reward") is not None:
            self.kl_ctrl_in_reward.value = state["kl_in_reward"]  # an adaptive one has changed

    def _compute_advantage(self, batch: Any, metrics: dict) -> Any:
        """Replaces verl's: one read, verl's corrections, our advantages, one write."""
        fetched, weight_logprobs = self._fetch(batch)
        self.rollouts, self.rewards_B, columns = signal_of(
            fetched,
            self.config,
            step=self.global_steps,
            stats=self.question_stats,
            filled_groups=self.replay_buffer.filled_groups,
            in_flight=self.in_flight(),
            kl_controller=self.kl_ctrl_in_reward,
            weight_logprobs=weight_logprobs,
            hinted_logprobs=self._hinted_logprobs(fetched, metrics),
            metrics=metrics,
        )
        every = self.config.recipe.save_rollouts_every
        if every and self.global_steps % every == 0:  # before a save: a kill then loses none
            lines = records.lines(
                self.rollouts, self.rewards_B, step=self.global_steps, tokenizer=self.tokenizer
            )
            path = run_folder.RunFolder(self.run_dir).rollouts(self.global_steps)
            write_lines(path, lines)
        return batches.write(fetched, columns)

    def _fetch(self, batch: Any) -> tuple[batches.Fetched, torch.Tensor | None]:
        """Return the batch, and its log-probs at the temperature of the token weights (None: same).

        verl computes them at `temperature`. Another one costs one more forward pass, after the
        reference model's, whose result is written to the same column.
        """
        wanted = logprob_temperature(self.config.recipe.weights)
        fields = batches.fields_of(self.config)
        if wanted in (None, self.temperature):
            return batches.fetch(batch, fields), None
        # Only for this pass: verl's `_update_actor` sets temperature and entropy again. With LoRA
        # verl's pass of the reference model leaves the adapter off.
        batch.extra_info.update(calculate_entropy=False, compute_loss=False, no_lora_adapter=False)
        batch.extra_info.update(temperature=float(wanted))  # see __init__
        with batches.for_actor(batch):
            self.actor_rollout_wg.compute_log_prob(batch)
        fetched = batches.fetch(batch, (*fields, "log_probs"))
        mask = fetched.data["response_mask"]
        return fetched, batches.matrix(response_from_nested(fetched.data["log_probs"], mask))

    def _hinted_logprobs(self, fetched: batches.Fetched, metrics: dict) -> torch.Tensor | None:
        """Return the log-probabilities under a right answer, for an advantage that reads them."""
        recipe = self.config.recipe
        if "hinted_logprobs_BT" not in ADVANTAGES.facts(recipe.advantage.name).inputs:
            return None
        return hinted_logprobs(
            fetched,
            renderer=self.renderer,
            tokenizer=self.tokenizer,
            limit=int(self.config.data.max_prompt_length),
            forward=forward_of(self.actor_rollout_wg, self.temperature, len(fetched.lengths)),
            metrics=metrics,
        )

    def _compute_metrics(self, batch: Any, metrics: dict, *args: Any, **kwargs: Any) -> None:
        used = self.use_critic
        self.use_critic = used and self.value_model is None  # verl reads a value of every token
        super()._compute_metrics(batch, metrics, *args, **kwargs)
        self.use_critic = used
        for name in ("response_length", "response_length_non_aborted", "prompt_length"):
            metrics.pop(f"{name}/clip_ratio", None)  # verl's compare with the step's longest row
        # Into verl's dict, which its fit passes to the loggers next.
        metrics["train/optimizer_steps"] = self.optimizer_steps
        # verl's steps / steps per epoch is wrong with dynamic sampling and with a curriculum.
        metrics["training/epoch"] = self.batches_fetched / len(self.train_dataloader)
        metrics["train/wall_seconds"] = self.wall_seconds
        self.end_step(metrics)

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


@register_trainer("recipe_sync")
class RecipeTrainer(RecipeMixin, PPOTrainerSync):
    """``trainer.v1.trainer_mode=recipe_sync``: a step waits for all rollouts of its batch."""
