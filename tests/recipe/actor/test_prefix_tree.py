"""Prefix trees: small ones by hand, and the values of a model with them and without."""

import dataclasses
import itertools
import random

import pytest
import torch
from tiny_model import untrained

from recipe.actor.prefix_tree import plant


@pytest.mark.parametrize(
    ("sequences", "capacity", "ids", "depth", "sees", "nodes"),
    [
        (  # In depth-first order: 5 7 8 9 6.
            [[5, 7, 9], [6], [5, 7, 8]],
            8,
            [[5, 7, 8, 9, 6]],
            [[0, 1, 2, 2, 0]],
            [[0], [0, 1], [0, 1, 2], [0, 1, 3], [4]],
            [0, 1, 3, 4, 0, 1, 2],
        ),
        (  # The third does not fit and starts a row with its own copy, followed by padding.
            [[5, 7, 1, 1], [5, 7, 2, 2], [5, 7, 3]],
            6,
            [[5, 7, 1, 1, 2, 2], [5, 7, 3, 0, 0, 0]],
            [[0, 1, 2, 3, 2, 3], [0, 1, 2, 0, 0, 0]],
            [[0], [0, 1], [0, 1, 2], [3], [4], [5]],
            [0, 1, 2, 3, 0, 1, 4, 5, 6, 7, 8],
        ),
        (  # Equal sequences and prefixes of others take no place.
            [[1, 2, 3], [1, 2], [1, 2, 3]],
            3,
            [[1, 2, 3]],
            [[0, 1, 2]],
            [[0], [0, 1], [0, 1, 2]],
            [0, 1, 2, 0, 1, 0, 1, 2],
        ),
        (  # A sequence longer than a row makes rows longer.
            [[1, 2, 3], [4, 5]],
            1,
            [[1, 2, 3], [4, 5, 0]],
            [[0, 1, 2], [0, 1, 0]],
            [[0], [0, 1], [2]],
            [0, 1, 2, 3, 4],
        ),
    ],
)
def test_a_forest_by_hand(
    sequences: list, capacity: int, ids: list, depth: list, sees: list, nodes: list
) -> None:
    forest = plant(sequences, capacity)
    assert (forest.ids_FL.tolist(), forest.depth_FL.tolist()) == (ids, depth)
    assert [line.nonzero()[:, 0].tolist() for line in forest.sees_F1LL[-1, 0]] == sees
    assert forest.node_N.tolist() == nodes


def sequences(seed: int, count: int = 24) -> list[list[int]]:
    """Rows over few tokens, so that they share prefixes of all lengths."""
    rng = random.Random(seed)
    starts = [[rng.randrange(40) for _ in range(rng.randrange(1, 9))] for _ in range(4)]
    return [
        rng.choice(starts) + [rng.randrange(3) for _ in range(rng.randrange(1, 7))]
        for _ in range(count)
    ]


@pytest.mark.parametrize(("seed", "capacity"), itertools.product(range(5), (1, 12, 30, 400)))
def test_every_token_sees_its_own_sequence_in_order(seed: int, capacity: int) -> None:
    given = sequences(seed)
    forest = plant(given, capacity)
    rows, length = forest.ids_FL.shape
    nodes = forest.node_N.tolist()
    assert len(nodes) == sum(map(len, given))
    for sequence in given:
        path, nodes = nodes[: len(sequence)], nodes[len(sequence) :]
        for depth, node in enumerate(path):
            row, place = divmod(node, length)
            sees = forest.sees_F1LL[row, 0, place].nonzero()[:, 0]
            assert forest.ids_FL[row, sees].tolist() == sequence[: depth + 1]
            assert forest.depth_FL[row, sees].tolist() == list(range(depth + 1))
    # In one row there is one node for each distinct prefix.
    if capacity == 400:
        prefixes = {tuple(s[: i + 1]) for s in given for i in range(len(s))}
        assert rows == 1
        assert length == len(prefixes)


@pytest.mark.parametrize("broken", ["", "sees_F1LL", "depth_FL"])
def test_only_the_right_mask_and_positions_give_the_values_of_single_rows(broken: str) -> None:
    """Negative controls: a causal mask over the places, and the places as positions.

    test_engine.py compares the gradients.
    """
    model, given = untrained(), sequences(7)
    forest = plant(given, 400)
    length = forest.ids_FL.shape[1]
    wrong = {
        "sees_F1LL": torch.ones(length, length, dtype=torch.bool).tril()[None, None],
        "depth_FL": torch.arange(length)[None],
    }
    if broken:
        forest = dataclasses.replace(forest, **{broken: wrong[broken]})
    masks = {"attention_mask": forest.sees_F1LL, "position_ids": forest.depth_FL}
    shared = model(input_ids=forest.ids_FL, use_cache=False, **masks).logits.flatten(0, 1)
    alone = [model(input_ids=torch.tensor([s]), use_cache=False).logits[0] for s in given]
    difference = (shared[forest.node_N] - torch.cat(alone)).abs().max()
    assert difference > 1e-3 if broken else difference < 1e-6
