"""The rows of a training batch between TransferQueue and our own functions.

verl hands its driver keys; the data lie in TransferQueue. Rows that verl appends to fill the last
mini-batch are left out here, and the rest are sorted by question, visit and rollout: what is
computed from them does not depend on the order in which rollouts arrived.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
from tensordict import TensorDict
from torch.nn.utils.rnn import pad_sequence

from recipe.algorithms.compute import Responses
from recipe.run import folder as run_folder

FIELDS = (
    *("uid", "session_id", "prompts", "responses", "extra_info", "extra_fields", "rm_scores"),
    *("response_mask", "loss_mask", "old_log_probs"),
    *("entropy", "rollout_log_probs", "token_level_rewards"),  # where the settings make them
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rows:
    """The real rows, sorted; `columns` holds a list for every field that all rows have."""

    keys: list[str]
    partition: str
    columns: dict[str, list[Any]]

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: values[index] for name, values in self.columns.items()}

    def questions(self) -> list[str]:
        """The content hash of every row's question."""
        return [extra["uid"] for extra in self.columns["extra_info"]]

    def accuracies(self) -> list[float]:
        return [float(e["reward_extra_info"]["acc"]) for e in self.columns["extra_fields"]]

    def lengths(self) -> list[int]:
        return [int(ids.numel()) for ids in self.columns["responses"]]

    def truncated(self) -> list[bool]:
        return [bool(extra["truncated"]) for extra in self.columns["extra_fields"]]

    def rewards(self) -> list[float]:
        """The sum of the rewards of a response's tokens, KL in the reward included."""
        name = "token_level_rewards" if "token_level_rewards" in self.columns else "rm_scores"
        return [float(scores.double().sum()) for scores in self.columns[name]]


def read(batch: Any) -> Rows:
    """The real rows of verl's `batch` (keys and tags) with their columns."""
    keys = [
        key
        for key, tag in zip(batch.keys, batch.tags, strict=True)
        if not tag.get("is_padding", False)
    ]
    data = tq.kv_batch_get(keys=keys, partition_id=batch.partition_id, select_fields=list(FIELDS))
    columns = {name: list(data[name]) for name in FIELDS if name in data}
    named = zip(columns["extra_info"], columns["uid"], columns["session_id"], strict=True)
    places = [(extra["uid"], str(uid), int(session)) for extra, uid, session in named]
    order = sorted(range(len(keys)), key=places.__getitem__)
    return Rows(
        keys=[keys[i] for i in order],
        partition=batch.partition_id,
        columns={name: [values[i] for i in order] for name, values in columns.items()},
    )


def responses(rows: Rows, rewards: Sequence[float], left_out: Sequence[bool]) -> Responses:
    """What `recipe.algorithms.compute` wants; rows marked in `left_out` have no tokens there."""
    visits: dict[str, int] = {}
    texts: dict[tuple[str, int], int] = {}
    question_B, text_B = [], []
    for uid, extra in zip(rows.columns["uid"], rows.columns["extra_fields"], strict=True):
        question_B.append(visits.setdefault(str(uid), len(visits)))
        text_B.append(texts.setdefault((str(uid), int(extra["neighbour"])), len(texts)))
    masks = [
        torch.zeros_like(mask) if out else mask
        for mask, out in zip(rows.columns["response_mask"], left_out, strict=True)
    ]
    return Responses(
        rewards_B=torch.tensor(list(rewards), dtype=torch.float64),
        question_B=torch.tensor(question_B),
        text_B=torch.tensor(text_B),
        logprobs_BT=padded(rows.columns["old_log_probs"]),
        mask_BT=padded(masks),
        key_B=torch.tensor(row_keys(rows)),
    )


def row_keys(rows: Rows) -> list[int]:
    """A 64-bit hash of (question, which of its visits in this batch, rollout) for every row."""
    visits: dict[str, dict[str, int]] = {}
    keys = []
    named = zip(rows.questions(), rows.columns["uid"], rows.columns["session_id"], strict=True)
    for question, visit, session in named:
        known = visits.setdefault(question, {})
        place = f"{question}/{known.setdefault(str(visit), len(known))}/{int(session)}"
        digest = hashlib.blake2b(place.encode(), digest_size=8).digest()
        keys.append(int.from_bytes(digest, "big", signed=True))
    return keys


def padded(values: Iterable[torch.Tensor]) -> torch.Tensor:
    """Rows of different lengths as one float64 matrix, 0 behind the end of a row."""
    return pad_sequence([v.detach().cpu().double() for v in values], batch_first=True)


def without_visits(rows: Rows, advantages_BT: torch.Tensor, visits: set[str]) -> torch.Tensor:
    """The advantages, 0 for the responses to these visits: groups that only fill up a batch."""
    trained_B = torch.tensor([str(uid) not in visits for uid in rows.columns["uid"]])
    return torch.where(trained_B[:, None], advantages_BT, 0.0)


def write_advantages(
    rows: Rows, advantages_BT: torch.Tensor, left_out: Sequence[bool], *, by_token: bool
) -> None:
    """Put the advantages of the real rows where the actor reads them, and leave rows out.

    A row that is left out has zero masks: no policy, KL or entropy term. Where the loss is a mean
    over tokens (`by_token`) it keeps its first token, with advantage 0: a mini-batch whose
    responses were all cut would otherwise divide by zero tokens. Means over responses divide by
    their number, the left-out ones included. (A whole batch of cut responses keeps first tokens in
    any case: verl takes the largest advantage of those that count.)
    """
    lengths = rows.lengths()
    fields = {"advantages": [a[:n].float() for a, n in zip(advantages_BT, lengths, strict=True)]}
    if any(left_out):
        keep = 1 if by_token or all(left_out) else 0
        for name in ("response_mask", "loss_mask"):
            fields[name] = [
                _first_tokens(mask, keep) if out else mask
                for mask, out in zip(rows.columns[name], left_out, strict=True)
            ]
    nested = {
        name: torch.nested.as_nested_tensor(values, layout=torch.jagged)
        for name, values in fields.items()
    }
    tq.kv_batch_put(
        keys=rows.keys,
        partition_id=rows.partition,
        fields=TensorDict(nested, batch_size=len(rows)),
    )


def _first_tokens(mask: torch.Tensor, count: int) -> torch.Tensor:
    kept = torch.zeros_like(mask)
    kept[:count] = 1
    return kept


def save_tensors(
    path: Path, rows: Rows, rewards: Sequence[float], advantages_BT: torch.Tensor
) -> None:
    """An .npz file, without pickles, of what a step was computed from; see recipe/README.md.

    Matrices have a row for every response, padded with -1 (ids) or 0; `prompts` is what a response
    was trained under, `generated_under` what the engine was given, `lengths` are of responses.
    """
    extra = rows.columns["extra_fields"]
    prompts = rows.columns["prompts"]
    given = [
        torch.tensor(e["generated_under"]) if e["generated_under"] else prompt
        for e, prompt in zip(extra, prompts, strict=True)
    ]
    arrays: dict[str, Any] = {
        "uid": np.array(rows.questions()),
        "visit": np.array([str(uid) for uid in rows.columns["uid"]]),
        "rollout": np.array([int(s) for s in rows.columns["session_id"]]),
        "neighbour": np.array([int(e["neighbour"]) for e in extra]),
        "template": np.array([e["template"] for e in extra]),
        "lengths": np.array(rows.lengths()),
        "prompts": _ids(prompts),
        "generated_under": _ids(given),
        "responses": _ids(rows.columns["responses"]),
        "response_mask": padded(rows.columns["response_mask"]).numpy(),
        "old_log_probs": padded(rows.columns["old_log_probs"]).numpy(),
        "rewards": np.array(rewards),
        "advantages": advantages_BT.numpy(),
    }
    if "rollout_log_probs" in rows.columns:
        arrays["rollout_log_probs"] = padded(rows.columns["rollout_log_probs"]).numpy()
    run_folder.write_arrays(path, arrays)


def _ids(rows: Iterable[torch.Tensor]) -> np.ndarray:
    return pad_sequence(list(rows), batch_first=True, padding_value=-1).numpy()
