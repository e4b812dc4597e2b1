"""verl's rollout workers, which handle whole questions instead of single rollouts.

For every rollout, verl 0.9.1 creates an agent loop through hydra, calls the load balancer twice,
calls a reward actor and writes to TransferQueue. Here all rollouts of a question share one agent
loop, one slot at the load balancer (`recipe.rollout.client`), one reward call and one write. The
stored rows are the same. verl's key ``actor_rollout_ref.rollout.agent.agent_loop_manager_class``
names the manager. `scripts/bench.py step` measures the gain.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import hydra
import numpy as np
import ray
import torch
import transfer_queue as tq
from tensordict import TensorDict
from torch.nn.utils.rnn import pad_sequence
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import (
    AgentLoopBase,
    AgentLoopOutput,
    DictConfigWrap,
    ToolListWrap,
    _agent_loop_registry,
)
from verl.trainer.ppo.v1.agent_loop_tq import (
    AgentLoopManagerTQ,
    AgentLoopWorkerTQ,
    apply_greedy_sampling_params,
)
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from prompt_aug.base.errors import kind_of
from recipe.rollout.agent_loop import PromptAugmentationAgentLoop  # which registers it
from recipe.rollout.client import GroupedClient
from recipe.run.ending import first_cause

logger = logging.getLogger(__name__)

FINISHED = {"status": "finished"}

# A class under @ray.remote cannot be subclassed; this is the decorated class.
_Worker: Any = AgentLoopWorkerTQ.__ray_metadata__.modified_class

T = TypeVar("T")


def failure(error: BaseException, *, lost: int, requested: int) -> dict[str, Any]:
    """The tag of a question with failed rollouts: how many, and the error."""
    return {"status": "failure", "lost": lost, "requested": requested, "error": first_cause(error)}


async def retry_once(call: Callable[[], Awaitable[T]], log: Callable[[BaseException], None]) -> T:
    """Return the result of `call`; after an error, log it and call once more."""
    try:
        return await call()
    except Exception as error:
        log(error)
    return await call()


def to_dataproto(outputs: list[AgentLoopOutput], row: dict[str, Any]) -> DataProto:
    """The rollouts of one question in the format of verl's reward managers, padded on the right."""
    responses = [torch.tensor(o.response_ids, dtype=torch.int64) for o in outputs]
    masks = [torch.ones_like(r) for r in responses]
    count = len(outputs)

    def column(values: list[Any]) -> np.ndarray:
        array = np.empty(count, dtype=object)
        array[:] = values
        return array

    return DataProto(
        batch=TensorDict(
            {
                "responses": pad_sequence(responses, batch_first=True),
                "attention_mask": pad_sequence(masks, batch_first=True),
            },
            batch_size=count,
        ),
        non_tensor_batch={
            **{key: column([value] * count) for key, value in row.items()},
            "tool_extra_fields": column([o.extra_fields for o in outputs]),
        },
    )


def to_rows(
    outputs: dict[int, AgentLoopOutput], row: dict[str, Any]
) -> tuple[list[str], list[dict[str, Any]], list[dict[str, Any]]]:
    """(keys, fields, tags) of the rollouts of one question, as verl stores them.

    A key is ``{uid}_{session_id}_0``. The fields are verl's. All columns of the dataset are kept,
    since verl's validation and padding read some of them, except extra_info's "row", which only a
    verifier reads and which may be long.
    """
    keys, fields, tags = [], [], []
    row = {**row, "extra_info": {k: v for k, v in row["extra_info"].items() if k != "row"}}
    for session, output in outputs.items():
        prompt = torch.tensor(output.prompt_ids, dtype=torch.int64)
        field = output.as_dict()
        field.pop("multi_modal_data", None)
        ids = torch.cat([prompt, field["responses"]])
        field.update(row, session_id=session)
        field.update(
            loss_mask=field["response_mask"],
            input_ids=ids,
            position_ids=torch.arange(len(ids)),
            multi_modal_inputs={},
        )
        keys.append(f"{row['uid']}_{session}_0")
        fields.append(field)
        tags.append(
            {
                "status": "success",
                "prompt_len": len(output.prompt_ids),
                "response_len": len(output.response_ids),
                "seq_len": len(ids),
                "global_steps": row["global_steps"],
                "min_global_steps": output.extra_fields.get("min_global_steps"),
                "max_global_steps": output.extra_fields.get("max_global_steps"),
            }
        )
    return keys, fields, tags


class GroupedAgentLoopWorker(_Worker):
    """Runs, grades and stores the rollouts of a question together.

    Overrides of verl:
      __init__      caches agent loops; creates a client for groups
      _run_prompt   all rollouts of a question at once; calls none of verl's functions for one
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.llm_client: GroupedClient = GroupedClient(self.llm_client)
        self._agent_loops: dict[str, AgentLoopBase] = {}
        self._logged: set[str] = set()  # kinds of errors

    def _log(self, what: str, error: BaseException) -> None:
        """Log that `what` failed, the first error of a kind with its traceback of a hundred lines.

        Causes that differ only in numbers are of one kind.
        """
        cause = first_cause(error)
        kind = kind_of(cause)
        logger.error("%s failed: %s", what, cause, exc_info=None if kind in self._logged else error)
        self._logged.add(kind)

    def _agent_loop(self, name: str) -> AgentLoopBase:
        """The agent loop registered under `name`; ours keeps no state and is created once."""
        loop = self._agent_loops.get(name)
        if loop is None:
            loop = hydra.utils.instantiate(
                config=_agent_loop_registry[name],
                trainer_config=DictConfigWrap(config=self.config),
                server_manager=self.llm_client,
                tokenizer=self.tokenizer,
                processor=self.processor,
                hf_model_type=self.hf_model_type,
                dataset_cls=self.dataset_cls,
                data_config=DictConfigWrap(self.config.data),
                tools=ToolListWrap(self.tools),
            )
            if type(loop) is PromptAugmentationAgentLoop:
                self._agent_loops[name] = loop
        return loop

    async def _run_prompt(
        self, prompt: dict, sampling_params: dict, trajectory: dict, trace: bool = False
    ) -> None:
        """Run all rollouts of one question and set its status to "finished" or "failure".

        Until then it is "pending", which verl's replay buffer counts as in flight, like "running".
        """
        partition = "val" if trajectory["validate"] else "train"
        rollout = self.config.actor_rollout_ref.rollout
        default = rollout.val_kwargs.n if partition == "val" else rollout.n
        count = int(prompt.pop("__rollout_n__", default))
        try:
            # A copy: verl passes the same dict to all questions of a batch.
            tag = await self._run_group(prompt, dict(sampling_params), partition, count)
        except Exception as error:
            # Every group must end in some status, or the trainer waits forever.
            self._log(f"question {prompt['uid']}", error)
            tag = failure(error, lost=count, requested=count)
        # After its rows, since the replay buffer reads the rows of a group that has a final status.
        await tq.async_kv_put(key=prompt["uid"], partition_id=partition, tag=tag)

    async def _run_group(
        self, prompt: dict, params: dict, partition: str, count: int
    ) -> dict[str, Any]:
        """Generate, grade and store; return the final tag of the question."""
        if not prompt.pop("__do_sample__", True) and partition == "train":
            apply_greedy_sampling_params(params)
        name, uid = prompt.pop("agent_name"), prompt["uid"]
        log = partial(self._log, f"rollout of question {uid}")

        async def run(number: int) -> AgentLoopOutput:
            return await self._agent_loop(name).run(params, session_id=number, **prompt)

        with self.llm_client.group(uid):
            # Wait for all: otherwise a rollout could outlive its group in the engine.
            results = await asyncio.gather(
                *(retry_once(partial(run, i), log) for i in range(count)), return_exceptions=True
            )
        errors = [r for r in results if isinstance(r, BaseException)]
        for error in errors:
            self._log(f"retried rollout of question {uid}", error)
        if errors:
            return failure(errors[0], lost=len(errors), requested=count)
        await retry_once(
            partial(self._score, results, prompt), partial(self._log, f"grading of question {uid}")
        )
        keys, fields, tags = to_rows(dict(enumerate(results)), prompt)
        await tq.async_kv_batch_put(
            keys=keys, fields=list_of_dict_to_tensordict(fields), tags=tags, partition_id=partition
        )
        return FINISHED

    async def _score(self, outputs: list[AgentLoopOutput], prompt: dict) -> None:
        """One call to a reward worker for the whole group."""
        worker = random.choice(self.reward_loop_worker_handles)
        results = await worker.compute_score_batch.remote(to_dataproto(outputs, prompt))
        for output, result in zip(outputs, results, strict=True):
            output.reward_score = result["reward_score"]
            output.extra_fields["reward_extra_info"] = result["reward_extra_info"]


class GroupedAgentLoopManager(AgentLoopManagerTQ):
    """verl's manager with our worker class.

    Overrides of verl:
      __init__   the class of its workers
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Afterwards: verl's __init__ sets its own class; `create` makes the workers later.
        self.agent_loop_workers_class = ray.remote(GroupedAgentLoopWorker)
