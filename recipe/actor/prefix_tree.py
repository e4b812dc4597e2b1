"""Prefix trees of token sequences, so that a causal model computes common prefixes once.

The responses of a group have the same prompt, and a confident policy also repeats much of its
responses. In a causal model the hidden state of a token depends only on the tokens before it. One
node of a prefix tree thus serves all rows that pass through it: the log-probabilities are the same,
and by the chain rule so is the gradient, the sum over those rows.

All nodes are one row of the model's input, divided into blocks of neighboring sequences. Attention
is computed block by block; a block begins with its own copy of the prefix. Nodes are in depth-first
order, so the descendants of node j are the places j + 1 ... end_j - 1:

    place i of a block sees its place j   iff   j <= i < end_j

This is the whole attention mask, between the trees of a block and within one.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

FULL, SLIDING = "full_attention", "sliding_attention"  # types of layers
# Places of a block at which attention costs as much as all else: 1,100 for SmolLM2-135M.
REACH = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class Forest:
    """A row of N nodes, in blocks."""

    ids_N: Tensor  # the token of a node
    depth_N: Tensor  # its position in its sequences, from 0: the position id
    sees: list[Tensor]  # bool, one (1, 1, L, L) for each block: place i attends to place j
    node_N: Tensor  # (T), for every token of the concatenated sequences: its node

    def inputs(self, config: Any) -> dict[str, Any]:
        """Return the arguments of a model with `attention`."""
        slides = SLIDING in (getattr(config, "layer_types", None) or ())
        first = self.sees[0]  # transformers computes no mask where one of four dimensions is given
        return {
            "input_ids": self.ids_N[None],
            "position_ids": self.depth_N[None],
            "attention_mask": {FULL: first, SLIDING: first} if slides else first,
            "blocks": (self.sees, self.near(config.sliding_window) if slides else []),
        }

    def near(self, window: int) -> list[Tensor]:
        """Return the masks of layers in which a token attends to the last `window` tokens."""
        depths = self.depth_N.split([mask.shape[-1] for mask in self.sees])
        return [
            mask & (depth[:, None] - depth < window)
            for mask, depth in zip(self.sees, depths, strict=True)
        ]


def attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **more: Any
) -> tuple[Tensor, None]:
    """transformers' sdpa, for each of `blocks`, the masks of a `Forest`, if they are given.

    One mask for all blocks would be quadratic in the row, and rows of equal length have padding.
    """
    blocks = more.pop("blocks", None)
    if blocks is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, **more)
    full, near = blocks
    masks = near if more.get("sliding_window") else full
    sizes = [mask.shape[-1] for mask in masks]
    parts = zip(*(x.split(sizes, 2) for x in (query, key, value)), masks, strict=True)
    return torch.cat([sdpa_attention_forward(module, *part, **more)[0] for part in parts], 1), None


AttentionInterface.register("sdpa", attention)


def in_order(sequences: Sequence[Sequence[int]]) -> tuple[list[int], list[int]]:
    """Return lexicographic order, and how many tokens each begins with as the one before it."""
    order = sorted(range(len(sequences)), key=lambda i: list(sequences[i]))
    shared = [0] * len(order)
    for place, (a, b) in enumerate(pairwise(order), 1):
        pairs = enumerate(zip(sequences[a], sequences[b], strict=False))
        least = min(len(sequences[a]), len(sequences[b]))
        shared[place] = next((i for i, (x, y) in pairs if x != y), least)
    return order, shared


def cheapest(lengths: Sequence[int], shared: Sequence[int], reach: int) -> list[int]:
    """Return where the blocks of the cheapest division begin; one of L nodes costs L + L^2 / reach.

    Smaller blocks copy more prefixes.
    """
    best = [(0.0, 0)]  # cost of the first sequences, and where their last block begins
    for stop in range(1, len(lengths) + 1):
        size, least = 0, (float("inf"), 0)
        for start in reversed(range(stop)):
            size += lengths[start] - (shared[start + 1] if start + 1 < stop else 0)
            cost = size + size**2 / reach
            if cost >= least[0]:  # and so with any earlier start
                break
            least = min(least, (best[start][0] + cost, start))
        best.append(least)
    begins = [best[-1][1]]
    while begins[-1]:
        begins.append(best[begins[-1]][1])
    return begins[::-1]


def plant(sequences: Sequence[Sequence[int]], reach: int = REACH) -> Forest:
    """Return the forest of non-empty `sequences`."""
    order, shared = in_order(sequences)
    begins = set(cheapest([len(sequences[i]) for i in order], shared, reach))
    ids, depth, end = list[int](), list[int](), list[int]()
    path, starts = list[int](), list[int]()  # path: nodes from the root to the last leaf
    where: list[list[int]] = [[]] * len(sequences)
    for place, index in enumerate(order):
        keep = shared[place]
        if place in begins:
            keep = 0
            starts.append(len(ids))
        new = sequences[index][keep:]
        for node in path[keep:]:
            end[node] = len(ids)
        path = path[:keep] + list(range(len(ids), len(ids) + len(new)))
        ids += new
        depth += range(keep, keep + len(new))
        end += [0] * len(new)
        where[index] = path
    for node in path:
        end[node] = len(ids)
    places, ends = torch.arange(len(ids)), torch.tensor(end)
    sees = []
    for start, stop in pairwise([*starts, len(ids)]):
        i, j = places[start:stop, None], places[None, start:stop]
        sees.append(((j <= i) & (i < ends[None, start:stop]))[None, None])
    return Forest(
        ids_N=torch.tensor(ids),
        depth_N=torch.tensor(depth),
        sees=sees,
        node_N=torch.tensor([node for nodes in where for node in nodes]),
    )


def batches(sequences: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
    """Split the indices of `sequences` into batches of at most `tokens` distinct tokens each.

    A token that several sequences of a batch have in a common prefix counts once. In lexicographic
    order, as in `plant`. A sequence of more than `tokens` tokens is a batch of its own.
    """
    parts: list[list[int]] = []
    size = 0
    for index, shared in zip(*in_order(sequences), strict=True):
        new = len(sequences[index]) - shared
        if not parts or size + new > tokens:
            parts.append([])
            size, new = 0, len(sequences[index])
        size += new
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
