"""The grouped worker stores what verl's own worker stores, a question whole or not at all."""

import asyncio
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from ray.exceptions import ActorDiedError, RayTaskError
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput
from verl.trainer.ppo.v1 import agent_loop_tq

from recipe.rollout import workers as rollout

ROW = {
    "uid": "u1",
    "global_steps": 4,
    "data_source": "t",
    "raw_prompt": [{"role": "user", "content": "q"}],
    "extra_info": {"uid": "c", "split": "train", "answers": ["4"]},
    "reward_model": {"ground_truth": "4", "style": "rule"},
    "index": 3,
    "recipe_epoch": torch.tensor(2),
}


def output(response: list[int], reward: float = 0.75) -> AgentLoopOutput:
    return AgentLoopOutput(
        prompt_ids=[1, 2, 3],
        response_ids=response,
        response_mask=[1] * len(response),
        response_logprobs=[-0.25] * len(response),
        reward_score=reward,
        num_turns=2,
        metrics={"generate_sequences": 0.5},
        extra_fields={"min_global_steps": 4, "max_global_steps": 4, "template": "formal"},
    )


class Store:
    """Records what is put into TransferQueue."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.statuses: list[str] = []
        self.tags: list[dict[str, Any]] = []

    async def put(self, key: str, partition_id: str, tag: dict[str, Any]) -> None:
        self.statuses.append(tag["status"])
        self.tags.append(tag)

    async def put_batch(self, keys: list[str], fields: Any, tags: list, partition_id: str) -> None:
        self.rows.append({"keys": keys, "fields": fields, "tags": tags, "partition": partition_id})


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store()
    for module in (agent_loop_tq, rollout):
        monkeypatch.setattr(module.tq, "async_kv_put", made.put)
        monkeypatch.setattr(module.tq, "async_kv_batch_put", made.put_batch)
    return made


def worker(cls: type) -> Any:
    made = object.__new__(cls)
    made.processor, made.distillation_enabled = None, False
    made.reward_loop_worker_handles, made._agent_loops = None, {}
    made._complaints = rollout.Complaints()
    rollouts = {"n": 3, "val_kwargs": {"n": 1}}
    made.config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollouts}})
    return made


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return a == b


def test_a_stored_row_is_verls_row(store: Store) -> None:
    verls = worker(rollout._Worker)
    asyncio.run(verls._agent_loop_postprocess(output([7, 8]), validate=False, session_id=5, **ROW))
    (theirs,) = store.rows
    keys, fields, tags = rollout.to_rows({5: output([7, 8])}, ROW)
    assert keys == theirs["keys"] == ["u1_5_0"]
    assert tags == theirs["tags"]
    assert set(fields[0]) == set(theirs["fields"].keys())
    for name, value in fields[0].items():
        stored = theirs["fields"][name][0]
        plain = stored if isinstance(stored, torch.Tensor) else getattr(stored, "data", stored)
        assert equal(value, plain), name


class Loop:
    """An agent loop whose answer depends on the session; some sessions fail so many times."""

    def __init__(self, fails: dict[int, int]) -> None:
        self.fails, self.calls = dict(fails), 0

    async def run(self, params: dict, session_id: int, **row: Any) -> AgentLoopOutput:
        self.calls += 1
        if self.fails.get(session_id, 0):
            self.fails[session_id] -= 1
            raise RuntimeError(f"engine busy {session_id}")
        return output([7] * (session_id + 1), reward=None)


class Grader:
    """A reward worker: one call for the group; the reward is the response's length."""

    def __init__(self, fails: int = 0) -> None:
        self.calls, self.fails = 0, fails
        self.compute_score_batch = SimpleNamespace(remote=self.score)

    async def score(self, data: Any) -> list[dict[str, Any]]:
        self.calls += 1
        if self.calls <= self.fails:
            raise ValueError("no worker")
        lengths = data.batch["attention_mask"].sum(dim=1).tolist()
        assert data.non_tensor_batch["uid"].tolist() == ["u1"] * len(lengths)
        assert isinstance(data.non_tensor_batch["tool_extra_fields"], np.ndarray)
        return [{"reward_score": n, "reward_extra_info": {"acc": n}} for n in lengths]


def run_question(
    store: Store, fails: dict[int, int], grader_fails: int = 0, validate: bool = False
) -> tuple[Loop, Grader]:
    ours = worker(rollout.GroupedAgentLoopWorker)
    loop = ours._agent_loops["loop"] = Loop(fails)
    grader = Grader(grader_fails)
    ours.reward_loop_worker_handles = [grader]
    prompt = {**ROW, "agent_name": "loop"}
    asyncio.run(ours._run_prompt(prompt, {}, {"validate": validate}))
    return loop, grader


def test_one_grading_call_and_one_write_for_the_whole_question(store: Store) -> None:
    loop, grader = run_question(store, {})
    assert (loop.calls, grader.calls) == (3, 1)
    (written,) = store.rows
    assert written["keys"] == ["u1_0_0", "u1_1_0", "u1_2_0"]
    # the reward stands at the last token of its own response: lengths 1, 2, 3
    rewards = [row.tolist() for row in written["fields"]["rm_scores"].unbind()]
    assert rewards == [[1.0], [0.0, 2.0], [0.0, 0.0, 3.0]]
    assert store.statuses == ["finished"]


def test_what_fails_once_is_asked_for_again(store: Store) -> None:
    loop, grader = run_question(store, {1: 1, 2: 1}, grader_fails=1)
    assert (loop.calls, grader.calls) == (5, 2)
    assert store.rows[0]["keys"] == ["u1_0_0", "u1_1_0", "u1_2_0"]
    rewards = [row.tolist() for row in store.rows[0]["fields"]["rm_scores"].unbind()]
    assert rewards == [[1.0], [0.0, 2.0], [0.0, 0.0, 3.0]]
    assert store.statuses == ["finished"]


def test_a_question_that_lacks_a_rollout_is_stored_by_no_part(store: Store) -> None:
    """And says how many of how many it lacks, and why, so that the trainer can."""
    loop, grader = run_question(store, {1: 2, 2: 2})
    assert (loop.calls, grader.calls, store.rows) == (5, 0, [])
    assert store.tags == [
        {
            **{"status": "failure", "lost": 2, "asked": 3, "engine_gone": False},
            "error": "RuntimeError: engine busy 1",
        }
    ]
    run_question(store, {0: 2}, validate=True)
    assert (store.tags[1]["lost"], store.tags[1]["asked"]) == (1, 1)


def test_a_question_that_cannot_be_graded_still_ends(store: Store) -> None:
    _, grader = run_question(store, {}, grader_fails=2)
    assert (grader.calls, store.rows, store.statuses) == (2, [], ["failure"])
    assert (store.tags[0]["lost"], store.tags[0]["error"]) == (3, "ValueError: no worker")


def test_one_traceback_for_each_kind_of_error(caplog: pytest.LogCaptureFixture) -> None:
    complaints = rollout.Complaints()
    for i in range(1000):
        complaints.tell(f"rollout of question u{i}", RuntimeError(f"request {i} failed"))
    complaints.tell("rollout of question v", ValueError("too long"))
    assert len(caplog.records) == 1001
    traced = [record.getMessage() for record in caplog.records if record.exc_info]
    assert traced == [
        "rollout of question u0 failed: RuntimeError: request 0 failed",
        "rollout of question v failed: ValueError: too long",
    ]


def test_a_lost_engine_is_told_from_other_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    class EngineDeadError(Exception):
        pass

    dead = RayTaskError("generate", "a traceback", EngineDeadError("gone")).as_instanceof_cause()
    lost = {"lost": 2, "asked": 8}
    assert not rollout.failure(dead, **lost)[
        "engine_gone"
    ]  # nothing has imported vLLM's class here
    vllm = SimpleNamespace(EngineDeadError=EngineDeadError)
    monkeypatch.setitem(sys.modules, "vllm.v1.engine.exceptions", vllm)
    assert rollout.failure(dead, **lost) == {
        **{"status": "failure", "error": "EngineDeadError: gone", "engine_gone": True},
        **lost,
    }
    assert rollout.failure(ActorDiedError(), **lost)["engine_gone"]
    assert not rollout.failure(ValueError("one prompt too long"), **lost)["engine_gone"]
