"""The worker stores the same rows as verl's, a question completely or not at all."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
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
        self.tags: list[dict[str, Any]] = []

    async def put(self, key: str, partition_id: str, tag: dict[str, Any]) -> None:
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


class Client:
    """Stands in for the engine's client: the open groups."""

    def __init__(self) -> None:
        self.open: set[str] = set()

    @contextmanager
    def group(self, request_id: str) -> Iterator[None]:
        self.open.add(request_id)
        yield
        self.open.remove(request_id)


def worker(cls: type) -> Any:
    made = object.__new__(cls)
    made.processor, made.distillation_enabled = None, False
    made.reward_loop_worker_handles, made._agent_loops = None, {}
    made._logged, made.llm_client = set(), Client()
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
    graded = {**ROW["extra_info"], "row": {"column": "for a verifier"}}  # not stored
    keys, fields, tags = rollout.to_rows({5: output([7, 8])}, {**ROW, "extra_info": graded})
    assert keys == theirs["keys"] == ["u1_5_0"]
    assert tags == theirs["tags"]
    assert set(fields[0]) == set(theirs["fields"].keys())
    for name, value in fields[0].items():
        stored = theirs["fields"][name][0]
        plain = stored if isinstance(stored, torch.Tensor) else getattr(stored, "data", stored)
        assert equal(value, plain), name


class Loop:
    """An agent loop whose answer depends on the session; some sessions fail so many times."""

    def __init__(self, fails: dict[int, int], client: Client) -> None:
        self.fails, self.calls, self.client = dict(fails), 0, client
        self.params: dict[str, Any] = {}

    async def run(self, params: dict, session_id: int, **row: Any) -> AgentLoopOutput:
        self.calls += 1
        self.params = params
        assert self.client.open == {"u1"}
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
    store: Store,
    fails: dict[int, int],
    grader_fails: int = 0,
    validate: bool = False,
    greedy: bool = False,
) -> tuple[Loop, Grader]:
    ours = worker(rollout.GroupedAgentLoopWorker)
    loop = ours._agent_loops["loop"] = Loop(fails, ours.llm_client)
    grader = Grader(grader_fails)
    ours.reward_loop_worker_handles = [grader]
    prompt = {**ROW, "agent_name": "loop", "__do_sample__": not greedy}
    params = {"temperature": 0.5}  # of all questions of a batch
    asyncio.run(ours._run_prompt(prompt, params, {"validate": validate}))
    assert params == {"temperature": 0.5} and not ours.llm_client.open
    return loop, grader


class Own:
    """An agent loop of the user, with the state of one rollout."""

    made: ClassVar[list["Own"]] = []

    def __init__(self, tools: Any, **rest: Any) -> None:
        self.tools, self.turns = tools.tools, 0
        self.made.append(self)

    async def run(self, params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        self.turns += 1
        return output([7], reward=None)


def test_a_loop_of_the_user_is_made_for_each_rollout_with_the_tools(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(rollout._agent_loop_registry, "own", {"_target_": f"{__name__}.Own"})
    ours = worker(rollout.GroupedAgentLoopWorker)
    ours.tokenizer = ours.hf_model_type = ours.dataset_cls = None
    ours.tools, ours.reward_loop_worker_handles = ["search"], [Grader()]
    ours.config.data = {}
    asyncio.run(ours._run_prompt({**ROW, "agent_name": "own"}, {}, {"validate": False}))
    assert [(loop.turns, loop.tools) for loop in Own.made] == [(1, ["search"])] * 3


@pytest.mark.parametrize(
    ("fails", "grader_fails", "calls"), [({}, 0, (3, 1)), ({1: 1, 2: 1}, 1, (5, 2))]
)
def test_one_grading_call_and_one_write_for_a_question_after_retries(
    store: Store, fails: dict[int, int], grader_fails: int, calls: tuple[int, int]
) -> None:
    loop, grader = run_question(store, fails, grader_fails)
    assert (loop.calls, grader.calls) == calls
    (written,) = store.rows
    assert written["keys"] == ["u1_0_0", "u1_1_0", "u1_2_0"]
    # The reward is at the last token of its own response: lengths 1, 2, 3.
    rewards = [row.tolist() for row in written["fields"]["rm_scores"].unbind()]
    assert rewards == [[1.0], [0.0, 2.0], [0.0, 0.0, 3.0]]
    assert store.tags == [rollout.FINISHED]


def test_a_greedy_question_is_greedy_in_training_alone(store: Store) -> None:
    """The parameters of validation are those of val_kwargs, as in verl."""
    for validate, temperature in ((False, 0), (True, 0.5)):
        loop, _ = run_question(store, {}, validate=validate, greedy=True)
        assert loop.params["temperature"] == temperature


@pytest.mark.parametrize(
    ("fails", "grader_fails", "validate", "calls", "lost", "error"),
    [
        ({1: 2, 2: 2}, 0, False, (5, 0), (2, 3), "RuntimeError: engine busy 1"),
        ({0: 2}, 0, True, (2, 0), (1, 1), "RuntimeError: engine busy 0"),
        ({}, 2, False, (3, 2), (3, 3), "ValueError: no worker"),
    ],
)
def test_an_incomplete_question_is_not_stored_and_reports_why(
    store: Store,
    fails: dict[int, int],
    grader_fails: int,
    validate: bool,
    calls: tuple[int, int],
    lost: tuple[int, int],
    error: str,
) -> None:
    loop, grader = run_question(store, fails, grader_fails, validate)
    assert (loop.calls, grader.calls, store.rows) == (*calls, [])
    counts = {"lost": lost[0], "requested": lost[1]}
    wanted = {"status": "failure", "error": error, **counts}
    assert store.tags == [wanted]
