"""The grouped worker stores what verl's own worker stores, and fails as verl fails."""

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

    async def put(self, key: str, partition_id: str, tag: dict[str, Any]) -> None:
        self.statuses.append(tag["status"])

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
    """An agent loop whose answer depends on the session; some sessions fail."""

    def __init__(self, fails: set[int]) -> None:
        self.fails = fails

    async def run(self, params: dict, session_id: int, **row: Any) -> AgentLoopOutput:
        if session_id in self.fails:
            raise RuntimeError("engine gone")
        return output([7] * (session_id + 1), reward=None)


class Grader:
    """A reward worker: one call for the group; the reward is the response's length."""

    def __init__(self) -> None:
        self.calls = 0
        self.compute_score_batch = SimpleNamespace(remote=self.score)

    async def score(self, data: Any) -> list[dict[str, Any]]:
        self.calls += 1
        lengths = data.batch["attention_mask"].sum(dim=1).tolist()
        assert data.non_tensor_batch["uid"].tolist() == ["u1"] * len(lengths)
        assert isinstance(data.non_tensor_batch["tool_extra_fields"], np.ndarray)
        return [{"reward_score": n, "reward_extra_info": {"acc": n}} for n in lengths]


def run_question(store: Store, fails: set[int]) -> Grader:
    ours = worker(rollout.GroupedAgentLoopWorker)
    ours._agent_loops["loop"] = Loop(fails)
    grader = Grader()
    ours.reward_loop_worker_handles = [grader]
    prompt = {**ROW, "agent_name": "loop"}
    asyncio.run(ours._run_prompt(prompt, {}, {"validate": False}))
    return grader


def test_one_grading_call_and_one_write_for_the_whole_question(store: Store) -> None:
    grader = run_question(store, fails=set())
    assert grader.calls == 1
    (written,) = store.rows
    assert written["keys"] == ["u1_0_0", "u1_1_0", "u1_2_0"]
    # the reward stands at the last token of its own response: lengths 1, 2, 3
    rewards = [row.tolist() for row in written["fields"]["rm_scores"].unbind()]
    assert rewards == [[1.0], [0.0, 2.0], [0.0, 0.0, 3.0]]
    assert store.statuses == ["finished"]


def test_survivors_of_a_failure_are_kept_and_the_group_says_so(store: Store) -> None:
    run_question(store, fails={1})
    assert store.rows[0]["keys"] == ["u1_0_0", "u1_2_0"]
    assert store.statuses == ["failure"]


def test_a_question_without_survivors_still_ends(store: Store) -> None:
    grader = run_question(store, fails={0, 1, 2})
    assert (grader.calls, store.rows, store.statuses) == (0, [], ["failure"])


def test_a_lost_engine_is_told_from_other_failures(monkeypatch: pytest.MonkeyPatch) -> None:
    class EngineDeadError(Exception):
        pass

    dead = RayTaskError("generate", "a traceback", EngineDeadError("gone")).as_instanceof_cause()
    assert not rollout.failure(dead)["engine_gone"]  # nothing has imported vLLM's class here
    vllm = SimpleNamespace(EngineDeadError=EngineDeadError)
    monkeypatch.setitem(sys.modules, "vllm.v1.engine.exceptions", vllm)
    assert rollout.failure(dead) == {
        **{"status": "failure", "error": "EngineDeadError: gone", "engine_gone": True},
    }
    assert rollout.failure(ActorDiedError())["engine_gone"]
    assert not rollout.failure(ValueError("one prompt too long"))["engine_gone"]
