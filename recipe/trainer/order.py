"""The order of a batch, from which verl cuts mini-batches: a function of (seed, step) alone.

verl takes the rows in the order in which TransferQueue lists them, which is that in which groups
finish: the mini-batches of a step are then sorted by response length, the long responses always the
most off-policy. With several ranks it also deals the whole batch out by length first, so that the
rows of a mini-batch depend on the number of ranks.

Here whole groups are put into an order drawn from (seed, step, group id), and each mini-batch is
dealt out to the ranks by itself. A mini-batch thus holds the same rows in whatever order they
arrived, with any number of rollout workers and of ranks. It holds whole questions, as in the code
of arXiv 2602.03190 (there the order is the data loader's, itself shuffled). The group's id is a
function of the data order (`RecipeTrainer._fetch_one_gen_batch`).
"""

import hashlib
from collections.abc import Sequence

import torch
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions


def group_id(key: str) -> str:
    """The group of a row by its key in TransferQueue, ``{group}_{rollout}_{turn}``."""
    return key.rsplit("_", 2)[0]


def training_order(
    keys: Sequence[str], padding: Sequence[bool], *, size: int, seed: int, step: int
) -> list[int]:
    """Indices of the rows: whole groups in a drawn order, the rollouts of each in theirs.

    verl appends rows marked in `padding` where rollouts failed. They fill a group up to `size`
    rows, so that the next mini-batch still starts with a new question; what is left comes last.
    """
    spare = sorted((i for i, pad in enumerate(padding) if pad), key=lambda i: _rollout(keys[i]))
    groups: dict[str, list[int]] = {}
    for i, key in enumerate(keys):
        if not padding[i]:
            groups.setdefault(group_id(key), []).append(i)
    order: list[int] = []
    for group in sorted(groups, key=lambda group: _draw(group, seed, step)):
        order += sorted(groups[group], key=lambda i: _rollout(keys[i]))
        missing = max(0, size - len(groups[group]))
        order += spare[:missing]
        spare = spare[missing:]
    return order + spare


def deal(
    order: Sequence[int], lengths: Sequence[int], *, mini_batch: int, ranks: int
) -> list[list[int]]:
    """The rows of every rank: of each mini-batch an equal number, with about equal work.

    verl hands rank r the r-th of equal slices of the batch and cuts the k-th mini-batch of it from
    its k-th slice; `lengths` are of prompt and response, in tokens.
    """
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    for start in range(0, len(order), mini_batch):
        rows = order[start : start + mini_batch]
        work = calculate_workload(torch.tensor([lengths[i] for i in rows]))
        parts = get_seqlen_balanced_partitions(work, k_partitions=ranks, equal_size=True)
        for rank, part in zip(dealt, parts, strict=True):
            rank += [rows[place] for place in part]
    return dealt


def _rollout(key: str) -> tuple[int, int]:
    _, session, turn = key.rsplit("_", 2)
    return int(session), int(turn)


def _draw(group: str, seed: int, step: int) -> bytes:
    return hashlib.blake2b(f"{seed}/{step}/{group}".encode(), digest_size=16).digest()
