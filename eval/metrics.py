"""Scores of graded samples: accuracy, pass@k and standard errors, in plain numpy.

Legend: Q questions, n samples of each. `correct_Qn` is a Q x n array of 0/1 (or booleans).
Shares are in [0, 1], not per cent. Bad shapes and values raise `ValueError`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    """A mean, its standard error (None below two clusters), and how many clusters it rests on."""

    accuracy: float
    standard_error: float | None
    questions: int


def as_samples(correct_Qn: ArrayLike) -> FloatArray:  # noqa: N803  (axes stand in the name)
    """`correct_Qn` as float64, after checking that it is a non-empty Q x n array in [0, 1]."""
    samples = np.asarray(correct_Qn, dtype=np.float64)
    if samples.ndim != 2 or samples.size == 0:
        raise ValueError(f"need a non-empty questions x samples array, got shape {samples.shape}")
    if not np.all((samples >= 0.0) & (samples <= 1.0)):
        raise ValueError("correctness must lie in [0, 1]")
    return samples


def clustered_standard_error(correct_Qn: ArrayLike) -> float | None:  # noqa: N803
    r"""Standard error of the mean, samples of one question counted as one cluster.

    .. math:: SE^2 = \frac{Q}{Q - 1} \frac{1}{(Qn)^2}
              \sum_q \Big( \sum_i (x_{qi} - \bar x) \Big)^2

    (arXiv 2411.00640, section 2.2, with the usual Q/(Q-1) correction; the n samples of a question
    share its difficulty, so they are not independent.) With n = 1 this is the sample standard
    deviation over root Q. None for a single question, where no error can be told.
    """
    samples = as_samples(correct_Qn)
    questions = samples.shape[0]
    if questions < 2:
        return None
    cluster_sums = (samples - samples.mean()).sum(axis=1)
    variance = questions / (questions - 1) * np.sum(cluster_sums**2) / samples.size**2
    return float(np.sqrt(variance))


def accuracy(correct_Qn: ArrayLike) -> Estimate:  # noqa: N803
    """avg@n: the mean over questions of the share of right samples, with its clustered error."""
    samples = as_samples(correct_Qn)
    return Estimate(
        accuracy=float(samples.mean()),
        standard_error=clustered_standard_error(samples),
        questions=samples.shape[0],
    )


def pass_at_k(right: ArrayLike, samples: int, k: int) -> float:
    r"""Unbiased pass@k, the mean over questions of :math:`1 - \binom{n-c}{k} / \binom{n}{k}`.

    `right` holds c for each question, `samples` is n. Computed as
    :math:`1 - \prod_{i=n-c+1}^{n} (1 - k/i)` (arXiv 2107.03374, section 2.1): no factorial is
    formed, so nothing overflows. k > n raises, because it has no unbiased estimate.
    """
    c = np.atleast_1d(np.asarray(right))
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} needs at least {k} samples per question, there are {samples}")
    if c.size == 0 or np.any(c < 0) or np.any(c > samples) or np.any(c != np.floor(c)):
        raise ValueError(f"right counts must be whole numbers in [0, {samples}], got {c}")
    i = np.arange(1, samples + 1, dtype=np.float64)
    # Factors with i < k are only reached where n - c < k, and there the product holds i = k,
    # whose factor is exactly 0; the clip keeps the sign of the others from mattering.
    factors = np.clip(1.0 - k / i, 0.0, 1.0)
    used = i[None, :] > (samples - c)[:, None]
    missed = np.prod(np.where(used, factors[None, :], 1.0), axis=1)
    return float(np.mean(1.0 - missed))


def pass_at_powers(correct_Qn: ArrayLike) -> dict[int, float]:  # noqa: N803
    """pass@k for k = 1, 2, 4, ... up to n, and n itself. pass@1 equals the accuracy."""
    samples = as_samples(correct_Qn)
    n = samples.shape[1]
    right = samples.sum(axis=1)
    powers = {2**i for i in range(n.bit_length()) if 2**i <= n}
    return {k: pass_at_k(right, n, k) for k in sorted(powers | {n})}


def mean_over_questions(parts: Sequence[ArrayLike]) -> Estimate:
    """Every question of every benchmark counts the same (1560 of them in the published suite)."""
    means = np.concatenate([as_samples(part).mean(axis=1) for part in parts])
    return accuracy(means[:, None])


def mean_over_benchmarks(estimates: Sequence[Estimate]) -> Estimate:
    r"""Every benchmark counts the same; :math:`SE = \sqrt{\sum_b SE_b^2} / B` (independent).

    The error is None as soon as one benchmark has none.
    """
    if not estimates:
        raise ValueError("no benchmark to average")
    errors = [e.standard_error for e in estimates if e.standard_error is not None]
    known = len(errors) == len(estimates)
    return Estimate(
        accuracy=float(np.mean([e.accuracy for e in estimates])),
        standard_error=float(np.sqrt(np.sum(np.square(errors))) / len(errors)) if known else None,
        questions=sum(e.questions for e in estimates),
    )


def paired_difference(means_a: Mapping[str, float], means_b: Mapping[str, float]) -> Estimate:
    """b - a over the same questions: the mean of the differences and its standard error.

    Both map a question's key to its share of right samples. Pairing removes the spread in
    difficulty, so it tells a gain that two separate error bars hide. Different sets of questions
    raise.
    """
    if set(means_a) != set(means_b) or not means_a:
        raise ValueError("a paired comparison needs the same, non-empty set of questions twice")
    differences = np.array([means_b[key] - means_a[key] for key in means_a])
    size = len(differences)
    error = float(differences.std(ddof=1) / np.sqrt(size)) if size > 1 else None
    return Estimate(accuracy=float(differences.mean()), standard_error=error, questions=size)
