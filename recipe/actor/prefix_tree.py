"""Rows that begin alike, computed once: token sequences as prefix trees for a causal model.

The responses of a group have their prompt in common, and while a policy is sure of most of its
tokens also most of what they say. In a causal model a token's hidden state depends on the tokens
before it alone, so one node of a prefix tree serves all rows that pass through it: the same
log-probabilities, and by the chain rule the same gradient, the sum over those rows.

Several trees share a row of the model's input (a forest), up to a number of places. Nodes stand in
the order of a depth-first walk, so the descendants of node j are the places j + 1 ... end_j - 1:

    place i sees place j   iff   j <= i < end_j

which is the whole attention mask, between trees as within one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

# Places of a row: more share longer beginnings, and attention is quadratic in them. Between 320 and
# 448 the work of rows of some 120 tokens hardly differs.
CAPACITY = 384


@dataclass(frozen=True, kw_only=True, slots=True)
class Forest:
    """F rows of L places; what a place behind the last node of its row holds counts nowhere."""

    ids_FL: Tensor  # the token of a node
    depth_FL: Tensor  # its place in its sequences, from 0: the position id
    sees_F1LL: Tensor  # bool, [f, 0, i, j]: whether place i attends to place j
    node_N: Tensor  # for every token of the sequences, one after the other: f * L + its place


@dataclass(slots=True)
class _Row:
    """A row under construction, its nodes in the order of the walk."""

    ids: list[int] = field(default_factory=list)
    depth: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    path: list[int] = field(default_factory=list)  # from the root to the last leaf: open nodes

    def shared(self, sequence: Sequence[int]) -> int:
        """How many first tokens of `sequence` are the open nodes'."""
        alike = 0
        for node, token in zip(self.path, sequence, strict=False):
            if self.ids[node] != token:
                break
            alike += 1
        return alike

    def add(self, sequence: Sequence[int], shared: int) -> list[int]:
        """Append what is new of `sequence`; the places of all of its tokens."""
        self._close(shared)
        size, new = len(self.ids), len(sequence) - shared
        self.path += range(size, size + new)
        self.ids += sequence[shared:]
        self.depth += range(shared, len(sequence))
        self.end += [0] * new
        return list(self.path)

    def _close(self, keep: int) -> None:
        for node in self.path[keep:]:
            self.end[node] = len(self.ids)
        del self.path[keep:]

    def padded(self, length: int) -> tuple[list[int], list[int], list[int]]:
        """(ids, depth, end) with places that see, and are seen by, themselves alone."""
        self._close(0)
        size = len(self.ids)
        rest = length - size
        ends = list(range(size + 1, length + 1))
        return self.ids + [0] * rest, self.depth + [0] * rest, self.end + ends


def plant(sequences: Sequence[Sequence[int]], capacity: int = CAPACITY) -> Forest:
    """The forest of `sequences`, none of them empty; rows of `capacity` places, or of the longest.

    Sequences are taken in their order as lists, in which those that begin alike are adjacent; one
    that does not fit into the row begins the next one, with a copy of what it shares.
    """
    capacity = max(capacity, max(map(len, sequences)))
    rows: list[_Row] = [_Row()]
    where: list[tuple[int, list[int]]] = [(0, [])] * len(sequences)
    for index in sorted(range(len(sequences)), key=lambda i: list(sequences[i])):
        sequence = sequences[index]
        shared = rows[-1].shared(sequence)
        if len(rows[-1].ids) + len(sequence) - shared > capacity:
            rows.append(_Row())
            shared = 0
        where[index] = (len(rows) - 1, rows[-1].add(sequence, shared))
    length = max(len(row.ids) for row in rows)
    ids, depth, end = (torch.tensor(c) for c in zip(*(r.padded(length) for r in rows), strict=True))
    place = torch.arange(length)
    earlier = place[None, :] <= place[:, None]
    within = place[None, :, None] < end[:, None, :]
    return Forest(
        ids_FL=ids,
        depth_FL=depth,
        sees_F1LL=(earlier & within)[:, None],
        node_N=torch.tensor([f * length + p for f, places in where for p in places]),
    )
