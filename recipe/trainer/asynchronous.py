"""Generation that does not wait for the longest response: ``recipe_colocate_async``.

W is ``trainer.v1.colocate_async.num_warmup_batches``. A step requests a batch of questions while W
earlier batches are in flight, and trains the next batch of the data order as soon as its groups are
finished. All other rollouts are aborted, and continued under the new weights. A group that is
requested in step s is trained in step s + W at the latest.

Groups are trained in the data order, not in the order in which they finish: no response is dropped,
delayed or preferred for its length, and the questions of a step do not depend on the machine.
"""

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import transfer_queue as tq
from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync

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


@register_trainer("recipe_colocate_async")
class ColocateAsyncTrainer(RecipeMixin, PPOTrainerColocateAsync):
    """``trainer.v1.trainer_mode=recipe_colocate_async``; `RecipeMixin` compares the modes.

    Overrides of verl:
      _load_checkpoint     deletes rows of the step that the checkpoint has already trained
      prepare_step         fills the window, which dynamic sampling may have left smaller
      on_sample_end        starts the time in which the engines stand still
      on_step_end          ends it
      _compute_advantage   adds metrics of staleness
    """

    verl_mode = "colocate_async"
    buffer_class = InOrderReplayBuffer
    stopped = 0.0  # when the engines were stopped

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        # verl saves the queue before it deletes the rows of the step, which nobody would read.
        tags = (tq.kv_list("train") or {}).get("train", {})
        asked = {key for key, tag in tags.items() if tag.get("is_prompt", False)}
        trained = [key for key in tags if key not in asked and group_id(key) not in asked]
        if trained:
            tq.kv_clear(keys=trained, partition_id="train")

    def prepare_step(self) -> dict:
        prepared: dict = super().prepare_step()
        window = 1 + float(self.config.trainer.v1.colocate_async.num_warmup_batches)
        missing = int(window * self.config.data.train_batch_size) - len(self.in_flight())
        if missing > 0:
            self._add_prompts_to_generate(missing)
        return prepared

    def in_flight(self) -> set[str]:
        return self.replay_buffer.in_flight()

    def on_sample_end(self) -> None:
        self.stopped = time.monotonic()
        super().on_sample_end()

    def on_step_end(self) -> None:
        super().on_step_end()
        self.timing_raw["engines_wait"] = time.monotonic() - self.stopped

    def _compute_advantage(self, batch: Any, metrics: dict) -> Any:
        batch = super()._compute_advantage(batch, metrics)
        metrics.update(staleness(self.rollouts.versions, self.global_steps))
        return batch
