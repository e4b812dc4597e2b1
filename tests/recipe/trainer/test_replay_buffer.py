"""Bounded dynamic sampling: verl's own sampling loop over a queue in memory.

The queue finishes a group some looks after it is asked for, with the accuracies that the test
scripts, None for a rollout that failed; the real queue, trainer and engine are in
test_methods_e2e.py.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
from omegaconf import OmegaConf
from verl.trainer.ppo.v1 import replay_buffer

from recipe.errors import ExhaustedError, RolloutError
from recipe.trainer import replay_buffer as ours
from recipe.trainer.replay_buffer import BoundedReplayBuffer

Group = tuple[float | None, ...]
WRONG, RIGHT, MIXED = (0.0, 0.0), (1.0, 1.0), (0.0, 1.0)


class Queue:
    """Stands in for TransferQueue: keys with tags, and the accuracy of every rollout."""

    def __init__(self, script: Iterable[Group], looks: Callable[[], int]) -> None:
        self.script: Iterator[Group] = iter(script)
        self.looks = looks  # at how many the next group is still running
        self.running: dict[str, tuple[int, Group]] = {}
        self.tags: dict[str, dict[str, Any]] = {}
        self.accuracy: dict[str, float] = {}
        self.count = 0
        self.engine_gone = False

    def submit(self, prompts: int) -> None:
        for _ in range(prompts):
            uid = f"u{self.count:03d}"
            self.count += 1
            self.tags[uid] = {"is_prompt": True, "status": "running", "global_steps": 1}
            self.running[uid] = (self.looks(), next(self.script))

    def finish(self, uid: str, group: Group) -> None:
        self.tags[uid]["status"] = "failure" if None in group else "finished"
        if None in group:
            self.tags[uid] |= {"error": "EngineDeadError: gone", "engine_gone": self.engine_gone}
        for i, accuracy in enumerate(group):
            if accuracy is not None:
                self.tags[f"{uid}_{i}_0"] = {"status": "success"}
                self.accuracy[f"{uid}_{i}_0"] = accuracy

    def kv_list(self) -> dict[str, dict]:
        for uid, (looks, group) in list(self.running.items()):
            if looks:
                self.running[uid] = (looks - 1, group)
            else:
                self.finish(uid, self.running.pop(uid)[1])
        return {"train": dict(self.tags)}

    def kv_batch_get(self, keys: list[str], **_: Any) -> dict[str, list]:
        values = [self.accuracy[key] for key in keys]
        infos = [{"reward_extra_info": {"acc": v, "format": v}} for v in values]
        return {"extra_fields": infos}

    def kv_clear(self, keys: list[str], **_: Any) -> None:
        for key in keys:
            self.tags.pop(key, None)


def sample(
    monkeypatch: pytest.MonkeyPatch,
    script: Iterable[Group],
    *,
    batch: int = 2,
    max_gen_batches: int = 3,
    on_exhausted: str = "train",
    metric: str | None = "acc",
    looks: int | Callable[[], int] = 0,
    in_rounds: bool = False,
) -> tuple[list[str], dict[str, float], Queue, list[tuple[str, float]]]:
    """(visits in the batch, counts, queue, what `on_evicted` was told) of one step."""
    queue, told = Queue(script, looks if callable(looks) else lambda: looks), []
    monkeypatch.setattr(replay_buffer, "tq", queue)
    monkeypatch.setattr(ours, "tq", queue)
    buffer = BoundedReplayBuffer(
        trainer_mode="sync",
        trainer_config=OmegaConf.create({}),
        max_off_policy_threshold=None,
        max_off_policy_strategy="drop",
        sampler_kwargs=OmegaConf.create({}),
        poll_interval=0.0,
        refill_fn=queue.submit,
        filter_groups_metric=metric,
        train_batch_size=batch,
        gen_batch_size=1,
        max_inflight_gen_batches=1,
        settings=OmegaConf.create(
            {"max_gen_batches": max_gen_batches, "on_exhausted": on_exhausted}
        ),
        on_evicted=lambda uid, value: told.append((uid, value)),
    )
    buffer.in_rounds = in_rounds
    queue.submit(batch)
    meta, metrics = buffer.sample(global_steps=1, partition_id="train", batch_size=batch)
    visits = sorted({key.split("_")[0] for key in meta.keys})
    counts = {k.removeprefix("dynamic_sampling/"): v for k, v in metrics.items()}
    return visits, counts, queue, told


def test_groups_without_signal_are_replaced_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    # u000 all wrong, u001 mixed; two are asked for: u002 all right, u003 mixed.
    visits, counts, _, told = sample(monkeypatch, [WRONG, MIXED, RIGHT, MIXED])
    assert visits == ["u001", "u003"]
    assert counts == {
        **{"generated": 4, "kept": 2, "filled": 0, "exhausted": 0, "discarded": 0, "failed": 0},
        **{"evicted": 2, "evicted_all_wrong": 1, "evicted_all_right": 1},
    }
    assert told == [("u000", 0.0), ("u002", 1.0)]


def test_surplus_groups_are_counted_as_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    visits, counts, _, _ = sample(monkeypatch, [WRONG, MIXED, MIXED, MIXED])
    assert len(visits) == 2 and set(visits) < {"u001", "u002", "u003"}
    assert (counts["generated"], counts["discarded"], counts["evicted"]) == (4, 1, 1)


def test_a_full_batch_at_once_needs_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    visits, counts, _, told = sample(monkeypatch, [MIXED, MIXED])
    assert visits == ["u000", "u001"]
    assert (counts["generated"], counts["evicted"], told) == (2, 0, [])


def test_the_budget_is_kept_and_the_latest_silent_groups_fill_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = [WRONG, MIXED, RIGHT, RIGHT, WRONG, WRONG]
    visits, counts, queue, told = sample(monkeypatch, script)
    assert queue.count == 6  # 3 batches of 2, and not one question more
    assert visits == ["u001", "u005"]  # the group with a signal, and the latest without
    assert (counts["kept"], counts["filled"], counts["exhausted"]) == (1, 1, 1)
    assert (counts["evicted_all_wrong"], counts["evicted_all_right"]) == (3, 2)
    assert len(told) == 5


def test_no_signal_at_all_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    visits, counts, _, _ = sample(monkeypatch, [WRONG] * 6)
    assert visits == ["u004", "u005"]
    assert (counts["kept"], counts["filled"], counts["generated"]) == (0, 2, 6)


def test_stop_says_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExhaustedError, match=r"6 questions in one step: 1 of the 2 wanted.*=train"):
        sample(monkeypatch, [MIXED] + [WRONG] * 5, on_exhausted="stop")


def test_the_end_waits_for_groups_that_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both asked for at once; while they run the budget is spent, and they have the signal."""
    script = [WRONG, WRONG, MIXED, MIXED]
    visits, counts, _, _ = sample(
        monkeypatch, script, max_gen_batches=2, on_exhausted="stop", looks=2
    )
    assert visits == ["u002", "u003"]
    assert (counts["kept"], counts["filled"], counts["evicted"]) == (2, 0, 2)


@pytest.mark.parametrize("in_rounds", [True, False])
def test_in_rounds_nothing_depends_on_who_finishes_first(
    monkeypatch: pytest.MonkeyPatch, in_rounds: bool
) -> None:
    """The negative control: without rounds some order of arrival asks for other questions."""
    script = [MIXED, WRONG, RIGHT, MIXED, WRONG, (None, 1.0), MIXED, WRONG] * 4
    seen = set()
    for seed in range(60):
        luck = random.Random(seed)
        found, counts, queue, told = sample(
            monkeypatch,
            script,
            batch=4,
            max_gen_batches=8,
            looks=lambda luck=luck: luck.choice([0, 1, 5, 20]),
            in_rounds=in_rounds,
        )
        seen.add((tuple(found), tuple(sorted(counts.items())), queue.count, tuple(told)))
    assert (len(seen) == 1) is in_rounds


def test_groups_with_failures_are_judged_by_what_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """u000 is all wrong as far as it goes, u001 has one response, u002 none; u003 has a signal."""
    failures = [(0.0, 0.0, None), (1.0, None, None), (None,) * 3, (0.0, 1.0, None)]
    visits, counts, queue, told = sample(
        monkeypatch, [*failures, RIGHT, MIXED, MIXED, MIXED], batch=4
    )
    assert visits == ["u003", "u005", "u006", "u007"]
    assert (counts["failed"], counts["evicted"], counts["kept"]) == (2, 2, 4)
    assert counts["generated"] == queue.count == 8
    assert told == [("u000", 0.0), ("u004", 1.0)]


def test_failed_groups_are_replaced_beyond_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """One batch is the bound; without the replacement nothing could fill it up."""
    script = [(None, None), MIXED, WRONG]
    visits, counts, queue, _ = sample(monkeypatch, script, max_gen_batches=1)
    assert visits == ["u001", "u002"]
    assert (counts["failed"], counts["kept"], counts["filled"], queue.count) == (1, 1, 1, 3)


@pytest.mark.parametrize("on_exhausted", ["train", "stop"])
def test_rollouts_that_go_on_failing_end_the_run(
    monkeypatch: pytest.MonkeyPatch, on_exhausted: str
) -> None:
    """Twice the bound of one batch, not for ever; a reserve of nothing can fill up nothing."""
    advice = {"train": "logs/train.log", "stop": "on_exhausted=train"}[on_exhausted]
    with pytest.raises(ExhaustedError, match=f"generated 4 questions.*of 4 failed.*{advice}"):
        sample(monkeypatch, [(None, None)] * 50, max_gen_batches=1, on_exhausted=on_exhausted)


def test_another_metric_is_not_called_right_or_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    _, counts, _, _ = sample(monkeypatch, [WRONG, MIXED, RIGHT, MIXED], metric="format")
    assert (counts["evicted"], counts["evicted_equal"]) == (2, 2)
    assert (counts["evicted_all_wrong"], counts["evicted_all_right"]) == (0, 0)


def test_nothing_is_left_in_the_queue_but_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    for script in ([WRONG, MIXED, MIXED, MIXED], [WRONG] * 6, [WRONG, MIXED, RIGHT, MIXED]):
        visits, _, queue, _ = sample(monkeypatch, script)
        assert {key.split("_")[0] for key in queue.tags} == set(visits)
        assert not any(tag.get("is_prompt") for tag in queue.tags.values())


def test_without_the_filter_all_groups_are_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    visits, counts, queue, told = sample(monkeypatch, [WRONG, RIGHT], metric=None)
    assert visits == ["u000", "u001"]
    assert (counts, queue.count, told) == ({}, 2, [])


def test_verl_without_the_bound_would_go_on_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why this exists; fails when verl bounds its own filter, and the adapter can go."""
    queue = Queue([WRONG] * 500, lambda: 0)
    monkeypatch.setattr(replay_buffer, "tq", queue)
    buffer = replay_buffer.ReplayBuffer(
        trainer_mode="sync",
        trainer_config=OmegaConf.create({"max_num_gen_batches": 3}),
        max_off_policy_threshold=None,
        max_off_policy_strategy="drop",
        sampler_kwargs=OmegaConf.create({}),
        poll_interval=0.0,
        refill_fn=queue.submit,
        filter_groups_metric="acc",
        train_batch_size=2,
        gen_batch_size=1,
    )
    queue.submit(2)
    with pytest.raises(StopIteration):  # the script of 500 groups ran out
        buffer.sample(global_steps=1, partition_id="train", batch_size=2)


@pytest.mark.parametrize("metric", [None, "acc"])
def test_where_all_rollouts_failed_their_first_error_is_told(
    monkeypatch: pytest.MonkeyPatch, metric: str | None
) -> None:
    lost: Group = (None, None)
    with pytest.raises((RolloutError, ExhaustedError), match="EngineDeadError: gone"):
        sample(monkeypatch, [lost] * 12, metric=metric)
    sample(monkeypatch, [lost, MIXED, MIXED, MIXED, MIXED], metric=metric)  # one of two: goes on


def test_a_step_is_given_up_where_the_engine_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the line above: with one rollout of each question it would train on."""
    half: Group = (1.0, None)
    sample(monkeypatch, [half, MIXED], metric=None)
    init = Queue.__init__

    def gone(self: Queue, *args: Any) -> None:
        init(self, *args)
        self.engine_gone = True

    monkeypatch.setattr(Queue, "__init__", gone)
    with pytest.raises(RolloutError, match=r"the engine is gone: .* 1 questions .* EngineDead"):
        sample(monkeypatch, [half, MIXED], metric=None)
