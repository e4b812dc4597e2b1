"""Log-probabilities of a step's responses under prompts that hold a right answer (SDPO)."""

from collections.abc import Callable
from typing import Any

import torch
import transfer_queue as tq
from torch import Tensor
from verl.utils import tensordict_utils as tu
from verl.workers.utils.padding import response_from_nested

from prompt_aug.prompts import Prompts
from prompt_aug.questions import turns_of
from prompt_aug.templates.rendering import RenderError
from prompt_aug.turns import control_token
from recipe.algorithms.sdpo import HINT, solutions
from recipe.trainer.batch import Fetched, numbered, rows_of
from recipe.trainer.order import group_id

Forward = Callable[[list[Tensor], list[Tensor]], list[Tensor]]


def forward_of(workers: Any, temperature: float, count: int) -> Forward:
    """Return a function (prompts, responses) -> log-probabilities of the responses' tokens.

    `count`: rows of the step's batch, which verl has padded for its ranks and micro-batches.
    """

    def forward(prompts: list[Tensor], responses: list[Tensor]) -> list[Tensor]:
        batch = rows_of(prompts, responses, count)
        settings = {"calculate_entropy": False, "compute_loss": False, "no_lora_adapter": False}
        tu.assign_non_tensor(batch, **settings, temperature=temperature)
        log_probs = workers.compute_log_prob(batch)["log_probs"]
        rows = response_from_nested(log_probs, batch["response_mask"]).unbind()
        return list(rows)[: len(prompts)]

    return forward


def hinted_logprobs(
    fetched: Fetched,
    *,
    renderer: Prompts,
    tokenizer: Any,
    limit: int,
    forward: Forward,
    metrics: dict,
) -> Tensor:
    """Return a matrix R x T; rows without a hint hold the log-probabilities without one.

    A hint is left out if its prompt would have more than `limit` tokens or cannot be rendered.
    """
    real, extra = fetched.real(), fetched.rows["extra_fields"]
    graded = [extra[i]["reward_extra_info"] for i in real]
    keys = [fetched.batch.keys[i] for i in real]
    groups = numbered([group_id(key) for key in keys])
    answers = solutions([g["acc"] for g in graded], [g["response"] for g in graded], groups)
    data = tq.kv_batch_get(
        keys=keys, partition_id=fetched.batch.partition_id, select_fields=["raw_prompt"]
    )
    chosen, prompts = [], []
    for i, answer, chat in zip(real, answers, data["raw_prompt"], strict=True):
        if answer is None or control_token((answer,), tokenizer):
            continue
        earlier, question = turns_of(chat)
        text = HINT.format(question=question, solution=answer)
        try:
            prompt = renderer.render(extra[i]["template"], text, tokenizer, earlier)
        except RenderError:
            continue
        if len(prompt.ids) <= limit:
            chosen.append(i)
            prompts.append(torch.tensor(prompt.ids))
    count = sum(answer is not None for answer in answers)
    metrics["hint/share"] = len(chosen) / len(real)
    metrics["hint/left_out"] = (count - len(chosen)) / len(real)
    result = fetched.padded["old_log_probs"].clone()
    if chosen:
        responses = [fetched.rows["responses"][i] for i in chosen]
        for i, values in zip(chosen, forward(prompts, responses), strict=True):
            result[i, : len(values)] = values.to(result)
    return result
