"""Prefix trees of token sequences, so that a causal model computes common prefixes once.

The responses of a group have the same prompt, and a confident policy also repeats much of its
responses. In a causal model the hidden state of a token depends only on the tokens before it. One
node of a prefix tree thus serves all rows that pass through it: the log-probabilities are the same,
and by the chain rule so is the gradient, the sum over those rows.

Several trees (a forest) share a row of the model's input. Nodes are in depth-first order, so the
descendants of node j are the places j + 1 ... end_j - 1:

    place i sees place j   iff   j <= i < end_j

This is the whole attention mask, between trees and within one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

# Places of a row. More places share more prefixes, but attention is quadratic in them. For rows of
# about 120 tokens the cost hardly differs between 320 and 448.
CAPACITY = 384


@dataclass(frozen=True, kw_only=True, slots=True)
class Forest:
    """F rows of L places; places after the last node of a row are padding."""

    ids_FL: Tensor  # the token of a node
    depth_FL: Tensor  # its position in its sequences, from 0: the position id
    sees_F1LL: Tensor  # bool, [f, 0, i, j]: place i attends to place j
    node_N: Tensor  # for every token of the concatenated sequences: f * L + its place


@dataclass(slots=True)
class _Row:
    """A row under construction, its nodes in depth-first order."""

    ids: list[int] = field(default_factory=list)
    depth: list[int] = field(default_factory=list)
    end: list[int] = field(default_factory=list)
    path: list[int] = field(default_factory=list)  # from the root to the last leaf: open nodes

    def shared(self, sequence: Sequence[int]) -> int:
        """The length of the common prefix of `sequence` and the open path."""
        length = 0
        for node, token in zip(self.path, sequence, strict=False):
            if self.ids[node] != token:
                break
            length += 1
        return length

    def add(self, sequence: Sequence[int], shared: int) -> list[int]:
        """Append the new tokens of `sequence`; return the places of all its tokens."""
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
        """(ids, depth, end), padded with places that attend only to themselves."""
        self._close(0)
        size = len(self.ids)
        rest = length - size
        ends = list(range(size + 1, length + 1))
        return self.ids + [0] * rest, self.depth + [0] * rest, self.end + ends


def plant(sequences: Sequence[Sequence[int]], capacity: int = CAPACITY) -> Forest:
    """Return the forest of non-empty `sequences`.

    A row holds at most `capacity` tokens, or as many as the longest sequence has. Sequences are
    added in lexicographic order, so those with common prefixes are adjacent. A sequence that does
    not fit into the row starts the next row with a copy of its prefix.
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


def batches(sequences: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
    """Split the indices of `sequences` into batches of at most `tokens` distinct tokens each.

    A token that several sequences of a batch have in a common prefix counts once. In lexicographic
    order, as in `plant`. A sequence of more than `tokens` tokens is a batch of its own.
    """
    parts: list[list[int]] = []
    size, last = 0, _Row()
    for index in sorted(range(len(sequences)), key=lambda i: list(sequences[i])):
        sequence = sequences[index]
        shared = last.shared(sequence) if parts else 0
        if not parts or size + len(sequence) - shared > tokens:
            parts.append([])
            size, shared, last = 0, 0, _Row()
        last.add(sequence, shared)
        size += len(sequence) - shared
        parts[-1].append(index)
    return parts


def padded_batches(sequences: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
    """Split the indices of `sequences` into batches of at most `tokens` places, padding included.

    A sequence of more than `tokens` tokens is a batch of its own.
    """
    parts: list[list[int]] = []
    for index in sorted(range(len(sequences)), key=lambda i: -len(sequences[i])):
        if not parts or (len(parts[-1]) + 1) * len(sequences[parts[-1][0]]) > tokens:
            parts.append([])
        parts[-1].append(index)
    return parts
