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

from recipe.errors import ExhaustedError, LostEngineError, RolloutError
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
        self.vanish: set[str] = set()  # rows that get lost on their way

    def submit(self, prompts: int) -> None:
        for _ in range(prompts):
            uid = f"u{self.count:03d}"
            self.count += 1
            self.tags[uid] = {"is_prompt": True, "status": "running", "global_steps": 1}
            self.running[uid] = (self.looks(), next(self.script))

    def finish(self, uid: str, group: Group) -> None:
        self.tags[uid]["status"] = "failure" if None in group else "finished"
        if None in group:
            told = {"error": f"ValueError: {uid}", "engine_gone": self.engine_gone}
            self.tags[uid] |= {**told, "lost": group.count(None), "asked": len(group)}
        for i, accuracy in enumerate(group):
            if accuracy is not None and None not in group and f"{uid}_{i}" not in self.vanish:
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
    engine_gone: bool = False,
    vanish: frozenset[str] = frozenset(),
) -> tuple[list[str], dict[str, float], Queue, list[tuple[str, float]]]:
    """(groups in the batch, counts, queue, what `on_evicted` was told) of one step."""
    queue, told = Queue(script, looks if callable(looks) else lambda: looks), []
    queue.engine_gone, queue.vanish = engine_gone, set(vanish)
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
        group_size=2,
        in_rounds=in_rounds,
        on_evicted=lambda uid, value: told.append((uid, value)),
    )
    queue.submit(batch)
    meta, metrics = buffer.sample(global_steps=1, partition_id="train", batch_size=batch)
    groups = sorted({key.split("_")[0] for key in meta.keys})
    counts = {k.removeprefix("dynamic_sampling/"): v for k, v in metrics.items()}
    return groups, counts, queue, told


def test_groups_without_signal_are_replaced_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    # u000 all wrong, u001 mixed; two are asked for: u002 all right, u003 mixed.
    groups, counts, _, told = sample(monkeypatch, [WRONG, MIXED, RIGHT, MIXED])
    assert groups == ["u001", "u003"]
    assert counts == {
        **{"generated": 4, "kept": 2, "filled": 0, "exhausted": 0, "discarded": 0},
        **{"evicted": 2, "evicted_all_wrong": 1, "evicted_all_right": 1},
    }
    assert told == [("u000", 0.0), ("u002", 1.0)]


def test_surplus_groups_are_counted_as_discarded(monkeypatch: pytest.MonkeyPatch) -> None:
    groups, counts, _, _ = sample(monkeypatch, [WRONG, MIXED, MIXED, MIXED])
    assert len(groups) == 2 and set(groups) < {"u001", "u002", "u003"}
    assert (counts["generated"], counts["discarded"], counts["evicted"]) == (4, 1, 1)


def test_a_full_batch_at_once_needs_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    groups, counts, _, told = sample(monkeypatch, [MIXED, MIXED])
    assert groups == ["u000", "u001"]
    assert (counts["generated"], counts["evicted"], told) == (2, 0, [])


def test_the_budget_is_kept_and_the_latest_silent_groups_fill_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = [WRONG, MIXED, RIGHT, RIGHT, WRONG, WRONG]
    groups, counts, queue, told = sample(monkeypatch, script)
    assert queue.count == 6  # 3 batches of 2, and not one question more
    assert groups == ["u001", "u005"]  # the group with a signal, and the latest without
    assert (counts["kept"], counts["filled"], counts["exhausted"]) == (1, 1, 1)
    assert (counts["evicted_all_wrong"], counts["evicted_all_right"]) == (3, 2)
    assert len(told) == 5


def test_no_signal_at_all_ends_too(monkeypatch: pytest.MonkeyPatch) -> None:
    groups, counts, _, _ = sample(monkeypatch, [WRONG] * 6)
    assert groups == ["u004", "u005"]
    assert (counts["kept"], counts["filled"], counts["generated"]) == (0, 2, 6)


def test_stop_says_what_was_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExhaustedError, match=r"6 questions in one step: 1 of the 2 wanted.*=train"):
        sample(monkeypatch, [MIXED] + [WRONG] * 5, on_exhausted="stop")


def test_the_end_waits_for_groups_that_are_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both asked for at once; while they run the budget is spent, and they have the signal."""
    script = [WRONG, WRONG, MIXED, MIXED]
    groups, counts, _, _ = sample(
        monkeypatch, script, max_gen_batches=2, on_exhausted="stop", looks=2
    )
    assert groups == ["u002", "u003"]
    assert (counts["kept"], counts["filled"], counts["evicted"]) == (2, 0, 2)


@pytest.mark.parametrize("in_rounds", [True, False])
def test_in_rounds_nothing_depends_on_who_finishes_first(
    monkeypatch: pytest.MonkeyPatch, in_rounds: bool
) -> None:
    """The negative control: without rounds some order of arrival asks for other questions.

    Three of the first four are evicted: six more is more than a batch.
    """
    script = [MIXED, WRONG, RIGHT, MIXED, WRONG, WRONG, MIXED, WRONG] * 4
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


def test_another_metric_is_not_called_right_or_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    _, counts, _, _ = sample(monkeypatch, [WRONG, MIXED, RIGHT, MIXED], metric="format")
    assert (counts["evicted"], counts["evicted_equal"]) == (2, 2)
    assert (counts["evicted_all_wrong"], counts["evicted_all_right"]) == (0, 0)


def test_nothing_is_left_in_the_queue_but_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    for script in ([WRONG, MIXED, MIXED, MIXED], [WRONG] * 6, [WRONG, MIXED, RIGHT, MIXED]):
        groups, _, queue, _ = sample(monkeypatch, script)
        assert {key.split("_")[0] for key in queue.tags} == set(groups)
        assert not any(tag.get("is_prompt") for tag in queue.tags.values())


def test_without_the_filter_all_groups_are_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    groups, counts, queue, told = sample(monkeypatch, [WRONG, RIGHT], metric=None)
    assert groups == ["u000", "u001"]
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


HALF, LOST = (1.0, None), (None, None)


@pytest.mark.parametrize("metric", [None, "acc"])
@pytest.mark.parametrize(
    ("script", "told"),
    [
        ([HALF, MIXED], "1 of the step's 4 rollouts failed, .* of 1 of 2 questions; .*: u000"),
        ([MIXED, LOST], "2 of the step's 4 rollouts failed, .* of 1 of 2 questions; .*: u001"),
        ([HALF, LOST], "3 of the step's 4 rollouts failed, .* of 2 of 2 questions; .*: u000"),
    ],
)
def test_nothing_is_trained_on_a_part(
    monkeypatch: pytest.MonkeyPatch, metric: str | None, script: list[Group], told: str
) -> None:
    with pytest.raises(RolloutError, match=told) as raised:
        sample(monkeypatch, script, metric=metric)
    assert not isinstance(raised.value, LostEngineError)
    sample(monkeypatch, [MIXED, MIXED], metric=metric)  # the whole of it is


def test_a_failure_among_the_questions_asked_for_later_ends_the_step_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """u000 is replaced by u002 and u003: four questions were asked for when u003 fails."""
    with pytest.raises(RolloutError, match=r"1 of the step's 8 rollouts .* 1 of 4 questions"):
        sample(monkeypatch, [WRONG, MIXED, MIXED, HALF])


@pytest.mark.parametrize("gone", [False, True])
def test_only_a_lost_engine_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, gone: bool) -> None:
    """u000 fails at once, u001 is done forty looks later; neither asks for anything more."""
    looks = iter([0, 40])
    with pytest.raises(RolloutError, match="^an engine or a reward" if gone else "^1 of") as raised:
        sample(
            monkeypatch,
            [HALF, LOST] if gone else [HALF, MIXED],
            looks=lambda: next(looks),
            engine_gone=gone,
        )
    assert isinstance(raised.value, LostEngineError) is gone


@pytest.mark.parametrize("metric", [None, "acc"])
def test_a_row_that_got_lost_is_missed(monkeypatch: pytest.MonkeyPatch, metric: str | None) -> None:
    """Its group says that it is finished; what was asked for is counted all the same."""
    vanish = frozenset({"u001_0"})
    with pytest.raises(RolloutError, match=r"2 questions x 2 .* got 3 .* of 2 .*, u001 has 1"):
        sample(monkeypatch, [MIXED, MIXED], metric=metric, vanish=vanish)
    both = frozenset({"u001_0", "u001_1"})
    with pytest.raises(RolloutError, match=r"2 questions x 2 rollouts got 2 rollouts of 1 "):
        sample(monkeypatch, [MIXED, MIXED], metric=None, vanish=both)


def test_verl_trains_on_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why the batch is counted; fails when verl counts it, and the check can go."""
    queue = Queue([HALF, MIXED], lambda: 0)
    queue.finish = lambda uid, group: finish_part(queue, uid, group)  # type: ignore[method-assign]
    monkeypatch.setattr(replay_buffer, "tq", queue)
    buffer = replay_buffer.ReplayBuffer(
        trainer_mode="sync",
        trainer_config=OmegaConf.create({}),
        max_off_policy_threshold=None,
        max_off_policy_strategy="drop",
        sampler_kwargs=OmegaConf.create({}),
        poll_interval=0.0,
        train_batch_size=2,
    )
    queue.submit(2)
    batch, _ = buffer.sample(global_steps=1, partition_id="train", batch_size=2)
    assert sorted(batch.keys) == ["u000_0_0", "u001_0_0", "u001_1_0"]


def finish_part(queue: Queue, uid: str, group: Group) -> None:
    """As verl's own workers do: the rollouts that succeeded are stored."""
    queue.tags[uid]["status"] = "failure" if None in group else "finished"
    for i, accuracy in enumerate(group):
        if accuracy is not None:
            queue.tags[f"{uid}_{i}_0"] = {"status": "success"}
