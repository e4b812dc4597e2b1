"""A queue in memory for verl's replay buffers, and the arguments that they share.

The queue finishes a group some polls after its request, with the scripted accuracies, None for a
failed rollout.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from omegaconf import OmegaConf

Group = tuple[float | None, ...]
WRONG, RIGHT, MIXED = (0.0, 0.0), (1.0, 1.0), (0.0, 1.0)
HALF, LOST = (1.0, None), (None, None)  # failed rollouts


class Queue:
    """A fake TransferQueue: keys with tags, and the accuracy of every rollout."""

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
            counts = {"lost": group.count(None), "asked": len(group)}
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
