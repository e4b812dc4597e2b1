"""The order of a batch, from which verl cuts mini-batches: a function of seed, step and group.

verl takes the rows in the order in which TransferQueue lists them: the order in which groups
finish. The mini-batches of a step are then sorted by response length, and long responses are always
the most off-policy. With several ranks verl also distributes the whole batch by length first, so
that the rows of a mini-batch depend on the number of ranks.

Here whole groups are put into an order drawn from (seed, step, group id), and each mini-batch is
distributed to the ranks separately. A mini-batch thus holds the same rows in any order of arrival
and with any number of rollout workers and ranks. It holds whole questions, as in the code of
arXiv 2602.03190 (there in the order of the shuffled data loader). The id of a group is a function
of the data order (`RecipeTrainer._fetch_one_gen_batch`).
"""

import hashlib
from collections.abc import Sequence

import torch
from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions


def place_of(key: str) -> tuple[str, int]:
    """Group and rollout of a row by its key in TransferQueue, ``{group}_{rollout}_{turn}``."""
    group, rollout, _ = key.rsplit("_", 2)
    return group, int(rollout)


def group_id(key: str) -> str:
    """The group of a row by its key in TransferQueue."""
    return key.rsplit("_", 2)[0]


def training_order(
    keys: Sequence[str], padding: Sequence[bool], *, seed: int, step: int
) -> list[int]:
    """Indices of the rows: groups in a random order, the rollouts of a group by their index.

    `padding` marks the rows that verl appends; they come last. All groups are whole
    (`recipe.trainer.replay_buffer`), so every mini-batch starts with a new question.
    """

    def place(i: int) -> tuple[bool, bytes, tuple[int, int]]:
        _, session, turn = keys[i].rsplit("_", 2)
        drawn = b"" if padding[i] else f"{seed}/{step}/{group_id(keys[i])}".encode()
        digest = hashlib.blake2b(drawn, digest_size=16).digest()
        return padding[i], digest, (int(session), int(turn))

    return sorted(range(len(keys)), key=place)


def distribute(
    order: Sequence[int], lengths: Sequence[int], *, mini_batch: int, ranks: int
) -> list[list[int]]:
    """The rows of every rank: an equal number of each mini-batch, with about equal work.

    verl gives rank r the r-th of equal slices of the batch and cuts that into mini-batches.
    `lengths` are of prompt and response, in tokens.
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    for start in range(0, len(order), mini_batch):
        rows = order[start : start + mini_batch]
        work = calculate_workload(torch.tensor([lengths[i] for i in rows]))
        parts = get_seqlen_balanced_partitions(work, k_partitions=ranks, equal_size=True)
        for rank, part in zip(shares, parts, strict=True):
            rank += [rows[place] for place in part]
    return shares
