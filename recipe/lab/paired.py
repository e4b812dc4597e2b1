"""Statistics of arms that share their seeds: 95 % interval, sign-flip test, Holm's method."""

import math
import statistics
from collections.abc import Mapping, Sequence

import numpy as np

# The 97.5 % point of Student's t with 1, 2, ... degrees of freedom.
T_975 = (
    *(12.70620, 4.30265, 3.18245, 2.77645, 2.57058, 2.44691, 2.36462, 2.30600, 2.26216, 2.22814),
    *(2.20099, 2.17881, 2.16037, 2.14479, 2.13145, 2.11991, 2.10982, 2.10092, 2.09302),
)

TIE = 5e-5  # rounding moves a sum of 20 differences of four figures by at most 4e-5


def differences(one: Mapping[int, float], other: Mapping[int, float]) -> list[float]:
    """Return one - other for the seeds of both, in the order of seeds."""
    return [one[seed] - other[seed] for seed in sorted(one.keys() & other.keys())]


def half_width(values: Sequence[float]) -> float:
    r"""Return half of the 95 % interval of the mean, infinite for one value.

    .. math:: t_{0.975, n-1} \, s / \sqrt n

    Student's interval, for n independent, nearly normal values. It is not corrected for multiple
    comparisons. Raises ValueError above 20 values.
    """
    count = len(values)
    if count < 2:
        return math.inf
    if count - 1 > len(T_975):
        raise ValueError(f"{count} seeds: Student's t is known here for {len(T_975) + 1} at most")
    return T_975[count - 2] * statistics.stdev(values) / math.sqrt(count)


def sign_flip_p(values: Sequence[float]) -> float:
    """Return the two-sided p of an exact sign-flip test of differences paired by seed.

    p is the share of the 2^n assignments of signs to the n differences whose mean is at least as
    far from 0. The smallest p is 2^(1-n): 0.0625 with 5 seeds. Records have six decimals, so sums
    that differ by less than `TIE` count as equal. Raises ValueError above 20 seeds.
    """
    if len(values) > 20:
        raise ValueError(f"{len(values)} seeds: at most 20, or the signs are too many to list")
    sums = np.zeros(1)
    for difference in values:
        sums = np.concatenate([sums + difference, sums - difference])
    return float(np.mean(np.abs(sums) >= abs(sums[0]) - TIE))


def holm(values: Sequence[float]) -> list[float]:
    """Return p values adjusted for their number: max over p_(j) <= p of (m - j + 1) p_(j), <= 1.

    Rejecting all adjusted p <= a keeps the probability of any false rejection <= a. Holm (1979).
    """
    adjusted, largest = [0.0] * len(values), 0.0
    for rank, i in enumerate(sorted(range(len(values)), key=lambda i: values[i])):
        largest = max(largest, min(1.0, (len(values) - rank) * values[i]))
        adjusted[i] = largest
    return adjusted
