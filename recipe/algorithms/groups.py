"""Shared by all advantages: input validation, group statistics, exact zeros.

Symbols: B responses, P groups, R rewards, n responses of a group. A group is the set of responses
that are compared with each other. Its id may be any integer, and its rows may be in any order.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch

Numbers: TypeAlias = torch.Tensor | np.ndarray | Sequence[float] | Sequence[Sequence[float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupStatistics:
    """Rewards, and for each the statistics of its group; all float64 of shape B."""

    rewards_B: torch.Tensor
    count_B: torch.Tensor  # n
    mean_B: torch.Tensor
    std_B: torch.Tensor  # unbiased (n - 1); 0 for a group of one
    equal_B: torch.Tensor  # bool: all rewards of the group are the same number


def float64(values: Numbers) -> torch.Tensor:
    """`values` as a float64 tensor on the CPU, without a graph."""
    return torch.as_tensor(values, dtype=torch.float64, device="cpu").detach()


def group_index(group_B: Numbers, rows: int) -> tuple[torch.Tensor, int]:
    """Number every row's group from 0; ValueError unless there are `rows` integer ids."""
    ids_B = torch.as_tensor(group_B, device="cpu")
    if ids_B.shape != (rows,):
        raise ValueError(
            f"{rows} responses, but group ids of shape {tuple(ids_B.shape)}: one id per response"
        )
    if rows == 0:
        return torch.zeros(0, dtype=torch.int64), 0
    if ids_B.is_floating_point() or ids_B.is_complex() or ids_B.dtype == torch.bool:
        raise ValueError(f"group ids are {ids_B.dtype}: number the groups with integers")
    distinct_P, index_B = torch.unique(ids_B, return_inverse=True)
    return index_B, distinct_P.numel()


def group_sum(values_B: torch.Tensor, index_B: torch.Tensor, groups: int) -> torch.Tensor:
    """The sum of the values of every group, shape P."""
    return torch.zeros(groups, dtype=torch.float64).index_add_(0, index_B, values_B)


def group_extremes(
    values_B: torch.Tensor, index_B: torch.Tensor, groups: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The smallest and the largest value of every group, each of shape P."""
    low_P = torch.full((groups,), torch.inf, dtype=torch.float64)
    high_P = torch.full((groups,), -torch.inf, dtype=torch.float64)
    low_P.scatter_reduce_(0, index_B, values_B, reduce="amin")
    high_P.scatter_reduce_(0, index_B, values_B, reduce="amax")
    return low_P, high_P


def group_statistics(rewards_B: Numbers, group_B: Numbers) -> GroupStatistics:
    """Validate the inputs of an advantage and compute the statistics of every group.

    ValueError for rewards that are not finite or not one per response, and for bad group ids.
    """
    rewards = float64(rewards_B)
    if rewards.dim() != 1:
        raise ValueError(f"rewards of shape {tuple(rewards.shape)}: one number per response")
    bad = (~torch.isfinite(rewards)).nonzero().flatten().tolist()
    if bad:
        raise ValueError(f"rewards that are not finite, in {len(bad)} rows, first in row {bad[0]}")
    index, groups = group_index(group_B, rewards.numel())
    low, high = group_extremes(rewards, index, groups)
    count = group_sum(torch.ones_like(rewards), index, groups)
    mean = group_sum(rewards, index, groups) / count
    square = group_sum((rewards - mean[index]) ** 2, index, groups)
    # For a group of one n - 1 is 0; `equal_B` handles it.
    std = (square / (count - 1).clamp(min=1)).sqrt()
    return GroupStatistics(
        rewards_B=rewards,
        count_B=count[index],
        mean_B=mean[index],
        std_B=std[index],
        equal_B=(low == high)[index],
    )


def zero_if_equal(advantages_B: torch.Tensor, groups: GroupStatistics) -> torch.Tensor:
    """The advantages, with exactly 0 in groups of equal rewards.

    There R - mean may be 1e-16 by rounding; divided by an equally small std it would be a signal.
    """
    return torch.where(groups.equal_B, 0.0, advantages_B)
