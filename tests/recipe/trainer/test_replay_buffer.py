"""Bounded dynamic sampling: verl's own sampling loop over a queue in memory.

The queue is `fake_queue`. test_methods_e2e.py has the real queue, trainer and engine.
"""

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from omegaconf import OmegaConf
from rollout_batches import BASE, HALF, LOST, MIXED, RIGHT, WRONG, Group, GroupQueue
from verl.trainer.ppo.v1 import replay_buffer

from recipe.errors import ExhaustedError, RolloutError
from recipe.trainer import replay_buffer as ours
from recipe.trainer.replay_buffer import BoundedReplayBuffer


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
    vanish: frozenset[str] = frozenset(),
) -> tuple[list[str], dict[str, float], GroupQueue, list[tuple[str, float]]]:
    """(groups in the batch, counts, queue, calls of `on_evicted`) of one step."""
    queue, evicted = GroupQueue(script, looks if callable(looks) else lambda: looks), []
    queue.vanish = set(vanish)
    monkeypatch.setattr(replay_buffer, "tq", queue)
    monkeypatch.setattr(ours, "tq", queue)
    settings = {"max_gen_batches": max_gen_batches, "on_exhausted": on_exhausted}
    buffer = BoundedReplayBuffer(
        **BASE,
        refill_fn=queue.submit,
        filter_groups_metric=metric,
        train_batch_size=batch,
        max_inflight_gen_batches=1,
        settings=OmegaConf.create(settings),
        group_size=2,
        in_rounds=in_rounds,
        on_evicted=lambda uid, value: evicted.append((uid, value)),
    )
    queue.submit(batch)
    meta, metrics = buffer.sample(global_steps=1, partition_id="train", batch_size=batch)
    groups = sorted({key.split("_")[0] for key in meta.keys})
    assert {key.split("_")[0] for key in queue.tags if "_" in key} == set(
        groups
    )  # all else cleared
    counts = {k.removeprefix("dynamic_sampling/"): int(v) for k, v in metrics.items()}
    return groups, counts, queue, evicted


LETTERS = {"W": WRONG, "R": RIGHT, "M": MIXED}
LATE = {"max_gen_batches": 2, "on_exhausted": "stop", "looks": 2}
FORMAT = {"metric": "format"}


@pytest.mark.parametrize(
    ("script", "changes", "groups", "counts"),
    [
        ("MM", {}, [0, 1], {"kept": 2}),
        # 0 all wrong, 1 mixed; two are requested: 2 all right, 3 mixed.
        ("WMRM", {}, [1, 3], {"kept": 2, "evicted_all_wrong": 1, "evicted_all_right": 1}),
        # One group more than needed.
        ("WMMM", {}, [1, 2], {"kept": 2, "discarded": 1, "evicted_all_wrong": 1}),
        # Eight more than needed: the first in the data order are chosen, not any of a set.
        (
            "W" * 8 + "M" * 16,
            {"batch": 8, "in_rounds": True},
            list(range(8, 16)),
            {"kept": 8, "discarded": 8, "evicted_all_wrong": 8},
        ),
        # The limit of 3 batches of 2: the one group with variance, and the latest without.
        (
            "WMRRWW",
            {},
            [1, 5],
            {
                **{"kept": 1, "filled": 1, "exhausted": 1},
                **{"evicted_all_wrong": 3, "evicted_all_right": 2},
            },
        ),
        ("WWWWWW", {}, [4, 5], {"filled": 2, "exhausted": 1, "evicted_all_wrong": 6}),
        # The limit is reached while the last two, which have variance, are still running.
        ("WWMM", LATE, [2, 3], {"kept": 2, "evicted_all_wrong": 2}),
        # Of another metric equal values are not called right or wrong.
        ("WMRM", FORMAT, [1, 3], {"kept": 2, "evicted_equal": 2}),
    ],
)
def test_a_step_by_hand(
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    changes: dict[str, Any],
    groups: list[int],
    counts: dict[str, int],
) -> None:
    made = [LETTERS[letter] for letter in script]
    chosen, counted, queue, evicted = sample(monkeypatch, made, **changes)
    assert chosen == [f"u{i:03d}" for i in groups]
    assert evicted == [(f"u{i:03d}", g[0]) for i, g in enumerate(made) if g != MIXED]
    names = ("kept", "filled", "exhausted", "discarded", "evicted_all_wrong", "evicted_all_right")
    more = {"generated": len(script), "evicted": len(evicted)}
    assert counted == {**dict.fromkeys(names, 0), **more, **counts}
    assert queue.count == len(script)
    assert not any(tag.get("is_prompt") for tag in queue.tags.values())


@pytest.mark.parametrize("missing", [2, 3, 4])
def test_a_request_is_cut_to_the_limit(monkeypatch: pytest.MonkeyPatch, missing: int) -> None:
    """In rounds verl requests all 2 x `missing` questions at once; four are left."""
    script = [MIXED] * (4 - missing) + [WRONG] * 40
    limits = {"batch": 4, "max_gen_batches": 2, "in_rounds": True}
    _, counts, queue, _ = sample(monkeypatch, script, **limits)
    assert queue.count == counts["generated"] == 8


def test_stop_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExhaustedError, match=r"6 questions .* 1 of the 2 .*on_exhausted"):
        sample(monkeypatch, [MIXED] + [WRONG] * 5, on_exhausted="stop")


def test_without_the_filter_all_groups_are_trained_on(monkeypatch: pytest.MonkeyPatch) -> None:
    groups, counts, queue, evicted = sample(monkeypatch, [WRONG, RIGHT], metric=None)
    assert (groups, counts, queue.count, evicted) == (["u000", "u001"], {}, 2, [])


@pytest.mark.parametrize("in_rounds", [True, False])
def test_in_rounds_the_order_of_arrival_does_not_matter(
    monkeypatch: pytest.MonkeyPatch, in_rounds: bool
) -> None:
    """Negative control: without rounds some order of arrival requests other questions.

    Three of the first four are evicted: six more is more than a batch.
    """
    script = [MIXED, WRONG, RIGHT, MIXED, WRONG, WRONG, MIXED, WRONG] * 4
    seen = set()
    for seed in range(60):
        luck = random.Random(seed)
        chosen, counts, queue, evicted = sample(
            monkeypatch,
            script,
            batch=4,
            max_gen_batches=8,
            looks=lambda luck=luck: luck.choice([0, 1, 5, 20]),
            in_rounds=in_rounds,
        )
        seen.add((tuple(chosen), tuple(sorted(counts.items())), queue.count, tuple(evicted)))
    assert (len(seen) == 1) is in_rounds


def verls_buffer(monkeypatch: pytest.MonkeyPatch, queue: GroupQueue, metric: str | None) -> Any:
    monkeypatch.setattr(replay_buffer, "tq", queue)
    buffer = replay_buffer.ReplayBuffer(
        **BASE, refill_fn=queue.submit, filter_groups_metric=metric, train_batch_size=2
    )
    queue.submit(2)
    return buffer


def test_verl_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gap: fails when verl bounds its own filter. Then delete the adapter."""
    buffer = verls_buffer(monkeypatch, GroupQueue([WRONG] * 500, lambda: 0), "acc")
    with pytest.raises(StopIteration):  # the script of 500 groups is exhausted
        buffer.sample(global_steps=1, partition_id="train", batch_size=2)


@pytest.mark.parametrize("metric", [None, "acc"])
@pytest.mark.parametrize(
    ("script", "changes", "message"),
    [
        ([HALF, MIXED], {}, "1 of 2 rollouts of question u000 failed, .*: ValueError: u000"),
        ([MIXED, LOST], {}, "2 of 2 rollouts of question u001"),
        # A finished group lacks a row, or all of them.
        ([MIXED] * 2, {"vanish": {"u001_0"}}, "2 questions x 2 .* got 3 .* of 2 .*u001 has 1"),
        ([MIXED] * 2, {"vanish": {"u001_0", "u001_1"}}, "2 questions x 2 .* got 2 .* of 1 "),
    ],
)
def test_an_incomplete_step_is_not_trained(
    monkeypatch: pytest.MonkeyPatch,
    metric: str | None,
    script: list[Group],
    changes: dict[str, Any],
    message: str,
) -> None:
    if metric and "got 2" in message:
        pytest.skip("the filter reads the accuracies of a group, of which there are none")
    with pytest.raises(RolloutError, match=message):
        sample(monkeypatch, script, metric=metric, **changes)
    sample(monkeypatch, [MIXED, MIXED], metric=metric)  # a complete one is


def test_a_failure_ends_the_step_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """u000 fails at once; u001 would finish forty polls later."""
    looks = iter([0, 40])
    with pytest.raises(RolloutError, match="u000"):
        sample(monkeypatch, [HALF, MIXED], looks=lambda: next(looks))


def test_verl_trains_on_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gap: fails when verl counts the rollouts of a batch. Then delete our check."""
    queue = GroupQueue([HALF, MIXED], lambda: 0)

    def finish(uid: str, group: Group) -> None:  # as verl's workers: store the successful ones
        queue.tags[uid]["status"] = "failure" if None in group else "finished"
        for i, accuracy in enumerate(group):
            if accuracy is not None:
                queue.tags[f"{uid}_{i}_0"] = {"status": "success"}

    queue.finish = finish  # type: ignore[method-assign]
    buffer = verls_buffer(monkeypatch, queue, None)
    batch, _ = buffer.sample(global_steps=1, partition_id="train", batch_size=2)
    assert sorted(batch.keys) == ["u000_0_0", "u001_0_0", "u001_1_0"]
