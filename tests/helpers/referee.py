"""Plug-in of the runs of test_referee_e2e.py: the same responses in all, and records of each step.

verl imports it in every process. The folder REFEREE gets, for each step, the rows that are trained
and the gradients, and the weights at the start and the end.
"""

import json
import os
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import torch
import wrapt

from recipe.algorithms.grpo import grpo

FOLDER = Path(os.environ.get("REFEREE", "."))  # not set: the module changes nothing
GROUP, STEPS, END, DIGIT = 4, 3, 1, 17  # tokens of tiny_model: END, and "0"
SEEN: Counter[tuple[int, ...]] = Counter()


def response(prompt: list[int], number: int) -> list[int]:
    """Return the recorded response to a prompt: 3 to 10 digits, then the end."""
    drawn = zlib.crc32(repr((prompt, number)).encode())
    return [*(DIGIT + (drawn >> i) % 10 for i in range(3 + drawn % 8)), END]


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, scale: float = 1
) -> float:
    """Even digits in sixteenths, twice as many with the gold: dyadic, since verl's is float32."""
    even = sum(digit in "02468" for digit in solution_str) / 16
    return scale * even * (1 + (ground_truth in solution_str))


def flipped(rewards_B: Any, group_B: Any) -> torch.Tensor:
    return -grpo(rewards_B, group_B)


def whole(values: torch.Tensor) -> torch.Tensor:
    values = values.full_tensor() if hasattr(values, "full_tensor") else values
    return values.detach().float().clone()


def answer_from_the_record(module: Any) -> None:
    async def generate(client: Any, request_id: str, *, prompt_ids: list[int], **_: Any) -> Any:
        from verl.workers.rollout.replica import TokenOutput

        ids = response(prompt_ids, SEEN[tuple(prompt_ids)] % GROUP)
        SEEN[tuple(prompt_ids)] += 1
        versions = dict.fromkeys(("global_steps", "min_global_steps", "max_global_steps"), 0)
        given = {"log_probs": [-1.0] * len(ids), "extra_fields": versions}
        return TokenOutput(token_ids=ids, stop_reason="completed", **given)

    module.LLMServerClient.generate = generate


def record_rows(module: Any) -> None:
    def update(wrapped: Any, trainer: Any, args: Any, kwargs: Any) -> Any:
        batch = args[0] if args else kwargs["batch"]
        names = ["prompts", "responses", "rm_scores", "advantages"]
        data = module.tq.kv_batch_get(
            keys=batch.keys, partition_id=batch.partition_id, select_fields=names
        )
        columns = zip(*(data[name].unbind() for name in names), strict=True)
        rows = [[column.tolist() for column in row] for row in columns]
        text = json.dumps(sorted(rows))
        (FOLDER / f"rows_{trainer.global_steps}.json").write_text(text)
        return wrapped(*args, **kwargs)

    wrapt.wrap_function_wrapper(module, "PPOTrainer._update_actor", update)


def record_gradients(module: Any) -> None:
    done: list[int] = []

    def step(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        parameters = dict(engine.module.named_parameters())
        if not done:
            torch.save({k: whole(v) for k, v in parameters.items()}, FOLDER / "start.pt")
        done.append(1)
        gradients = {k: whole(v.grad) for k, v in parameters.items() if v.grad is not None}
        torch.save(gradients, FOLDER / f"gradients_{len(done)}.pt")
        result = wrapped(*args, **kwargs)
        torch.save({k: whole(v) for k, v in parameters.items()}, FOLDER / "end.pt")
        return result

    wrapt.wrap_function_wrapper(module, "FSDPEngine.optimizer_step", step)


HOOKS = {
    "verl.workers.rollout.llm_server": answer_from_the_record,
    "verl.trainer.ppo.v1.trainer_base": record_rows,
    "verl.workers.engine.fsdp.transformer_impl": record_gradients,
}
for name, hook in HOOKS.items() if "REFEREE" in os.environ else ():
    wrapt.register_post_import_hook(hook, name)
