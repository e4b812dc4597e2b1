"""A TransferQueue in memory, and the rollouts of a step in it, for the tests of the trainer."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from omegaconf import OmegaConf
from tensordict import TensorDict
from transfer_queue import KVBatchMeta
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from recipe.algorithms.rollouts import RolloutBatch
from recipe.trainer import batch as batches


class Queue:
    """Rows by key; returns the fields that all requested rows have, as verl's does."""

    def __init__(self, rows: dict[str, dict[str, Any]]) -> None:
        self.rows = {key: dict(fields) for key, fields in rows.items()}
        self.reads: list[tuple[str, ...]] = []
        self.writes: list[tuple[str, ...]] = []

    def kv_batch_get(self, keys: list[str], select_fields: list[str], **_: Any) -> TensorDict:
        names = [n for n in select_fields if all(n in self.rows[key] for key in keys)]
        self.reads.append(tuple(names))
        return list_of_dict_to_tensordict([{n: self.rows[k][n] for n in names} for k in keys])

    def kv_batch_put(self, keys: list[str], partition_id: str, fields: TensorDict) -> Any:
        self.writes.append(tuple(fields.keys()))
        for name in fields.keys():  # noqa: SIM118  (a TensorDict iterates over its rows)
            for key, value in zip(keys, fields[name].unbind(), strict=True):
                self.rows[key][name] = value
        return self.batch(keys)

    def batch(self, keys: list[str] | None = None) -> Any:
        """verl's keys and tags, of all rows unless `keys` says which and in which order."""
        keys = list(self.rows) if keys is None else keys
        tags = [{"is_padding": key.startswith("pad")} for key in keys]
        return KVBatchMeta(keys=keys, tags=tags, partition_id="train")

    def column(self, name: str) -> dict[str, list]:
        return {key: row[name].tolist() for key, row in self.rows.items()}


def row(right: bool, tokens: int, *, question: str = "q", session: int = 0, **more: Any) -> dict:
    """One response, truncated at four tokens. Keywords replace fields."""
    graded = {"acc": float(right), "format": 1.0, "response": "r", "pred": "7", "status": "correct"}
    graded |= {"source": "s", "parts": {}}
    place = {"template": "t", "rephrasing": session // 2, "generated_under": None}
    return {
        "extra_info": {"uid": question, "answers": ["1"]},
        "extra_fields": {**place, "truncated": tokens >= 4, "reward_extra_info": graded},
        "prompts": torch.tensor([7, 8]),
        "responses": torch.arange(tokens),
        "response_mask": torch.ones(tokens, dtype=torch.int64),
        "loss_mask": torch.ones(tokens, dtype=torch.int64),
        "rm_scores": torch.tensor([0.0] * (tokens - 1) + [float(right)]),
        "old_log_probs": -torch.arange(tokens).float() - 0.5,
        "entropy": torch.full((tokens,), float(tokens)),
        **more,
    }


def fetched(queue: Queue, monkeypatch: Any, batch: Any = None) -> batches.Fetched:
    monkeypatch.setattr(batches, "tq", queue)
    return batches.fetch(batch or queue.batch())


def record(source: batches.Fetched, **changes: Any) -> RolloutBatch:
    """The rollouts of a batch without any of verl's corrections."""
    made: dict[str, Any] = {
        "seed": 0,
        "rewards": source.padded["rm_scores"],
        "mask": source.padded["response_mask"],
        "weight_logprobs": None,
    }
    return batches.rollouts_of(source, **{**made, **changes})


def synthetic(
    rewards: Any, logprobs: Any, mask: Any, groups: Any, rephrasings: Any = None, **changes: Any
) -> RolloutBatch:
    """A record of matrices given by hand."""
    mask_BT = torch.as_tensor(mask) != 0
    count = len(mask_BT)
    rephrasings = list(rephrasings or [0] * count)
    pairs = list(zip(groups, rephrasings, strict=True))
    logprobs_BT = torch.as_tensor(logprobs, dtype=torch.float64)
    made: dict[str, Any] = {
        "keys": [f"g{group}_{i}_0" for i, group in enumerate(groups)],
        "seed": 0,
        "questions": [f"q{group}" for group in groups],
        "group_B": batches.numbered(list(groups)),
        "rephrasing_B": batches.numbered(pairs),
        "rollouts": list(range(count)),
        "rephrasings": rephrasings,
        "reward_B": torch.as_tensor(rewards, dtype=torch.float64),
        "accuracy": [float(reward > 0) for reward in rewards],
        "lengths": mask_BT.sum(1).tolist(),
        "mask_BT": mask_BT,
        "trained_B": torch.ones(count, dtype=torch.bool),
        "logprobs_BT": logprobs_BT,
        "weight_logprobs_BT": logprobs_BT,
        "rollout_logprobs_BT": None,
        "entropy_BT": None,
        "sources": ["s"] * count,
        "parts": [{}] * count,
        "values_BT": None,
        "shortest": [None] * count,
        "formats": [0.0] * count,
        "truncated": [False] * count,
        **{name: ["correct"] * count for name in ("templates", "text", "answers", "statuses")},
        **{name: [()] * count for name in ("gold", "prompts", "generated_under", "responses")},
    }
    return RolloutBatch(**{**made, **changes})


# ------------------------------------------------------------------------- for replay buffers

Group = tuple[float | None, ...]
WRONG, RIGHT, MIXED = (0.0, 0.0), (1.0, 1.0), (0.0, 1.0)
HALF, LOST = (1.0, None), (None, None)  # failed rollouts


class GroupQueue:
    """A queue for verl's replay buffers: keys with tags, and the accuracy of every rollout.

    It finishes a group some polls after its request, with the scripted accuracies, None for a
    failed rollout.
    """

    def __init__(self, script: Iterable[Group], looks: Callable[[], int]) -> None:
        self.script: Iterator[Group] = iter(script)
        self.looks = looks  # number of polls during which the next group runs
        self.running: dict[str, tuple[int, Group]] = {}
        self.tags: dict[str, dict[str, Any]] = {}
        self.accuracy: dict[str, float] = {}
        self.count, self.polls = 0, 0
        self.vanish: set[str] = set()  # rows that are lost on the way

    def submit(self, prompts: int) -> None:
        for _ in range(prompts):
            uid = f"u{self.count:03d}"
            self.count += 1
            self.tags[uid] = {"is_prompt": True, "status": "running", "global_steps": 1}
            self.running[uid] = (self.looks(), next(self.script))

    def finish(self, uid: str, group: Group) -> None:
        self.tags[uid]["status"] = "failure" if None in group else "finished"
        if None in group:
            counts = {"lost": group.count(None), "requested": len(group)}
            self.tags[uid] |= {"error": f"ValueError: {uid}", **counts}
        for i, accuracy in enumerate(group):
            if accuracy is not None and None not in group and f"{uid}_{i}" not in self.vanish:
                self.tags[f"{uid}_{i}_0"] = {"status": "success"}
                self.accuracy[f"{uid}_{i}_0"] = accuracy

    def kv_list(self) -> dict[str, dict]:
        self.polls += 1
        assert self.polls < 10_000, "the step never ends"
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


BASE: dict[str, Any] = {
    **{"trainer_mode": "sync", "trainer_config": OmegaConf.create({"max_num_gen_batches": 3})},
    **{"max_off_policy_threshold": None, "max_off_policy_strategy": "drop", "poll_interval": 0.0},
    **{"sampler_kwargs": OmegaConf.create({}), "gen_batch_size": 1},
}
