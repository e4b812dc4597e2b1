"""Statistics of arms that share their seeds: a mean difference with its 95 % interval."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

# The 97.5 % point of Student's t with 1, 2, ... degrees of freedom.
T_975 = (
    *(12.70620, 4.30265, 3.18245, 2.77645, 2.57058, 2.44691, 2.36462, 2.30600, 2.26216, 2.22814),
    *(2.20099, 2.17881, 2.16037, 2.14479, 2.13145, 2.11991, 2.10982, 2.10092, 2.09302),
)

TIE = 5e-5  # 20 differences of four rounded figures are off by 4e-5 at most


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """Mean over seeds of (one arm - the other), half the width of its interval, and the seeds."""

    mean: float
    half_width: float | None  # None below two seeds: there is no interval
    seeds: int

    @property
    def counts(self) -> bool:
        """True if the interval excludes 0."""
        return self.half_width is not None and abs(self.mean) > self.half_width


def half_width(values: Sequence[float]) -> float:
    """Half of Student's 95 % interval of the mean of two or more values."""
    count = len(values)
    if count - 1 > len(T_975):
        raise ValueError(f"{count} seeds: Student's t is known here for {len(T_975) + 1} at most")
    return T_975[count - 2] * statistics.stdev(values) / math.sqrt(count)


def paired_difference(one: Mapping[int, float], other: Mapping[int, float]) -> Difference | None:
    r"""Return the mean of one - other over the shared seeds; None if there are none.

    .. math:: \bar d \pm t_{0.975, n-1} \, s_d / \sqrt n,  \quad d_s = x_s - y_s

    Student's interval of a mean of n differences, taken as independent and near to normal. It says
    nothing about several comparisons at once.
    """
    seeds = sorted(set(one) & set(other))
    if not seeds:
        return None
    differences = [one[s] - other[s] for s in seeds]
    mean, count = statistics.fmean(differences), len(differences)
    if count < 2:
        return Difference(mean=mean, half_width=None, seeds=count)
    return Difference(mean=mean, half_width=half_width(differences), seeds=count)


def sign_flip_p(one: Mapping[int, float], other: Mapping[int, float]) -> float | None:
    """Two-sided p of an exact sign-flip test over the shared seeds; None without any.

    The share of the 2^n assignments of signs to the n differences whose mean is at least as far
    from 0. The smallest p is 2^(1-n): 0.0625 with 5 seeds. Records have six decimals, so sums that
    differ by less than `TIE` count as equal. ValueError above 20 seeds.
    """
    seeds = sorted(set(one) & set(other))
    if not seeds:
        return None
    if len(seeds) > 20:
        raise ValueError(f"{len(seeds)} seeds: at most 20, or the signs are too many to list")
    sums = np.zeros(1)
    for difference in (one[s] - other[s] for s in seeds):
        sums = np.concatenate([sums + difference, sums - difference])
    return float(np.mean(np.abs(sums) >= abs(sums[0]) - TIE))


def holm(values: Sequence[float]) -> list[float]:
    """The p values adjusted for their number: max over p_(j) <= p of (m - j + 1) p_(j), at most 1.

    Rejecting those at most a keeps the probability of any false rejection at a. Holm (1979).
    """
    adjusted, largest = [0.0] * len(values), 0.0
    for rank, i in enumerate(sorted(range(len(values)), key=lambda i: values[i])):
        largest = max(largest, min(1.0, (len(values) - rank) * values[i]))
        adjusted[i] = largest
    return adjusted
