"""Prefix trees: small ones by hand, and a model's values and gradients with them and without."""

import itertools
import random

import pytest
import torch
from tiny_model import untrained
from transformers import Qwen2ForCausalLM

from recipe.actor.prefix_tree import Forest, plant


def seen(forest: Forest, row: int) -> list[list[int]]:
    """For every place of a row the places that it sees."""
    return [line.nonzero()[:, 0].tolist() for line in forest.sees_F1LL[row, 0]]


def test_three_sequences_by_hand() -> None:
    """5 7 8, 5 7 9 and 6, given in another order: the walk is 5 7 8 9 6."""
    forest = plant([[5, 7, 9], [6], [5, 7, 8]], capacity=8)
    assert forest.ids_FL.tolist() == [[5, 7, 8, 9, 6]]
    assert forest.depth_FL.tolist() == [[0, 1, 2, 2, 0]]
    assert seen(forest, 0) == [[0], [0, 1], [0, 1, 2], [0, 1, 3], [4]]
    assert forest.node_N.tolist() == [0, 1, 3, 4, 0, 1, 2]


def test_a_full_row_by_hand() -> None:
    """The third does not fit: it begins a row with its own copy; the rest of that is padding."""
    forest = plant([[5, 7, 1, 1], [5, 7, 2, 2], [5, 7, 3]], capacity=6)
    assert forest.ids_FL.tolist() == [[5, 7, 1, 1, 2, 2], [5, 7, 3, 0, 0, 0]]
    assert forest.depth_FL.tolist() == [[0, 1, 2, 3, 2, 3], [0, 1, 2, 0, 0, 0]]
    assert seen(forest, 1) == [[0], [0, 1], [0, 1, 2], [3], [4], [5]]
    assert forest.node_N.tolist() == [0, 1, 2, 3, 0, 1, 4, 5, 6, 7, 8]


def test_equal_sequences_and_beginnings_of_others_take_no_place() -> None:
    forest = plant([[1, 2, 3], [1, 2], [1, 2, 3]], capacity=3)
    assert forest.ids_FL.tolist() == [[1, 2, 3]]
    assert forest.node_N.tolist() == [0, 1, 2, 0, 1, 0, 1, 2]


def test_a_sequence_longer_than_a_row_makes_rows_longer() -> None:
    assert plant([[1, 2, 3], [4, 5]], capacity=1).ids_FL.tolist() == [[1, 2, 3], [4, 5, 0]]


def sequences(seed: int, count: int = 24) -> list[list[int]]:
    """Rows over few tokens, so that they share beginnings of all lengths."""
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
    # Without a bound on rows there is one node for each distinct beginning.
    if capacity == 400:
        beginnings = {tuple(s[: i + 1]) for s in given for i in range(len(s))}
        assert rows == 1
        assert length == len(beginnings)


@pytest.fixture(scope="module")
def model() -> Qwen2ForCausalLM:
    return untrained()


def shared(model: Qwen2ForCausalLM, forest: Forest) -> torch.Tensor:
    """The logits of every token of the sequences."""
    out = model(
        input_ids=forest.ids_FL,
        attention_mask=forest.sees_F1LL,
        position_ids=forest.depth_FL,
        use_cache=False,
    )
    return out.logits.flatten(0, 1)[forest.node_N]


def alone(model: Qwen2ForCausalLM, given: list[list[int]]) -> torch.Tensor:
    rows = [model(input_ids=torch.tensor([s]), use_cache=False).logits[0] for s in given]
    return torch.cat(rows)


@pytest.mark.parametrize("capacity", [1, 25, 400])
def test_values_and_gradients_are_those_of_rows_alone(
    model: Qwen2ForCausalLM, capacity: int
) -> None:
    given = sequences(7)
    weights = torch.randn(sum(map(len, given)), 40, generator=torch.Generator().manual_seed(1))
    found = []
    for logits in (shared(model, plant(given, capacity)), alone(model, given)):
        model.zero_grad()
        (logits.log_softmax(-1) * weights).sum().backward()
        grads = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        found.append((logits.detach(), grads.clone()))
    (ours, our_grads), (theirs, their_grads) = found
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    assert their_grads.abs().max() > 1
    torch.testing.assert_close(our_grads, their_grads, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("broken", ["sees_F1LL", "depth_FL"])
def test_without_its_mask_or_its_positions_the_values_are_others(
    model: Qwen2ForCausalLM, broken: str
) -> None:
    """Negative control: a causal mask over the walk, and the places of the walk as positions."""
    given = sequences(7)
    forest = plant(given, 400)
    length = forest.ids_FL.shape[1]
    wrong = {
        "sees_F1LL": torch.ones(length, length, dtype=torch.bool).tril()[None, None],
        "depth_FL": torch.arange(length)[None],
    }
    parts = {name: getattr(forest, name) for name in Forest.__slots__}
    other = Forest(**{**parts, broken: wrong[broken]})
    difference = (shared(model, other) - alone(model, given)).abs().max()
    assert difference > 1e-3
