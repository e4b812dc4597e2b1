"""Generation that does not wait for the longest response, on shared GPUs or on GPUs of its own.

W is ``num_warmup_batches`` of the mode. A step requests a batch of questions while W earlier
batches are in flight, and trains the next batch of the data order as soon as its groups are
finished. When the weights change, all other rollouts are aborted, and continued under the new ones.
A group that is requested in step s is trained in step s + W at the latest.

Groups are trained in the data order, not in the order in which they finish: no response is dropped,
delayed or preferred for its length, and the questions of a step do not depend on the machine.
"""

import logging
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import transfer_queue as tq
from omegaconf import DictConfig, open_dict
from verl.trainer.ppo.v1 import trainer_separate_async
from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync
from verl.trainer.ppo.v1.trainer_base import PPOTrainer, register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync

from recipe.rollout import weights
from recipe.trainer.order import group_id
from recipe.trainer.replay_buffer import BoundedReplayBuffer
from recipe.trainer.trainer import RecipeMixin


def staleness(versions: Sequence[Sequence[Sequence[int]]], step: int) -> dict[str, float]:
    """Return metrics of a step; `versions` holds [weight version, tokens] of each response's parts.

    The staleness of a token is ``step - 1`` minus its version: step s starts with version s - 1.
    """
    tokens: Counter[int] = Counter()
    for parts in versions:
        for version, count in parts:
            tokens[step - 1 - version] += count
    total = tokens.total()
    if not total:
        return {}
    return {
        "staleness/mean": sum(lag * count for lag, count in tokens.items()) / total,
        "staleness/max": float(max(tokens)),
        "staleness/mixed": sum(len(parts) > 1 for parts in versions) / len(versions),
        **{f"staleness/{lag}": count / total for lag, count in sorted(tokens.items())},
    }


class InOrderReplayBuffer(BoundedReplayBuffer, ReplayBufferAsync):
    """verl's asynchronous buffer, which takes the groups of a step in the data order.

    verl takes the groups that finish first, so its batches prefer short responses; with
    ``max_off_policy_strategy=drop`` it never trains the longest ones.

    Overrides of verl:
      __init__              switches verl's dropping and waiting by age off; the order bounds it
      _has_enough_samples   waits for the first groups of the data order
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs | {"max_off_policy_threshold": None})

    def _has_enough_samples(
        self, global_steps: int, partition_id: str, batch_size: int, sampleable_keys: set[str]
    ) -> bool:
        if partition_id == "val":
            return len(sampleable_keys) >= batch_size
        waiting = self.pending_keys[partition_id] | self.running_keys[partition_id]
        first = sorted(sampleable_keys | waiting)[:batch_size]
        return len(first) == batch_size and waiting.isdisjoint(first)

    def in_flight(self) -> set[str]:
        """Return the training groups that are requested and not trained."""
        self._sync_metadata_from_transfer_queue()
        return set(self.prompt_global_steps["train"])


class AsyncMixin(RecipeMixin):
    """`RecipeMixin` over an asynchronous trainer of verl.

    Overrides of verl:
      _load_checkpoint     deletes rows of the step that the checkpoint has already trained, and
                           those of a validation that was cut short
      prepare_step         fills the window, which dynamic sampling may have left smaller
      _compute_advantage   adds metrics of staleness
    """

    buffer_class = InOrderReplayBuffer

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        # verl saves the queue before it deletes the rows of the step, which nobody would read.
        tags = (tq.kv_list("train") or {}).get("train", {})
        prompts = {key for key, tag in tags.items() if tag.get("is_prompt", False)}
        trained = [key for key in tags if key not in prompts and group_id(key) not in prompts]
        validated = list((tq.kv_list("val") or {}).get("val", {}))
        for partition, keys in (("train", trained), ("val", validated)):
            if keys:
                tq.kv_clear(keys=keys, partition_id=partition)

    def prepare_step(self) -> dict:
        prepared: dict = super().prepare_step()
        window = 1 + float(self.config.trainer.v1[self.verl_mode].num_warmup_batches)
        missing = int(window * self.config.data.train_batch_size) - len(self.in_flight())
        if missing > 0:
            self._add_prompts_to_generate(missing)
        return prepared

    def in_flight(self) -> set[str]:
        return self.replay_buffer.in_flight()

    def _compute_advantage(self, batch: Any, metrics: dict) -> Any:
        batch = super()._compute_advantage(batch, metrics)
        metrics.update(staleness(self.rollouts.versions, self.global_steps))
        return batch


@register_trainer("recipe_colocate_async")
class ColocateAsyncTrainer(AsyncMixin, PPOTrainerColocateAsync):
    """``trainer.v1.trainer_mode=recipe_colocate_async``; `RecipeMixin` compares the modes.

    Overrides of verl:
      on_sample_end   starts the time in which the engines stand still
      on_step_end     ends it
    """

    verl_mode = "colocate_async"
    stopped = 0.0  # when the engines were stopped

    def on_sample_end(self) -> None:
        self.stopped = time.monotonic()
        super().on_sample_end()

    def on_step_end(self) -> None:
        super().on_step_end()
        self.timing_raw["engines_wait"] = time.monotonic() - self.stopped


# verl passes flush=True to one of its calls, which raises TypeError where that level is enabled.
logging.getLogger(trainer_separate_async.__name__).setLevel(logging.WARNING)


@register_trainer("recipe_separate_async")
class SeparateAsyncTrainer(AsyncMixin, PPOTrainerSeparateAsync):
    """``trainer.v1.trainer_mode=recipe_separate_async``; `RecipeMixin` compares the modes.

    The engines have the GPUs of ``actor_rollout_ref.rollout.nnodes`` x ``n_gpus_per_node``, the
    actor those of ``trainer``. As in the other modes, a step computes advantages over its whole
    batch and may update several times; verl's trainer does both a mini-batch at a time.

    Overrides of verl:
      __init__               no engines on the actor's GPUs; transport of the weights; whole batches
      _setup                 one manager of engines for both of verl's names
      _compute_old_log_prob  without verl's copy of the weights for later updates of the step
    """

    verl_mode = "separate_async"

    def __init__(self, config: DictConfig) -> None:
        with open_dict(config):
            config.actor_rollout_ref.hybrid_engine = False
            config.trainer.v1.separate_async.parameter_sync_step = 1
            rollout = config.actor_rollout_ref.rollout
            transport = rollout.checkpoint_engine
            if transport.backend == "naive":  # verl's default, which needs shared GPUs
                transport.backend = weights.BACKEND
                transport.custom_backend_module = weights.__name__
                transport.engine_kwargs[weights.BACKEND] = {"dtype": rollout.dtype}
        actor = config.actor_rollout_ref.actor
        mini_batch = actor.ppo_mini_batch_size
        actor.ppo_mini_batch_size = config.data.train_batch_size
        super().__init__(config)  # asserts that a step has `parameter_sync_step` updates
        actor.ppo_mini_batch_size = mini_batch

    def _setup(self) -> None:
        super()._setup()
        self.checkpoint_manager = self.standalone_checkpoint_manager

    def _compute_old_log_prob(self, batch: Any, metrics: dict) -> Any:
        with self._for_actor(batch):
            return PPOTrainer._compute_old_log_prob(self, batch, metrics)
