"""DAPO's dynamic sampling (arXiv 2503.14476) with a limit on the questions of a step.

verl 0.9.1 discards every zero-variance group (all accuracies equal) and requests two new questions
for it, without a limit: if no group ever has variance, the step never ends. Here a step generates
at most ``max_gen_batches`` x ``data.train_batch_size`` questions. When these are exhausted and the
batch is not full:

    on_exhausted = train   the latest zero-variance groups, kept in reserve, fill the batch. The
                           trainer sets the advantages of these filler groups to 0, since the format
                           or length part of their rewards may differ
    on_exhausted = stop    the run ends; the steps since the last checkpoint are lost

In repeatable runs (`in_rounds`) the buffer decides only when all running questions have finished:
otherwise the number of new requests, and so the next questions, would depend on the order of
arrival. All replacements are then requested at once, within the limit.

A step is never trained on a part of its rollouts. If a rollout fails after its retry
(recipe.rollout.workers), or a group lacks responses, the run ends. verl trains on the rest, with
padding rows.
"""

import inspect
from collections import Counter
from collections.abc import Callable
from typing import Any

import transfer_queue as tq
from omegaconf import DictConfig
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from recipe.errors import ExhaustedError, RolloutError

PREFIX = "dynamic_sampling/"


class BoundedReplayBuffer(ReplayBuffer):
    """verl's buffer; evicted groups stay in reserve until the step is complete.

    `settings` is the section ``recipe.dynamic_sampling``, `group_size` the number of responses to
    a training question, `in_rounds` True for repeatable runs. `on_evicted` is called with the
    trainer's uid of a zero-variance group and the accuracy that all its responses share.

    Overrides of verl:
      __init__                     limits the requests for new questions
      sample                       raises if the batch is incomplete; clears the reserve, counts
      _wait_for_next_poll          reports progress to the trainer, which may end the wait
      _terminal_eviction_reasons   raises if a rollout failed; in rounds waits for all groups
      _evict_terminal_groups       moves zero-variance groups into the reserve
      _sampleable_terminal_keys    at the limit, fills the batch from the reserve, or stops
      _select_prompt_uids          the first in the data order
    """

    def __init__(
        self,
        *args: Any,
        settings: DictConfig,
        group_size: int,
        in_rounds: bool,
        on_evicted: Callable[[str, float], None],
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.settings, self.group_size, self.on_evicted = settings, group_size, on_evicted
        self.in_rounds = in_rounds
        if in_rounds:  # otherwise verl would request a part whenever one question finishes
            self.max_inflight_gen_batches = int(settings.max_gen_batches)
        self.unbounded_refill: Any = kwargs["refill_fn"]
        if self.filter_groups_metric is not None:
            self.refill_fn = self._refill
        self.filled_groups: set[str] = set()  # in the last batch; their advantages are set to 0
        # Called with the partition and its counts of finished and failed groups; may raise.
        self.on_poll: Callable[[str, int, int], None] = lambda *_: None
        self._start_step()

    @classmethod
    def of(cls, built: ReplayBuffer, **own: Any) -> "BoundedReplayBuffer":
        """Create from the buffer that verl's trainer built, copying its settings."""
        names = inspect.signature(ReplayBuffer).parameters  # and attributes of the same names
        return cls(**{name: getattr(built, name) for name in names} | own)

    def _start_step(self) -> None:
        self.generated = int(self.train_batch_size or 0)  # the trainer submits the first batch
        self.reserve: list[str] = []  # evicted in this step, oldest first
        self.filling: set[str] = set()

    @property
    def budget(self) -> int:
        """Questions that a step may generate."""
        return int(self.settings.max_gen_batches) * int(self.train_batch_size)

    def _wait_for_next_poll(self, partition_id: str, last_debug_time: float) -> float:
        done, failed = self.finished_keys[partition_id], self.failure_keys[partition_id]
        self.on_poll(partition_id, len(done), len(failed))
        return super()._wait_for_next_poll(partition_id, last_debug_time)

    def _refill(self, wanted: int) -> None:
        """Request at most what the limit allows; verl counts all of `wanted` as requested."""
        allowed = min(wanted, self.budget - self.generated)
        if allowed > 0:
            self.generated += allowed
            self.unbounded_refill(allowed)

    def _under_way(self, partition_id: str) -> bool:
        return bool(self.pending_keys[partition_id] or self.running_keys[partition_id])

    def _must_wait(self, partition_id: str) -> bool:
        """Return whether to wait, in rounds, for questions that run."""
        filtered = partition_id != "val" and self.filter_groups_metric is not None
        return self.in_rounds and filtered and self._under_way(partition_id)

    def _terminal_eviction_reasons(self, global_steps: int, partition_id: str) -> Any:
        if failed := sorted(self.failure_keys[partition_id]):
            tag = (tq.kv_list() or {})[partition_id][failed[0]]
            raise RolloutError(
                f"{tag['lost']} of {tag['requested']} rollouts of question {failed[0]} failed, "
                f"also when retried: {tag['error']}. No step is trained on a part of its rollouts."
            )
        if self._must_wait(partition_id):
            return set(), set(), set(), Counter()
        return super()._terminal_eviction_reasons(global_steps, partition_id)

    def _evict_terminal_groups(
        self, global_steps: int, partition_id: str, eviction_reasons: Any
    ) -> tuple[set[str], int, int, dict]:
        """As in verl, but keep zero-variance groups in reserve, at most a batch of the latest."""
        stale, silent, _, _ = eviction_reasons
        if partition_id == "val" or self.filter_groups_metric is None:
            return super()._evict_terminal_groups(global_steps, partition_id, eviction_reasons)
        values = self._dapo_classification_cache[partition_id]
        # verl counts groups in reserve as finished and reports them at every poll.
        new = sorted(silent - set(self.reserve))
        metrics: dict[str, float] = {}
        for uid in new:
            value = float(values[uid])
            self.on_evicted(uid, value)
            key = "evicted_equal"  # the counter, by the value of all responses of the group
            if self.filter_groups_metric == "acc":
                key = {0.0: "evicted_all_wrong", 1.0: "evicted_all_right"}.get(value, key)
            metrics[PREFIX + key] = metrics.get(PREFIX + key, 0) + 1
        self.reserve += new
        over = max(0, len(self.reserve) - int(self.train_batch_size))
        cleared, self.reserve = self.reserve[:over], self.reserve[over:]
        self._clear_groups(partition_id, set(cleared) | stale)
        if new:
            metrics[PREFIX + "evicted"] = len(new)
        return set(new) | stale, len(stale), len(new), metrics

    def _sampleable_terminal_keys(self, partition_id: str, eviction_reasons: Any) -> set[str]:
        """Return the groups to train on, filled from the reserve at the limit if nothing runs."""
        if self._must_wait(partition_id):
            return set()
        usable = super()._sampleable_terminal_keys(partition_id, eviction_reasons)
        if partition_id == "val" or self.filter_groups_metric is None:
            return usable
        usable -= set(self.reserve)
        missing = int(self.train_batch_size) - len(usable)
        if missing <= 0 or self._under_way(partition_id) or self.generated < self.budget:
            return usable
        if self.settings.on_exhausted == "stop":
            raise ExhaustedError(
                f"dynamic sampling generated {self.generated} questions in one step: "
                f"{len(usable)} of the {self.train_batch_size} wanted have a signal. The questions "
                "are too easy or too hard for this model: change the data, raise recipe."
                "dynamic_sampling.max_gen_batches, or set recipe.dynamic_sampling.on_exhausted="
                "train"
            )
        self.filling = set(self.reserve[-missing:])
        return usable | self.filling

    def _select_prompt_uids(
        self, partition_id: str, sampleable_keys: set[str], batch_size: int
    ) -> Any:
        """verl takes any groups of the step; here the first in the data order."""
        first = set(sorted(sampleable_keys)[:batch_size])
        return super()._select_prompt_uids(partition_id, first, batch_size)

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict]:
        """verl's sampling; then clear the reserve and add the counts of the step."""
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        if partition_id != "val":
            self._require_whole(batch.keys, batch_size)
        if partition_id == "val" or self.filter_groups_metric is None:
            return batch, metrics
        chosen = {key.split("_")[0] for key in batch.keys}
        self._clear_groups(partition_id, set(self.reserve) - chosen)
        discarded = metrics.pop("training/filter_groups/discarded_surplus_samples", 0)
        counts = {
            "generated": self.generated,
            "kept": batch_size - len(self.filling),
            "filled": len(self.filling),
            "discarded": discarded,
            "exhausted": float(bool(self.filling)),
        }
        metrics.update({PREFIX + name: float(value) for name, value in counts.items()})
        for key in ("evicted", "evicted_all_right", "evicted_all_wrong"):
            metrics.setdefault(PREFIX + key, 0)
        self.filled_groups = self.filling
        self._start_step()
        return batch, metrics

    def _require_whole(self, keys: list[str], questions: int) -> None:
        """Raise RolloutError if the batch is not what the step requested."""
        sizes = Counter(key.split("_")[0] for key in keys)
        partial = {uid: size for uid, size in sizes.items() if size != self.group_size}
        if partial or len(sizes) != questions:
            first = next((f", {uid} has {size}" for uid, size in partial.items()), "")
            raise RolloutError(
                f"a step of {questions} questions x {self.group_size} rollouts got {len(keys)} "
                f"rollouts of {len(sizes)} questions{first}: rollouts were lost on their way to "
                "the trainer. No step is trained on a part of its rollouts."
            )
