"""SEED-GRPO: semantic entropies and scaled advantages by hand, laws, and what is refused."""

import math

import pytest
import torch

from recipe.algorithms import ADVANTAGES
from recipe.algorithms.dr_grpo import dr_grpo
from recipe.algorithms.seed_grpo import seed_grpo, semantic_entropy

REWARDS, GROUP = [1.0, 1.0, 0.0, 0.0, 1.0, 0.0], [0, 0, 0, 0, 1, 1]
ANSWERS = ["right", "right", "4", "5", "right", "7"]


def test_semantic_entropy_by_hand() -> None:
    assert semantic_entropy(["4", "4", "4"]) == 0.0
    assert semantic_entropy(["4", "5", "6", "7"]) == pytest.approx(math.log(4))
    # shares 1/2, 1/4, 1/4: -(log 1/2 + 2 log 1/4) / 3 = 5/3 log 2
    assert semantic_entropy(["4", "4", "5", "6"]) == pytest.approx(5 / 3 * math.log(2))
    # two without an answer agree with nobody
    assert semantic_entropy(["4", "4", "", ""]) == pytest.approx(5 / 3 * math.log(2))
    assert semantic_entropy([]) == 0.0


def test_advantages_by_hand() -> None:
    """Group 0: R - mean = +-1/2, SE / log 4 = 5/6; group 1: +-1/2, SE = log 2 is the largest."""
    found = seed_grpo(REWARDS, GROUP, answers=ANSWERS, alpha=1.0)
    assert found.tolist() == pytest.approx([1 / 12, 1 / 12, -1 / 12, -1 / 12, 0, 0])
    half = seed_grpo(REWARDS, GROUP, answers=ANSWERS, alpha=0.5)
    assert half.tolist() == pytest.approx([7 / 24, 7 / 24, -7 / 24, -7 / 24, 1 / 4, -1 / 4])
    # mutation: the groups' answers mixed up
    mixed = seed_grpo(REWARDS, GROUP, answers=ANSWERS[::-1], alpha=1.0)
    assert mixed.tolist() != pytest.approx(found.tolist())


def test_without_disagreement_or_alpha_it_is_dr_grpo() -> None:
    wanted = dr_grpo(REWARDS, GROUP)
    assert torch.equal(seed_grpo(REWARDS, GROUP), wanted)
    assert torch.equal(seed_grpo(REWARDS, GROUP, answers=["x"] * 6), wanted)
    assert torch.equal(seed_grpo(REWARDS, GROUP, answers=ANSWERS, alpha=0.0), wanted)


def test_rows_in_another_order_get_the_same() -> None:
    order = [4, 2, 0, 5, 3, 1]
    found = seed_grpo(
        [REWARDS[i] for i in order], [GROUP[i] for i in order], answers=[ANSWERS[i] for i in order]
    )
    wanted = seed_grpo(REWARDS, GROUP, answers=ANSWERS)
    assert found.tolist() == pytest.approx([wanted[i].item() for i in order])


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="6 responses, but 1 answers"):
        seed_grpo(REWARDS, GROUP, answers=["x"])
    settings = ADVANTAGES.facts("seed_grpo").settings
    assert settings is not None and settings({"alpha": None}) == {"alpha": 0.0417}
    for section, message in (({"beta": 1}, "unknown keys"), ({"alpha": 1.5}, "must lie in")):
        with pytest.raises(ValueError, match=message):
            settings(section)
