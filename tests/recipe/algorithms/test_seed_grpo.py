"""SEED-GRPO: semantic entropies and scaled advantages by hand, laws, rejected settings."""

import math

import pytest
import torch

from recipe.algorithms.dr_grpo import dr_grpo
from recipe.algorithms.seed_grpo import seed_grpo, semantic_entropy

REWARDS, GROUP = [1.0, 1.0, 0.0, 0.0, 1.0, 0.0], [0, 0, 0, 0, 1, 1]
ANSWERS = ["right", "right", "4", "5", "right", "7"]


@pytest.mark.parametrize(
    ("answers", "entropy"),
    [
        (["4", "4", "4"], 0.0),
        (["4", "5", "6", "7"], math.log(4)),
        # shares 1/2, 1/4, 1/4: -(log 1/2 + 2 log 1/4) / 3 = 5/3 log 2
        (["4", "4", "5", "6"], 5 / 3 * math.log(2)),
        (["4", "4", "", ""], 5 / 3 * math.log(2)),  # each without an answer is its own cluster
        ([], 0.0),
    ],
)
def test_semantic_entropy_by_hand(answers: list[str], entropy: float) -> None:
    assert semantic_entropy(answers) == pytest.approx(entropy)


def test_advantages_by_hand() -> None:
    """Group 0: R - mean = +-1/2, SE / log 4 = 5/6; group 1: +-1/2, SE = log 2 is the largest."""
    found = seed_grpo(REWARDS, GROUP, answers=ANSWERS, alpha=1.0)
    assert found.tolist() == pytest.approx([1 / 12, 1 / 12, -1 / 12, -1 / 12, 0, 0])
    half = seed_grpo(REWARDS, GROUP, answers=ANSWERS, alpha=0.5)
    assert half.tolist() == pytest.approx([7 / 24, 7 / 24, -7 / 24, -7 / 24, 1 / 4, -1 / 4])
    # Mutation: the answers of the groups exchanged.
    mixed = seed_grpo(REWARDS, GROUP, answers=ANSWERS[::-1], alpha=1.0)
    assert mixed.tolist() != pytest.approx(found.tolist())


@pytest.mark.parametrize("given", [{}, {"answers": ["x"] * 6}, {"answers": ANSWERS, "alpha": 0.0}])
def test_without_disagreement_or_alpha_it_is_dr_grpo(given: dict) -> None:
    assert torch.equal(seed_grpo(REWARDS, GROUP, **given), dr_grpo(REWARDS, GROUP))


def test_the_order_of_rows_does_not_matter() -> None:
    order = [4, 2, 0, 5, 3, 1]
    rewards, group, answers = ([x[i] for i in order] for x in (REWARDS, GROUP, ANSWERS))
    wanted = seed_grpo(REWARDS, GROUP, answers=ANSWERS)
    assert torch.allclose(seed_grpo(rewards, group, answers=answers), wanted[order])


def test_bad_arguments_are_rejected() -> None:
    with pytest.raises(ValueError, match="6 responses, but 1 answers"):
        seed_grpo(REWARDS, GROUP, answers=["x"])
    with pytest.raises(ValueError, match="alpha"):
        seed_grpo(REWARDS, GROUP, alpha=1.5)
