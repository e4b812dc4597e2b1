"""Advantages: values by hand, laws of every one of them, and verl's functions."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from covariance_cases import close

from recipe.algorithms import ADVANTAGES
from recipe.algorithms.registry import Function as Advantage

OTHER_INPUTS = {"gdpo", "unlikeliness", "grpo_lead", "asym_grpo", "sdpo"}  # see test_families.py
NAMES = sorted(set(ADVANTAGES) - OTHER_INPUTS)
CENTERED = [name for name in NAMES if name not in ("maxrl", "none")]
E = 1e-6  # the epsilon beside the standard deviation


def example() -> tuple[torch.Tensor, torch.Tensor]:
    """Five groups of 4 to 8 in mixed order, dyadic rewards between 0 and 2, none all equal."""
    generator = torch.Generator().manual_seed(0)
    group_B = torch.repeat_interleave(torch.arange(5), torch.arange(4, 9))
    rewards_B = torch.randint(0, 9, (30,), generator=generator).double() / 4
    order = torch.randperm(30, generator=generator)
    return rewards_B[order], group_B[order]


# Group 7 has rewards 1 0 0 0: mean 1/4, squares 9/16 + 3/16 = 3/4, std = sqrt(3/4 / 3) = 1/2.
# Group -2 has 2 0: mean 1, squares 1 + 1, std = sqrt(2 / 1).
A, B, C = 0.75 / (0.5 + E), -0.25 / (0.5 + E), 1 / (math.sqrt(2) + E)
BY_HAND = {
    "grpo": [A, C, B, B, -C, B],
    "dr_grpo": [0.75, 1, -0.25, -0.25, -1, -0.25],
    # The mean of the others is 0 for the 1 and 1/3 for each 0 of group 7; 0 and 2 in group -2.
    "rloo": [1, 2, -1 / 3, -1 / 3, -2, -1 / 3],
    # Divided by the mean, that is by the pass rate: (3/4) / (1/4) = 3 and -1; 1 / 1 and -1.
    "maxrl": [3, 1, -1, -1, -1, -1],
    "none": [0, 0, 0, 0, 0, 0],
}


@pytest.mark.parametrize("name", BY_HAND)
def test_values_by_hand_of_two_groups_in_mixed_order(name: str) -> None:
    close(ADVANTAGES[name]([1.0, 2.0, 0.0, 0.0, 0.0, 0.0], [7, -2, 7, 7, -2, 7]), BY_HAND[name])


def test_maxrl_of_a_mean_that_is_not_positive_is_zero() -> None:
    close(ADVANTAGES["maxrl"]([-1.0, 1.0, -3.0, 1.0], [0, 0, 1, 1]), [0, 0, 0, 0])


# Laws.


def check_shift(fn: Advantage, name: str) -> None:
    """A constant added to all rewards of a group changes nothing."""
    rewards_B, group_B = example()
    close(fn(rewards_B + 4.0 * (group_B + 1), group_B), fn(rewards_B, group_B), 1e-12)


def check_scale(fn: Advantage, name: str) -> None:
    """Standard scores and ratios have no unit; differences have the reward's."""
    rewards_B, group_B = example()
    factor = 8.0 if name in ("dr_grpo", "rloo", "seed_grpo") else 1.0
    # 1e-5: the epsilon of 1e-6 is not a multiple of the reward
    close(fn(8.0 * rewards_B, group_B), factor * fn(rewards_B, group_B), 1e-5)


def check_order_and_names(fn: Advantage, name: str) -> None:
    """Neither the order of rows nor the ids of groups matter."""
    rewards_B, group_B = example()
    wanted_B = fn(rewards_B, group_B)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(1))
    close(fn(rewards_B[order], group_B[order]), wanted_B[order])
    ids = torch.tensor([5, -(2**40), 0, 2**40, 4])
    close(fn(rewards_B, ids[group_B]), wanted_B)


def check_others(fn: Advantage, name: str) -> None:
    """Another group, its rewards or its absence, changes nothing."""
    rewards_B, group_B = example()
    wanted_B, mine_B = fn(rewards_B, group_B), group_B == 3
    changed_B = torch.where(mine_B, rewards_B, rewards_B**2 + 1)
    close(fn(changed_B, group_B)[mine_B], wanted_B[mine_B])
    close(fn(rewards_B[mine_B], group_B[mine_B]), wanted_B[mine_B])


def check_sign(fn: Advantage, name: str) -> None:
    """Above the group's mean up, below it down; and a group adds up to 0."""
    rewards_B, group_B = example()
    advantages_B = fn(rewards_B, group_B)
    for group in range(5):
        mine_B = group_B == group
        deviation_B = rewards_B[mine_B] - rewards_B[mine_B].mean()
        assert torch.equal(advantages_B[mine_B].sign(), deviation_B.sign())
        assert abs(float(advantages_B[mine_B].sum())) < 1e-12


def check_equal(fn: Advantage, name: str) -> None:
    """Groups of equal rewards, groups of one included, have exactly 0, whatever the number."""
    values = [4 / 3, 1.1, 0.1, 1.0, 0.0, -1.1, 1e9 / 7]
    for size in (1, 3, 6, 7, 8, 12, 32):
        rewards_B, group_B = np.repeat(values, size), np.repeat(np.arange(len(values)), size)
        for kind in (np.float64, np.float32):
            advantages_B = fn(rewards_B.astype(kind), group_B)
            assert torch.equal(advantages_B, torch.zeros(len(rewards_B), dtype=torch.float64))


Check = Callable[[Advantage, str], None]
LAWS: dict[Check, list[str]] = {
    check_shift: CENTERED,
    check_scale: NAMES,
    check_order_and_names: NAMES,
    check_others: NAMES,
    check_sign: [name for name in NAMES if name != "none"],
    check_equal: NAMES,
}


@pytest.mark.parametrize(
    ("law", "name"), [(law, name) for law, names in LAWS.items() for name in names]
)
def test_law(law: Check, name: str) -> None:
    law(ADVANTAGES[name], name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("rewards_B", "group_B", "message"),
    [
        ([1.0, 0.0], [0], "one id"),
        ([1.0, math.nan, 0.0], [0, 0, 0], "row 1"),
        ([1.0, 0.0], [0.0, 1.0], "integers"),
    ],
)
def test_invalid_inputs_are_rejected(name: str, rewards_B, group_B, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ADVANTAGES[name](rewards_B, group_B)


def verl_advantages(name: str, rewards_B: torch.Tensor, group_B: torch.Tensor) -> torch.Tensor:
    """verl's estimator on responses of three tokens, the reward at the last: one number each."""
    from verl.trainer.ppo import core_algos

    scores_BT = torch.zeros(len(rewards_B), 3)
    scores_BT[:, -1] = rewards_B
    arguments = {"response_mask": torch.ones(len(rewards_B), 3), "index": group_B.numpy()}
    if name == "rloo":
        return core_algos.compute_rloo_outcome_advantage(scores_BT, **arguments)[0][:, 0].double()
    norm = name == "grpo"
    return core_algos.compute_grpo_outcome_advantage(
        scores_BT, norm_adv_by_std_in_grpo=norm, **arguments
    )[0][:, 0].double()


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
def test_equal_to_verl_where_groups_have_a_signal(name: str) -> None:
    """1e-5: verl computes in float32. The small group makes the epsilon visible."""
    rewards_B, group_B = example()
    rewards_B = torch.cat([rewards_B, torch.tensor([0.0, 0.001, 0.0, 0.001])])
    group_B = torch.cat([group_B, torch.full((4,), 9)])
    close(ADVANTAGES[name](rewards_B, group_B), verl_advantages(name, rewards_B, group_B), 1e-5)


def test_where_we_depart_from_verl() -> None:
    """Fails when verl closes the gap, and then the docstring of grpo must change."""
    equal_B, one_B = torch.full((8,), 4 / 3), torch.tensor([0.75])
    assert verl_advantages("grpo", equal_B, torch.zeros(8, dtype=torch.int64)).abs().min() > 0.1
    close(verl_advantages("grpo", one_B, torch.tensor([0])), [0.75], 1e-5)
    close(verl_advantages("rloo", one_B, torch.tensor([0])), [0.75], 1e-5)
