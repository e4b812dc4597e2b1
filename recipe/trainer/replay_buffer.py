"""DAPO's dynamic sampling (arXiv 2503.14476), bounded: verl's filter with a limit on its work.

verl 0.9.1 throws away every group whose accuracies are all equal and asks for two new questions in
its place, for as long as it takes: where no group ever has a signal, the step never ends. Here the
questions generated in a step are at most ``max_gen_batches`` x ``data.train_batch_size``. When
they are spent and the batch is not full:

    on_exhausted = train   it is filled up with the latest groups without signal, which are kept in
                           reserve for that: the batch keeps its size, and the trainer sets their
                           advantage to 0 (the format or length part of a reward may differ in them)
    on_exhausted = stop    the run saves a checkpoint of the last finished step and ends

Where runs are to be repeatable (`in_rounds`), nothing is decided before all questions under way are
done: how many are asked for, and so which come next, would otherwise depend on who was first. All
that replace the evicted ones are then asked for at once, as far as the bound allows.

Nothing is trained on a part of what was asked for, with or without dynamic sampling: where a group
lacks responses, because rollouts failed (twice: recipe.rollout.workers) or for any other reason,
the run ends and says how many. verl trains on what is left, with padding in place of the rest.
Every step logs how many groups were generated, kept, evicted, discarded and filled in.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import transfer_queue as tq
from omegaconf import DictConfig
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from recipe.errors import ExhaustedError, LostEngineError, RolloutError

PREFIX = "dynamic_sampling/"


class BoundedReplayBuffer(ReplayBuffer):
    """verl's synchronous buffer; evicted groups wait in reserve until the step is complete.

    `settings` is the section ``recipe.dynamic_sampling``, `group_size` the responses to a training
    question, `in_rounds` whether runs are to be repeatable; `on_evicted` gets the trainer's uid
    of a group without signal and the accuracy that all its responses share.

    Overrides of verl:
      __init__                     what asks for new questions has a bound
      sample                       refuses a batch that is not whole; clears the reserve and counts
      _wait_for_next_poll          the watchdog sees what has moved, and the step may be given up
      _terminal_eviction_reasons   ends the run where rollouts failed; in rounds none before the end
      _evict_terminal_groups       groups without signal go into the reserve
      _sampleable_terminal_keys    fills up from the reserve, or stops, when the bound is reached
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
        if in_rounds:  # else a part would be asked for whenever one of the first of them is done
            self.max_inflight_gen_batches = int(settings.max_gen_batches)
        self.unbounded_refill: Any = kwargs["refill_fn"]
        if self.filter_groups_metric is not None:
            self.refill_fn = self._refill
        self.filled_groups: set[str] = set()  # of the last batch: they must not train anything
        self.on_look: Callable[[tuple[str, int, int]], None] = lambda work: None  # and so may this
        self.on_poll: Callable[[], None] = lambda: None  # may raise, to give the step up
        self._start_step()

    @classmethod
    def of(cls, built: ReplayBuffer, **own: Any) -> "BoundedReplayBuffer":
        """This buffer with the settings of the one that verl's trainer has built.

        verl's own key for it, trainer.v1.sampler.custom_sampler, does not tell the class the
        filter's metric nor the batch size.
        """
        names = [
            *("trainer_mode", "trainer_config", "max_off_policy_threshold"),
            *("max_off_policy_strategy", "sampler_kwargs", "poll_interval", "refill_fn"),
            *("filter_groups_metric", "train_batch_size", "gen_batch_size"),
            *("max_inflight_gen_batches", "sync_refill_failed_groups"),
        ]
        return cls(**{name: getattr(built, name) for name in names}, **own)

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
        self.on_look((partition_id, len(done), len(failed)))
        if partition_id != "val":
            self.on_poll()
        return super()._wait_for_next_poll(partition_id, last_debug_time)

    def _refill(self, wanted: int) -> None:
        """Ask for what the bound allows; verl counts all of `wanted` as asked for."""
        allowed = min(wanted, self.budget - self.generated)
        if allowed > 0 and not self.failure_keys["train"]:  # after a failure the run ends
            self.generated += allowed
            self.unbounded_refill(allowed)

    def _under_way(self, partition_id: str) -> bool:
        return bool(self.pending_keys[partition_id] or self.running_keys[partition_id])

    def _wait(self, partition_id: str) -> bool:
        """Whether nothing is to be decided before all that is under way is done."""
        filtered = partition_id != "val" and self.filter_groups_metric is not None
        in_rounds = self.in_rounds and filtered and self._under_way(partition_id)
        return in_rounds or bool(self.failure_keys[partition_id])

    def _refuse_failures(self, partition_id: str) -> None:
        """RolloutError where rollouts failed, once all are done; at once where an actor is gone.

        verl would train on the rollouts that there are, or wait forever for a dead engine.
        """
        failed = self.failure_keys[partition_id]
        if not failed:
            return
        all_tags = (tq.kv_list() or {}).get(partition_id, {})
        tags = [all_tags[uid] for uid in sorted(failed)]
        gone = any(tag["engine_gone"] for tag in tags)
        if self._under_way(partition_id) and not gone:
            return
        questions = len(failed | self.finished_keys[partition_id])
        what = "the validation's"
        if partition_id != "val":
            what, questions = "the step's", self.generated
        lost, asked = sum(tag["lost"] for tag in tags), tags[0]["asked"]
        told = (
            f"{lost} of {what} {questions * asked} rollouts failed, also when repeated, of "
            f"{len(failed)} of {questions} questions; nothing is trained on a part. The first "
            f"error: {tags[0]['error']}"
        )
        if gone:
            raise LostEngineError(f"an engine or a reward worker is gone: {told}")
        raise RolloutError(told)

    def _terminal_eviction_reasons(self, global_steps: int, partition_id: str) -> Any:
        self._refuse_failures(partition_id)
        if self._wait(partition_id):
            return set(), set(), set(), Counter()
        return super()._terminal_eviction_reasons(global_steps, partition_id)

    def _evict_terminal_groups(
        self, global_steps: int, partition_id: str, eviction_reasons: Any
    ) -> tuple[set[str], int, int, dict]:
        """As in verl, but a group without signal goes into the reserve; the oldest are cleared."""
        stale, silent, _, _ = eviction_reasons
        if partition_id == "val" or self.filter_groups_metric is None:
            return super()._evict_terminal_groups(global_steps, partition_id, eviction_reasons)
        values = self._dapo_classification_cache[partition_id]
        # To verl those in reserve are still finished groups: at every look they come again.
        new = sorted(silent - set(self.reserve))
        metrics: dict[str, float] = {}
        for uid in new:
            value = float(values[uid])
            self.on_evicted(uid, value)
            key = self._reason(value)
            metrics[PREFIX + key] = metrics.get(PREFIX + key, 0) + 1
        self.reserve += new
        over = max(0, len(self.reserve) - int(self.train_batch_size))
        cleared, self.reserve = self.reserve[:over], self.reserve[over:]
        self._clear_groups(partition_id, set(cleared) | stale)
        if new:
            metrics[PREFIX + "evicted"] = len(new)
        return set(new) | stale, len(stale), len(new), metrics

    def _reason(self, value: float) -> str:
        """The count for an evicted group, all of whose responses have this value of the metric."""
        if self.filter_groups_metric != "acc":
            return "evicted_equal"
        return {0.0: "evicted_all_wrong", 1.0: "evicted_all_right"}.get(value, "evicted_equal")

    def _sampleable_terminal_keys(self, partition_id: str, eviction_reasons: Any) -> set[str]:
        """Groups to train on; with the budget spent and nothing under way, the reserve fills up."""
        if self._wait(partition_id):
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
        """As in verl, which takes any of those of one step; here the first in the data order."""
        return super()._select_prompt_uids(partition_id, sorted(sampleable_keys), batch_size)

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[Any, dict]:
        """verl's sampling, then the end of the reserve and the counts of the step."""
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        if partition_id != "val":
            self._check_whole(batch.keys, batch_size)
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

    def _check_whole(self, keys: list[str], questions: int) -> None:
        """RolloutError for a batch that is not what the step asked for, whatever the reason."""
        sizes = Counter(key.split("_")[0] for key in keys)
        partial = {uid: size for uid, size in sizes.items() if size != self.group_size}
        if partial or len(sizes) != questions:
            first = next((f", {uid} has {size}" for uid, size in partial.items()), "")
            raise RolloutError(
                f"a step of {questions} questions x {self.group_size} rollouts got {len(keys)} "
                f"rollouts of {len(sizes)} questions{first}: rollouts were lost on their way to "
                "the trainer, and nothing is trained on a part"
            )
