"""A step's rollouts between TransferQueue and our own functions: read once, written back once.

verl hands its driver keys and tags; the data lie in TransferQueue. Rows that verl appends to fill
the last mini-batch are left out of the record, and the rest are sorted by group and rollout: what
is computed from them does not depend on the order in which rollouts arrived.

Symbols: B real rows, T tokens of the longest response, R rows of verl's batch, padding included.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from torch import Tensor

from recipe.algorithms.rollouts import RolloutBatch
from recipe.trainer.order import group_id

# Every field that a step needs, verl's own corrections included (recipe.trainer.verl_part).
FIELDS = (
    *("session_id", "prompts", "responses", "extra_info", "extra_fields"),
    *("response_mask", "loss_mask", "rm_scores", "old_log_probs"),
    *("entropy", "rollout_log_probs", "ref_log_prob"),  # where the settings make them
)

# Every field that verl's actor and reference model read, for any of its losses, where it is there.
# They would get all others as well, the dataset's columns among them, as Python objects by row.
ACTOR_FIELDS = (
    *("prompts", "responses", "input_ids", "position_ids", "response_mask", "loss_mask"),
    *("old_log_probs", "ref_log_prob", "advantages", "rollout_is_weights"),
    *("routed_experts", "teacher_ids", "teacher_logprobs"),
)


@contextmanager
def for_actor(batch: Any) -> Iterator[None]:
    """In here workers that get verl's `batch` are sent `ACTOR_FIELDS` alone."""
    before, batch.fields = batch.fields, list(ACTOR_FIELDS)
    try:
        yield
    finally:
        batch.fields = before


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetched:
    """What TransferQueue holds of verl's batch, R rows in verl's order."""

    batch: Any  # verl's keys, tags and partition
    data: Any  # as TransferQueue gives it: what verl's own functions take
    rows: dict[str, list[Any]]  # columns that are not matrices
    padded: dict[str, Tensor]  # matrices R x T, float32 as verl computes, 0 behind a row's end
    lengths: list[int]  # tokens of the response, verl's padding rows have one

    def real(self) -> list[int]:
        """The rows that are not padding, sorted by group and rollout."""
        rows = [i for i, tag in enumerate(self.batch.tags) if not tag.get("is_padding", False)]
        sessions = [int(value) for value in self.rows["session_id"]]
        return sorted(rows, key=lambda i: (group_id(self.batch.keys[i]), sessions[i]))


def fetch(batch: Any, fields: Sequence[str] = FIELDS) -> Fetched:
    """Read verl's `batch`, the only time in a step that our trainer does."""
    data = tq.kv_batch_get(
        keys=batch.keys, partition_id=batch.partition_id, select_fields=list(fields)
    )
    per_token = [name for name in fields if name in data and name not in NOT_PER_TOKEN]
    padded = {name: matrix(data[name]) for name in per_token}
    rows = {name: list(data[name]) for name in NOT_PER_TOKEN}
    lengths = [int(ids.numel()) for ids in rows["responses"]]
    return Fetched(batch=batch, data=data, rows=rows, padded=padded, lengths=lengths)


NOT_PER_TOKEN = ("session_id", "prompts", "responses", "extra_info", "extra_fields")


def matrix(column: Any) -> Tensor:
    """Rows of different lengths as one matrix, 0 behind the end of a row."""
    if isinstance(column, Tensor) and not column.is_nested:
        return column  # all rows have the same length
    if not isinstance(column, Tensor):
        column = torch.nested.as_nested_tensor(list(column), layout=torch.jagged)
    return column.to_padded_tensor(0)


def rollouts_of(
    fetched: Fetched,
    *,
    seed: int,
    rewards: Tensor,
    mask: Tensor,
    weight_logprobs: Tensor | None,
) -> RolloutBatch:
    """The record of the real rows; all are trained, and no question has a history yet.

    `rewards` and `mask` are R x T, after verl's corrections (`recipe.trainer.verl_part`).
    """
    rows = fetched.real()
    logprobs_BT = fetched.padded["old_log_probs"][rows].double()

    def matrix_of(values: Tensor | None) -> Tensor | None:
        return None if values is None else values[rows].double()

    wanted_BT = matrix_of(weight_logprobs)
    return RolloutBatch(
        seed=seed,
        **_origins(fetched, rows),
        **_grades(fetched, rows),
        shortest=[None] * len(rows),
        lengths=[fetched.lengths[i] for i in rows],
        reward_B=rewards[rows].double().sum(1),
        trained_B=torch.ones(len(rows), dtype=torch.bool),
        mask_BT=mask[rows] != 0,
        logprobs_BT=logprobs_BT,
        weight_logprobs_BT=logprobs_BT if wanted_BT is None else wanted_BT,
        rollout_logprobs_BT=matrix_of(fetched.padded.get("rollout_log_probs")),
        entropy_BT=matrix_of(fetched.padded.get("entropy")),
        responses=[fetched.rows["responses"][i] for i in rows],
    )


def _origins(fetched: Fetched, rows: Sequence[int]) -> dict[str, Any]:
    """Which question a response is to, in which rephrasing, under which prompts."""
    keys = [fetched.batch.keys[i] for i in rows]
    groups = [group_id(key) for key in keys]
    info = [fetched.rows["extra_info"][i] for i in rows]
    extra = [fetched.rows["extra_fields"][i] for i in rows]
    prompts = [fetched.rows["prompts"][i] for i in rows]
    rephrasings = [int(e["rephrasing"]) for e in extra]
    given = [e["generated_under"] for e in extra]  # None where that is the prompt
    return {
        "keys": keys,
        "questions": [i["uid"] for i in info],
        "group_B": numbered(groups),
        "rephrasing_B": numbered(list(zip(groups, rephrasings, strict=True))),
        "rollouts": [int(fetched.rows["session_id"][i]) for i in rows],
        "rephrasings": rephrasings,
        "templates": [e["template"] for e in extra],
        "gold": [tuple(i["answers"]) for i in info],
        "prompts": prompts,
        "generated_under": [
            torch.tensor(ids) if ids else prompt for ids, prompt in zip(given, prompts, strict=True)
        ],
    }


def _grades(fetched: Fetched, rows: Sequence[int]) -> dict[str, Any]:
    """What the reward worker returned for a response."""
    extra = [fetched.rows["extra_fields"][i] for i in rows]
    graded = [e["reward_extra_info"] for e in extra]
    return {
        "text": [g["response"] for g in graded],
        "answers": [answer(g) for g in graded],
        "statuses": [g["status"] for g in graded],
        "accuracy": [float(g["acc"]) for g in graded],
        "formats": [float(g["format"]) for g in graded],
        "truncated": [bool(e["truncated"]) for e in extra],
    }


def answer(graded: dict[str, Any]) -> str:
    """The final answer of a response as a text that is equal for equal answers, "" without any.

    All right ones are equal, however they are written; of wrong ones only spaces are ignored.
    """
    return "right" if graded["acc"] == 1.0 else "".join(str(graded["pred"]).split())


def numbered(ids: Sequence[Any]) -> Tensor:
    """The distinct `ids` numbered from 0 in the order in which they come, int64."""
    places: dict[Any, int] = {}
    return torch.tensor([places.setdefault(one, len(places)) for one in ids], dtype=torch.int64)


def write(
    fetched: Fetched,
    advantages_BT: Tensor,
    *,
    changed: dict[str, Tensor],
    left_out: Sequence[bool],
    by_token: bool,
) -> Any:
    """Put the advantages where verl's actor reads them; returns verl's batch, as verl's step does.

    `advantages_BT` and `left_out` are of the real rows; `changed` are other columns, R x T, that
    verl's corrections made. verl reads "returns" for its metrics, which for GRPO are the
    advantages.

    A row that is left out has zero masks: no policy, KL or entropy term. Where the loss is a mean
    over tokens (`by_token`) it keeps its first token, with advantage 0: a mini-batch whose
    responses were all cut would otherwise divide by zero tokens. Means over responses divide by
    their number, the left-out ones included. (A whole batch of cut responses keeps first tokens in
    any case: verl takes the largest advantage of those that count.)
    """
    rows = fetched.real()
    full = torch.zeros(len(fetched.lengths), advantages_BT.shape[1])
    full[rows] = advantages_BT.float()
    fields = {"advantages": full, "returns": full, **changed}
    if any(left_out):
        cut = [row for row, out in zip(rows, left_out, strict=True) if out]
        keep = 1 if by_token or all(left_out) else 0
        for name in ("response_mask", "loss_mask"):
            masks = fields.get(name, fetched.padded[name]).clone()
            masks[cut] = 0
            masks[cut, :keep] = 1
            fields[name] = masks
    nested = {name: ragged(values, fetched.lengths) for name, values in fields.items()}
    return tq.kv_batch_put(
        keys=fetched.batch.keys,
        partition_id=fetched.batch.partition_id,
        fields=TensorDict(nested, batch_size=len(fetched.lengths)),
    )


def ragged(values: Tensor, lengths: Sequence[int]) -> Tensor:
    """The first entries of every row, as many as `lengths` says, as a nested tensor."""
    parts = [row[:length] for row, length in zip(values, lengths, strict=True)]
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged)
