"""Read the rollouts of a step from TransferQueue once, and write the advantages back once.

verl's driver has keys and tags; the data is in TransferQueue. Padding rows, which verl appends to
fill the last mini-batch, are not in `RolloutBatch`. All others are sorted by group and rollout, so
that no result depends on the order in which rollouts arrived.

Symbols: B real rows, T tokens of the longest response, R rows of verl's batch, padding included.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import transfer_queue as tq
from omegaconf import DictConfig
from tensordict import TensorDict
from torch import Tensor

from recipe.algorithms.rollouts import RolloutBatch
from recipe.algorithms.tokens import row_sums
from recipe.trainer.order import group_id, place_of

NOT_PER_TOKEN = ("prompts", "responses", "extra_info", "extra_fields")
# Every field that a step reads, those of `training_signal.apply_corrections` included.
FIELDS = (
    *NOT_PER_TOKEN,
    "response_mask", "loss_mask", "rm_scores", "old_log_probs",
    "entropy", "rollout_log_probs", "ref_log_prob", "values",  # present only with some settings
)  # fmt: skip


def fields_of(config: DictConfig) -> list[str]:
    """Return the `FIELDS` that a step reads with a configuration; each takes time for every row."""
    unread = {
        "ref_log_prob": not config.algorithm.use_kl_in_reward,
        "loss_mask": not config.recipe.overlong_filter,
    }
    return [name for name in FIELDS if not unread.get(name)]


# Every field that verl's actor, reference model and critic read for any loss. verl would also send
# the columns of the dataset, row by row as Python objects.
ACTOR_FIELDS = (
    "prompts", "responses", "input_ids", "position_ids", "response_mask", "loss_mask",
    "old_log_probs", "ref_log_prob", "advantages", "rollout_is_weights",
    "values", "returns", "routed_experts", "teacher_ids", "teacher_logprobs",
)  # fmt: skip


@contextmanager
def for_actor(batch: Any) -> Iterator[None]:
    """Context in which workers receive only the `ACTOR_FIELDS` of verl's `batch`."""
    before, batch.fields = batch.fields, list(ACTOR_FIELDS)
    try:
        yield
    finally:
        batch.fields = before


@dataclass(frozen=True, kw_only=True, slots=True)
class Fetched:
    """The columns of verl's batch in TransferQueue, R rows in verl's order."""

    batch: Any  # verl's keys, tags and partition
    data: Any  # as TransferQueue returns it, for verl's own functions
    rows: dict[str, list[Any]]  # columns that are not matrices
    padded: dict[str, Tensor]  # matrices R x T, float32 as in verl, 0 after the end of a row
    lengths: list[int]  # tokens of the response; verl's padding rows have one

    def real(self) -> list[int]:
        """The rows that are not padding, sorted by group and rollout."""
        rows = [i for i, tag in enumerate(self.batch.tags) if not tag.get("is_padding", False)]
        return sorted(rows, key=lambda i: place_of(self.batch.keys[i]))


def fetch(batch: Any, fields: Sequence[str] = FIELDS) -> Fetched:
    """Read verl's `batch` from TransferQueue; the trainer does so once per step."""
    data = tq.kv_batch_get(
        keys=batch.keys, partition_id=batch.partition_id, select_fields=list(fields)
    )
    per_token = [name for name in fields if name in data and name not in NOT_PER_TOKEN]
    padded = {name: matrix(data[name]) for name in per_token}
    rows = {name: list(data[name]) for name in NOT_PER_TOKEN}
    lengths = [int(ids.numel()) for ids in rows["responses"]]
    return Fetched(batch=batch, data=data, rows=rows, padded=padded, lengths=lengths)


def matrix(column: Any) -> Tensor:
    """Rows of different lengths as one matrix, 0 after the end of a row."""
    if not isinstance(column, Tensor):
        column = jagged(list(column))
    # A plain tensor: all rows have one length.
    return column.to_padded_tensor(0) if column.is_nested else column


def rollouts_of(
    fetched: Fetched,
    *,
    seed: int,
    rewards: Tensor,
    mask: Tensor,
    weight_logprobs: Tensor | None,
    hinted_logprobs: Tensor | None = None,
) -> RolloutBatch:
    """Return the real rows, `trained_B` True in all; `rewards` and `mask` are R x T."""
    real = fetched.real()
    keys = [fetched.batch.keys[i] for i in real]
    rows = {name: [values[i] for i in real] for name, values in fetched.rows.items()}
    info, extra = rows["extra_info"], rows["extra_fields"]
    graded = [e["reward_extra_info"] for e in extra]  # by the reward worker
    groups, rephrasings = [group_id(key) for key in keys], [int(e["rephrasing"]) for e in extra]
    # None: generated under the prompt that is trained under.
    given = zip((e["generated_under"] for e in extra), rows["prompts"], strict=True)

    def matrix_of(values: Tensor | None) -> Tensor | None:
        return None if values is None else values[real].double()

    logprobs_BT = fetched.padded["old_log_probs"][real].double()
    wanted_BT = matrix_of(weight_logprobs)
    return RolloutBatch(
        keys=keys,
        seed=seed,
        questions=[i["uid"] for i in info],
        group_B=numbered(groups),
        rephrasing_B=numbered(list(zip(groups, rephrasings, strict=True))),
        rollouts=[place_of(key)[1] for key in keys],
        rephrasings=rephrasings,
        templates=[e["template"] for e in extra],
        gold=[tuple(i["answers"]) for i in info],
        text=[g["response"] for g in graded],
        answers=[answer(g) for g in graded],
        statuses=[g["status"] for g in graded],
        sources=[g["source"] for g in graded],
        parts=[g["parts"] for g in graded],
        shortest=[None] * len(real),
        accuracy=[float(g["acc"]) for g in graded],
        formats=[float(g["format"]) for g in graded],
        lengths=[fetched.lengths[i] for i in real],
        truncated=[bool(e["truncated"]) for e in extra],
        reward_B=row_sums(Tensor.double, rewards)[real],
        trained_B=torch.ones(len(real), dtype=torch.bool),
        mask_BT=(mask != 0)[real],
        logprobs_BT=logprobs_BT,
        weight_logprobs_BT=logprobs_BT if wanted_BT is None else wanted_BT,
        hinted_logprobs_BT=matrix_of(hinted_logprobs),
        rollout_logprobs_BT=matrix_of(fetched.padded.get("rollout_log_probs")),
        entropy_BT=matrix_of(fetched.padded.get("entropy")),
        values_BT=matrix_of(fetched.padded.get("values")),
        prompts=rows["prompts"],
        generated_under=[prompt if ids is None else ids for ids, prompt in given],
        responses=rows["responses"],
        versions=[e.get("versions", []) for e in extra],
    )


def answer(graded: dict[str, Any]) -> str:
    """The final answer without spaces; "right" for all correct ones, "" without an answer."""
    return "right" if graded["acc"] == 1.0 else "".join(str(graded["pred"]).split())


def numbered(ids: Sequence[Any]) -> Tensor:
    """The distinct `ids` numbered from 0 in order of appearance, int64."""
    places: dict[Any, int] = {}
    return torch.tensor([places.setdefault(value, len(places)) for value in ids], dtype=torch.int64)


def columns_of(
    fetched: Fetched,
    advantages_BT: Tensor,
    returns_BT: Tensor | None,
    *,
    changed: dict[str, Tensor],
    excluded: Sequence[bool],
    by_token: bool,
) -> dict[str, Tensor]:
    """Return the columns, R x T, that this step computes for verl's actor.

    `advantages_BT`, `returns_BT` and `excluded` have one row per real row; `changed` holds verl's
    corrections, R x T. Without a critic `returns_BT` is None, and verl's metrics read the
    advantages as returns.

    An excluded row has zero masks: no policy, KL or entropy term. If the loss is a mean over tokens
    (`by_token`), the row keeps its first token, with advantage 0: a mini-batch of excluded rows
    would otherwise divide by zero tokens. If all rows are excluded they always keep it, since verl
    takes the maximum of the advantages under the mask.
    """
    rows = fetched.real()
    fields = dict(changed)
    for name, column in (("advantages", advantages_BT), ("returns", returns_BT)):
        if column is not None:
            fields[name] = torch.zeros(len(fetched.lengths), column.shape[1])
            fields[name][rows] = column.float()
    fields.setdefault("returns", fields["advantages"])
    if any(excluded):
        out = [row for row, skip in zip(rows, excluded, strict=True) if skip]
        keep = 1 if by_token or all(excluded) else 0
        for name in ("response_mask", "loss_mask"):
            masks = fields.get(name, fetched.padded[name]).clone()
            masks[out] = 0
            masks[out, :keep] = 1
            fields[name] = masks
    return fields


def write(fetched: Fetched, columns: dict[str, Tensor]) -> Any:
    """Write `columns` to the rows of verl's batch; return verl's batch."""
    nested = {name: ragged(values, fetched.lengths) for name, values in columns.items()}
    return tq.kv_batch_put(
        keys=fetched.batch.keys,
        partition_id=fetched.batch.partition_id,
        fields=TensorDict(nested, batch_size=len(fetched.lengths)),
    )


def ragged(values: Tensor, lengths: Sequence[int]) -> Tensor:
    """The first `lengths` entries of every row, as a nested tensor."""
    return jagged([row[:length] for row, length in zip(values, lengths, strict=True)])


def jagged(parts: Sequence[Tensor]) -> Tensor:
    return torch.nested.as_nested_tensor(list(parts), layout=torch.jagged)


def rows_of(prompts: Sequence[Tensor], responses: Sequence[Tensor], count: int) -> TensorDict:
    """Return a batch of `count` rows for verl's workers, filled up with copies of its first row."""
    pairs = list(zip(prompts, responses, strict=True))
    pairs += [pairs[0]] * (count - len(pairs))
    ids = [torch.cat(pair) for pair in pairs]
    mask = jagged([torch.ones_like(response) for _, response in pairs])
    return TensorDict(
        {
            "prompts": jagged([prompt for prompt, _ in pairs]),
            "responses": jagged([response for _, response in pairs]),
            "input_ids": jagged(ids),
            "position_ids": jagged([torch.arange(len(row)) for row in ids]),
            "response_mask": mask,
            "loss_mask": mask,
        },
        batch_size=count,
    )
