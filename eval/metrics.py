"""Scores of graded samples: accuracy, pass@k, pass^k and standard errors, in plain numpy.

Legend: Q questions, n samples of each. `correct_Qn` is a Q x n array of 0/1 (or booleans).
Shares are in [0, 1], not per cent. Bad shapes and values raise `ValueError`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from prompt_aug.base.estimates import (
    FloatArray,
    Table,
    all_table,
    no_signal_table,
    pass_table,
    powers,
)


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
    deviation over root Q. None for a single question, which has none.
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


def right_counts(correct_Qn: ArrayLike) -> NDArray[np.int64]:  # noqa: N803
    """c of each question; raises where a sample is neither right nor wrong."""
    given = np.asarray(correct_Qn)
    if given.dtype == np.bool_ and given.ndim == 2 and given.size:  # needs no look at its values
        return given.sum(axis=1, dtype=np.int64)
    samples = as_samples(correct_Qn)
    if not np.all((samples == 0.0) | (samples == 1.0)):
        raise ValueError("pass@k counts right samples: each must be 0 or 1")
    return samples.sum(axis=1).astype(np.int64)


def pass_at_powers(correct_Qn: ArrayLike) -> dict[int, float]:  # noqa: N803
    """pass@k for the k of `powers`. pass@1 equals the accuracy."""
    return _at_powers(correct_Qn, pass_table)


def all_at_powers(correct_Qn: ArrayLike) -> dict[int, float]:  # noqa: N803
    """pass^k for the k of `powers`. pass^1 equals the accuracy."""
    return _at_powers(correct_Qn, all_table)


def no_signal_at_powers(correct_Qn: ArrayLike) -> dict[int, float]:  # noqa: N803
    """The share of groups of k responses without signal, for the k >= 2 of `powers`."""
    return {k: v for k, v in _at_powers(correct_Qn, no_signal_table).items() if k > 1}


def _at_powers(correct_Qn: ArrayLike, table: Table) -> dict[int, float]:  # noqa: N803
    right = right_counts(correct_Qn)
    samples = np.shape(correct_Qn)[1]
    ks = powers(samples)
    return dict(zip(ks, table(samples, ks)[right].mean(axis=0).tolist(), strict=True))


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
