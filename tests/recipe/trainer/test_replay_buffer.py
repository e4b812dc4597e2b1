"""Bounded dynamic sampling: verl's own sampling loop over a queue in memory.

The asynchronous mode: order, staleness and lengths of its batches; a group finishes some polls
after its request. test_methods_e2e.py has the real queue, trainer and engine.
"""

import copy
import random
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import count
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf
from rollout_batches import BASE, HALF, LOST, MIXED, RIGHT, WRONG, Group, GroupQueue
from tensordict import NonTensorStack, TensorDict
from verl.trainer.ppo.v1 import replay_buffer, trainer_base
from verl.trainer.ppo.v1.trainer_colocate_async import PPOTrainerColocateAsync

from recipe.errors import ExhaustedError, RolloutError
from recipe.trainer import asynchronous
from recipe.trainer import replay_buffer as bounded
from recipe.trainer.asynchronous import ColocateAsyncTrainer, InOrderReplayBuffer, staleness
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
    monkeypatch.setattr(bounded, "tq", queue)
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


# ------------------------------------------------------------------------- asynchronous

BATCH = 4


class Timed(GroupQueue):
    """Group i runs for `lengths[i]` polls, the length of its longest response."""

    def __init__(self, lengths: list[int], groups: Any = None) -> None:
        super().__init__(groups or [MIXED] * len(lengths), lambda: lengths[self.count - 1])
        self.step, self.requested_in = 1, dict[str, int]()

    def submit(self, prompts: int) -> None:
        before = set(self.tags)
        super().submit(prompts)
        for uid in self.tags.keys() - before:
            self.tags[uid]["global_steps"] = self.step
            self.requested_in[uid] = self.step

    def kv_clear(self, keys: list[str], **more: Any) -> None:
        super().kv_clear(keys, **more)
        for key in keys:
            self.running.pop(key, None)


def made(
    monkeypatch: pytest.MonkeyPatch,
    queue: Timed,
    window: float = 1,
    buffer_class: type = InOrderReplayBuffer,
    max_gen_batches: int = 3,
    **changes: Any,
) -> Any:
    """A trainer without models, whose buffer reads `queue`."""
    for module in (replay_buffer, bounded, trainer_base, asynchronous):
        monkeypatch.setattr(module, "tq", queue)
    settings = {"max_gen_batches": max_gen_batches, "on_exhausted": "train"}
    base = BASE | {"trainer_mode": "colocate_async", "refill_fn": queue.submit}
    base |= {"filter_groups_metric": None, **changes}
    if issubclass(buffer_class, BoundedReplayBuffer):
        rounds = not issubclass(buffer_class, InOrderReplayBuffer)
        own = {"settings": OmegaConf.create(settings), "in_rounds": rounds, "group_size": 2}
        base |= {**own, "train_batch_size": BATCH, "on_evicted": lambda *_: None}
    trainer: Any = object.__new__(ColocateAsyncTrainer)
    v1 = {"v1": {"colocate_async": {"num_warmup_batches": window}}}
    data = {"train_batch_size": BATCH, "gen_batch_size": 1}
    skip = {"rollout_tq": {"enable": False}}
    trainer.config = OmegaConf.create({"trainer": v1, "data": data, "skip": skip})
    trainer.replay_buffer, trainer._restored_tq_prompt_count = buffer_class(**base), 0
    trainer._add_prompts_to_generate = queue.submit
    trainer._add_batch_to_generate = lambda: queue.submit(BATCH)
    return trainer


def take(trainer: Any, step: int) -> tuple[list[str], list[int]]:
    """The rows of the step's batch, and its groups."""
    meta, _ = trainer.replay_buffer.sample(
        global_steps=step, partition_id="train", batch_size=BATCH
    )
    return meta.keys, sorted({int(key.split("_")[0][1:]) for key in meta.keys})


def trained(
    monkeypatch: pytest.MonkeyPatch,
    lengths: list[int],
    steps: int,
    window: float = 1,
    buffer_class: type = InOrderReplayBuffer,
    groups: Any = None,
    **changes: Any,
) -> tuple[list[list[int]], list[int], Timed]:
    """(groups of each step, staleness of each trained group, queue) of a simulated run."""
    queue = Timed(lengths, groups)
    changes = {"filter_groups_metric": "acc" if groups else None, **changes}
    trainer = made(monkeypatch, queue, window, buffer_class, **changes)
    PPOTrainerColocateAsync.on_train_begin(trainer)
    batches, lags = [], []
    for step in range(1, steps + 1):
        queue.step, queue.polls = step, 0
        if issubclass(buffer_class, InOrderReplayBuffer):
            trainer.prepare_step()
        else:
            queue.submit(BATCH)
        keys, found = take(trainer, step)
        batches.append(found)
        lags += [step - queue.requested_in[f"u{uid:03d}"] for uid in found]
        queue.kv_clear(keys)
    return batches, lags, queue


def long_tail(count: int) -> list[int]:
    """Lengths of which every tenth is 30 to 60 times the others'."""
    luck = random.Random(0)
    return [
        luck.randint(30, 60) if luck.random() < 0.1 else luck.randint(0, 1) for _ in range(count)
    ]


@pytest.mark.parametrize("window", [0, 0.5, 1, 3])
def test_groups_are_trained_once_in_the_data_order_and_staleness_is_bounded(
    monkeypatch: pytest.MonkeyPatch, window: float
) -> None:
    batches, lags, queue = trained(monkeypatch, long_tail(400), 40, window)
    assert [uid for batch in batches for uid in batch] == list(range(40 * BATCH))
    assert max(lags) == np.ceil(window)
    assert queue.count == int((40 + window) * BATCH)  # the window is full, and no fuller


def test_a_step_waits_only_for_its_own_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Group 5 runs for 1,000 polls; step 1 trains 0 to 3 without it, step 2 waits for it."""
    lengths = [0, 0, 0, 0, 0, 1000, 0, 0, *[0] * 8]
    _, _, queue = trained(monkeypatch, lengths, 1)
    assert queue.polls < 5 and "u005" in queue.running
    _, _, queue = trained(monkeypatch, lengths, 2)
    assert queue.polls > 900


def test_verl_trains_the_groups_that_finish_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gap: fails when verl's asynchronous buffer keeps the order. Then delete ours."""
    theirs = replay_buffer.ReplayBufferAsync
    waiting: dict[str, Any] = {"max_off_policy_threshold": 3, "max_off_policy_strategy": "wait"}
    lengths = [0, 9, 0, 9, *[0] * 20]
    batches, _, _ = trained(monkeypatch, lengths, 1, buffer_class=theirs, **waiting)
    assert not {1, 3} & set(batches[0])


@pytest.mark.parametrize("max_gen_batches", [1, 3])
def test_dynamic_sampling_keeps_the_order_and_the_window(
    monkeypatch: pytest.MonkeyPatch, max_gen_batches: int
) -> None:
    """A third of the groups has no variance; the surviving ones are trained in the data order."""
    luck = random.Random(1)
    groups = [WRONG if luck.random() < 1 / 3 else MIXED for _ in range(600)]
    more: dict[str, Any] = {"groups": groups, "max_gen_batches": max_gen_batches}
    batches, lags, queue = trained(monkeypatch, long_tail(600), 40, **more)
    order = [uid for batch in batches for uid in batch]
    assert order == sorted(set(order))
    assert max(lags) <= 1
    assert order == [uid for uid in range(order[-1] + 1) if groups[uid] == MIXED]
    asked = [uid for uid, tag in queue.tags.items() if tag.get("is_prompt")]
    # The next step fills a window that the limit left smaller.
    assert (len(asked) == BATCH) is (max_gen_batches == 3) and asked


def test_with_dynamic_sampling_only_the_first_step_is_the_synchronous_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """verl's synchronous buffer requests two replacements for a group, and drops the surplus."""
    groups = [WRONG, MIXED, MIXED, WRONG, MIXED, MIXED, MIXED, MIXED, *[MIXED] * 20]
    more: dict[str, Any] = {"groups": groups, "window": 0}
    sync, _, queue = trained(
        monkeypatch, [0] * 28, 3, buffer_class=BoundedReplayBuffer, trainer_mode="sync", **more
    )
    assert sync == [[1, 2, 4, 5], [8, 9, 10, 11], [12, 13, 14, 15]]
    batches, _, fewer = trained(monkeypatch, [0] * 28, 3, **more)
    assert batches == [[1, 2, 4, 5], [6, 7, 8, 9], [10, 11, 12, 13]]
    assert (queue.count, fewer.count) == (16, 14)


def test_without_any_variance_every_step_ends_with_a_full_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batches, _, queue = trained(monkeypatch, [0] * 200, 5, groups=[WRONG] * 200)
    assert [len(batch) for batch in batches] == [BATCH] * 5
    assert len({uid for batch in batches for uid in batch}) == 5 * BATCH
    assert queue.count <= (1 + 5 * (3 + 1)) * BATCH  # the window, and at most 3 batches a step


def test_staleness_by_hand() -> None:
    """Step 6 begins with version 5: 4 tokens of it, 2 of version 4, 4 of version 3."""
    versions = [[[3, 4], [5, 2]], [[4, 2], [5, 1]], [[5, 1]]]
    assert staleness(versions, 6) == {
        **{"staleness/0": 0.4, "staleness/1": 0.2, "staleness/2": 0.4},
        **{"staleness/mean": 1.0, "staleness/max": 2.0, "staleness/mixed": 2 / 3},
    }
    assert staleness([[]], 6) == {}


def test_a_checkpoint_restores_only_the_groups_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """verl saves the queue with the rows of the step just trained, 0; 1 is finished, 2 runs.

    And with those of a validation that was cut short, which would be counted again in the next one.
    """
    waiting = {"is_prompt": True, "status": "pending"}
    rows = ["0-a_0_0", "0-a_1_0", "1-b_0_0", "1-b_1_0", "pad7_0_0", "2-c_0_0"]
    tags: dict[str, Any] = {key: {"status": "success"} for key in rows}
    tags |= {"1-b": {**waiting, "status": "finished"}, "2-c": waiting}
    both = {"train": tags, "val": {"0-v": {**waiting, "status": "finished"}, "0-v_0_0": {}}}
    queue = SimpleNamespace(
        kv_list=lambda name: {name: dict(both[name])},
        kv_clear=lambda keys, partition_id: [both[partition_id].pop(key) for key in keys],
    )
    monkeypatch.setattr(asynchronous, "tq", queue)
    monkeypatch.setattr(asynchronous.RecipeMixin, "_load_checkpoint", lambda self: None)
    object.__new__(ColocateAsyncTrainer)._load_checkpoint()
    assert not both["val"]
    assert sorted(tags) == ["1-b", "1-b_0_0", "1-b_1_0", "2-c", "2-c_0_0"]


class KilledError(Exception):
    pass


class Killable(Timed):
    """A queue of which a checkpoint holds everything but the running requests."""

    luck: random.Random
    generated: Counter[str]  # how often each group was requested

    def submit(self, prompts: int) -> None:
        self.generated.update(f"u{self.count + i:03d}" for i in range(prompts))
        super().submit(prompts)

    def kv_list(self, *_: Any) -> dict[str, dict]:
        return super().kv_list()

    def kv_batch_get(self, keys: list[str], **more: Any) -> Any:
        if "select_fields" in more:
            return super().kv_batch_get(keys, **more)
        return TensorDict({"uid": NonTensorStack(*keys)}, len(keys))

    def kv_batch_put(self, keys: list[str], tags: list[dict], **_: Any) -> None:
        self.tags.update(zip(keys, tags, strict=True))

    def generate_sequences(self, batch: Any) -> None:
        self.generated.update(batch["uid"])
        self.running |= {uid: (self.luck.randint(0, 60), MIXED) for uid in batch["uid"]}

    def saved(self) -> Any:
        return copy.deepcopy((self.tags, self.accuracy, self.count))

    def restore(self, state: Any) -> set[str]:
        """Load a checkpoint; return its finished groups."""
        self.tags, self.accuracy, self.count = copy.deepcopy(state)
        self.running.clear()
        return {uid for uid, tag in self.tags.items() if tag["status"] == "finished"}


@pytest.mark.parametrize("window", [0.5, 1, 3])
@pytest.mark.parametrize("lost", [False, True])
def test_kills_train_no_group_twice_and_lose_none(
    monkeypatch: pytest.MonkeyPatch, window: float, lost: bool
) -> None:
    """20 kills at random polls, with a checkpoint of every second step, as verl writes it.

    The mutation loses one finished group of a checkpoint, which must be noticed.
    """
    queue = Killable(long_tail(3000))
    queue.luck, queue.generated = random.Random(int(10 * window)), Counter()
    state, step, kept = queue.saved(), 0, 0
    batches: dict[int, list[int]] = {}
    for _ in range(20):
        finished, before = queue.restore(state), Counter(queue.generated)
        trainer = made(monkeypatch, queue, window)
        groups = sum("is_prompt" in tag for tag in queue.tags.values())
        trainer._restored_tq_prompt_count = groups  # verl counts them when it loads the queue
        monkeypatch.setattr(asynchronous.RecipeMixin, "_load_checkpoint", lambda self: None)
        trainer._load_checkpoint()
        if lost and finished:
            uid = min(finished)
            queue.kv_clear([uid, f"{uid}_0_0", f"{uid}_1_0"])
        trainer.trainer_mode, trainer.global_steps = "colocate_async", step + 1
        trainer.agent_loop_manager = queue
        trainer._reissue_inflight_prompts()
        PPOTrainerColocateAsync.on_train_begin(trainer)
        left = queue.luck.randint(1, 100)

        def poll(*_: Any) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise KilledError

        trainer.replay_buffer.on_poll = poll
        with pytest.raises(KilledError):
            for now in count(step + 1):
                queue.step, queue.polls = now, 0
                trainer.prepare_step()
                assert len(trainer.in_flight()) <= int((1 + window) * BATCH)
                keys, found = take(trainer, now)
                assert lost or batches.setdefault(now, found) == found
                batches[now] = found
                if now % 2 == 0:
                    state, step = queue.saved(), now  # with the rows of the step
                queue.kv_clear(keys)
        kept += len(finished)
        if not lost:
            assert all(queue.generated[uid] == before[uid] for uid in finished)
    order = [uid for now in sorted(batches) for uid in batches[now]]
    assert len(order) > 100 and kept > 10
    assert (order == list(range(len(order)))) is not lost
