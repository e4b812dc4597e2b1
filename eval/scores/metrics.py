"""Scores of graded samples: accuracy, pass@k, pass^k, maj@k, standard errors, intervals, tests.

Legend: Q questions, n samples of each. `correct_Qn` is a Q x n array of 0/1 (or booleans). Shares
lie in [0, 1]. Intervals are 95 %, and random draws have a fixed seed. Wrong shapes and values raise
`ValueError`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import stdtr, stdtrit  # Student's t: distribution and quantile

from prompt_aug.base.estimates import (
    FloatArray,
    Interval,
    Table,
    Z,
    all_table,
    pass_table,
    powers,
    wilson,
)

FLIPS = 10_000


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean, its standard error (None for fewer than two questions), and the question count."""

    accuracy: float
    standard_error: float | None
    questions: int


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A paired difference b - a, its interval, and the p-value of no difference."""

    mean: float
    standard_error: float | None
    low: float
    high: float
    p_value: float
    questions: int


@dataclass(frozen=True, kw_only=True)
class Crossed:
    """A mean over seeds and questions, its 95 % interval, and the p-value of no difference.

    `parts` are the variances of one seed, of one question, and of a seed's question about both.
    """

    mean: float
    low: float
    high: float
    p_value: float
    parts: tuple[float, float, float]
    shape: tuple[int, int]

    def error(self, seeds: int | None = None) -> tuple[float, float]:
        """Return standard error and degrees of freedom, with the given number of seeds.

        Var = (MS_seed + MS_question - MS_rest) / (S Q); the freedom is Satterthwaite's.
        """
        S, Q = seeds or self.shape[0], self.shape[1]  # noqa: N806
        seed, question, rest = self.parts
        squares = np.array([rest + Q * seed, rest + S * question, rest])
        total = squares[0] + squares[1] - squares[2]
        terms = np.sum(squares**2 / [S - 1, Q - 1, (S - 1) * (Q - 1)])
        return float(np.sqrt(total / (S * Q))), float(total**2 / terms if total else S - 1)

    def detectable(self, seeds: int | None = None) -> float:
        """Return the difference that has a power of 80 % (two-sided, 5 %)."""
        error, freedom = self.error(seeds)
        return error * float(stdtrit(freedom, 0.975) + stdtrit(freedom, 0.8))


def as_samples(correct_Qn: ArrayLike) -> FloatArray:  # noqa: N803  (axes stand in the name)
    """Return `correct_Qn` as float64, checked to be a non-empty Q x n array in [0, 1]."""
    samples = np.asarray(correct_Qn, dtype=np.float64)
    if samples.ndim != 2 or samples.size == 0:
        raise ValueError(f"need a non-empty questions x samples array, got shape {samples.shape}")
    if not np.all((samples >= 0.0) & (samples <= 1.0)):
        raise ValueError("correctness must lie in [0, 1]")
    return samples


def accuracy(correct_Qn: ArrayLike) -> Estimate:  # noqa: N803
    r"""Return avg@n and its standard error, clustered by question.

    .. math:: SE^2 = \frac{Q}{Q - 1} \frac{1}{(Qn)^2}
              \sum_q \Big( \sum_i (x_{qi} - \bar x) \Big)^2

    (arXiv 2411.00640, section 2.2, with the usual Q/(Q-1) correction.) The n samples of a question
    share its difficulty, so they are not independent. With n = 1 this is the sample standard
    deviation over root Q. A single question has no standard error.
    """
    samples = as_samples(correct_Qn)
    questions, error = samples.shape[0], None
    if questions > 1:
        cluster_sums = (samples - samples.mean()).sum(axis=1)
        variance = questions / (questions - 1) * np.sum(cluster_sums**2) / samples.size**2
        error = float(np.sqrt(variance))
    return Estimate(accuracy=float(samples.mean()), standard_error=error, questions=questions)


def at_powers(correct_Qn: ArrayLike, table: Table) -> dict[str, float]:  # noqa: N803
    """Return {k: mean over questions of a table of `prompt_aug.base.estimates`}, for k of `powers`.

    `pass_table` gives pass@k, `all_table` pass^k, `no_signal_table` the share of zero-variance
    groups of k responses. Every sample must be 0 or 1.
    """
    correct = as_samples(correct_Qn)
    if not np.all((correct == 0.0) | (correct == 1.0)):
        raise ValueError("pass@k counts right samples: each must be 0 or 1")
    right, samples = correct.sum(axis=1).astype(np.int64), correct.shape[1]
    ks = powers(samples)
    return dict(zip(map(str, ks), table(samples, ks)[right].mean(axis=0).tolist(), strict=True))


def at_k(right: Sequence[int], samples: int, k: int) -> tuple[FloatArray, FloatArray]:
    """Return pass@k of each question, by its right samples, and the variance that samples give it.

    The variance is the jackknife's over samples, p (1 - p) / (n - 1) for k = 1; NaN for k = n.
    """
    c = np.asarray(right)
    values = pass_table(samples, [k])[c, 0]
    if k == samples:
        return values, np.full(c.shape, np.nan)
    less, share = pass_table(samples - 1, [k])[:, 0], c / samples
    drop = less[np.minimum(c, samples - 1)] - less[np.maximum(c - 1, 0)]  # a wrong, a right less
    return values, (samples - 1) * share * (1 - share) * drop**2


def no_signal(right_WQ: ArrayLike, samples_W: Sequence[int], each: int) -> FloatArray:  # noqa: N803
    """Return, by question, the share of zero-variance groups of `each` responses to W wordings.

    `right_WQ` (other axes may precede) of `samples_W` responses to each wording were right.
    """
    counts = zip(samples_W, np.moveaxis(np.asarray(right_WQ), -2, 0), strict=True)
    shares = [
        (all_table(n, [each])[right, 0], 1 - pass_table(n, [each])[right, 0]) for n, right in counts
    ]
    return np.prod(shares, axis=0).sum(axis=0)


def of_means(question_means: Sequence[float]) -> Estimate:
    """Return `accuracy` by the share of right samples of each question."""
    return accuracy(np.array(question_means)[:, None])


def over_benchmarks(estimates: Sequence[Estimate], sizes: Sequence[int] | None = None) -> Estimate:
    r"""Return :math:`\sum_b w_b x_b` with :math:`SE^2 = \sum_b w_b^2 SE_b^2`, w as `sizes`.

    The default is equal weights. If one benchmark has no standard error, the average has none.
    Benchmarks are strata, not draws: differences between their means do not add to the error.
    """
    if not estimates:
        raise ValueError("no benchmark to average")
    sizes = sizes or [1] * len(estimates)
    errors = [e.standard_error for e in estimates if e.standard_error is not None]
    complete, weights = len(errors) == len(estimates), np.array(sizes) / sum(sizes)
    return Estimate(
        accuracy=float(np.dot(sizes, [e.accuracy for e in estimates]) / sum(sizes)),  # 1 stays 1
        standard_error=float(np.sqrt(np.sum((weights * errors) ** 2))) if complete else None,
        questions=sum(e.questions for e in estimates),
    )


def over_questions(estimates: Sequence[Estimate]) -> Estimate:
    """Return the average over benchmarks in which every question has the same weight."""
    return over_benchmarks(estimates, [estimate.questions for estimate in estimates])


def accuracy_interval(correct_Qn: ArrayLike) -> Interval:  # noqa: N803
    r"""Return Wilson's interval of the accuracy, for as many trials as have its standard error.

    .. math:: trials = p (1 - p) / SE^2, \quad Q \le trials \le Q n

    SE is widened by t / z, because it is estimated from Q questions. The limits hold for any
    questions: samples of one are at best independent of each other (Qn trials), at worst all equal
    (Q trials). If all verdicts are equal, SE says nothing: Q.
    """
    samples, estimate = as_samples(correct_Qn), accuracy(correct_Qn)
    rate, error, trials = estimate.accuracy, estimate.standard_error, float(len(samples))
    if error is not None and 0 < rate < 1:
        error = max(error * stdtrit(trials - 1, 0.975) / Z, 1e-9)
        trials = float(np.clip(rate * (1 - rate) / error**2, trials, samples.size))
    return wilson(rate, trials)


def paired(means_a: Sequence[float], means_b: Sequence[float]) -> Difference:
    r"""Compare b with a over the same questions: standard error, interval, p-value.

    Both are shares of right samples, in the same order of questions. Pairing removes the spread in
    difficulty. p is the share of random sign flips of the differences whose mean is at least as
    far from 0: (1 + hits) / (1 + FLIPS).

    The interval has every value that this test would not reject (p >= 0.05). Its limits are
    quantiles of the means of random halves (Hartigan 1969): a flip of the signs of a subset hits
    :math:`\delta` if the subset's mean is on the other side of it. Where few questions differ,
    the test knows little of those that do not, so the interval is widened to that of Bonett and
    Price (2012), which adds a better and a worse question. It never takes in a rejected 0.
    """
    if len(means_a) != len(means_b) or not means_a:
        raise ValueError("a paired comparison needs the same, non-empty list of questions twice")
    differences = np.subtract(means_b, means_a)
    mean, size, rng = float(differences.mean()), differences.size, np.random.default_rng(0)
    # Equal differences are exchangeable: a subset is how often each value occurs in it.
    values, members = np.unique(np.round(differences, 12), return_counts=True)
    chosen = rng.binomial(members, 0.5, size=(FLIPS, members.size))
    chosen = np.concatenate([chosen, members - chosen])  # a flip of the others is the same flip
    sums, sizes = np.round(chosen @ values, 10), chosen.sum(axis=1)
    hits = min(np.sum(sums <= 0), np.sum(sums >= 0), FLIPS)
    place = int(np.ceil(0.05 * (1 + FLIPS))) - 2  # p >= 0.05 if this one, from 0, is beyond 0
    low, high = (
        sign * np.partition(np.where(sizes, sign * sums / np.maximum(sizes, 1), -1), place)[place]
        for sign in (1, -1)
    )
    changed = differences[differences != 0]
    typical = float(np.mean(changed**2)) if changed.size else 1.0
    middle = differences.sum() / (size + 2)
    error = np.sqrt((np.sum(differences**2) + 2 * typical) / (size + 2) - middle**2)
    half = Z * error / np.sqrt(size + 2)
    wide_low, wide_high = min(low, middle - half), max(high, middle + half)
    return Difference(
        mean=mean,
        standard_error=float(differences.std(ddof=1) / np.sqrt(size)) if size > 1 else None,
        low=float(max(-1, low if wide_low <= 0 < low else wide_low)),
        high=float(min(1, high if high < 0 <= wide_high else wide_high)),
        p_value=float((1 + hits) / (1 + FLIPS)),
        questions=size,
    )


def crossed(differences_SQ: ArrayLike) -> Crossed:  # noqa: N803
    """Return the mean of paired differences with its interval for new seeds and new questions.

    Two-way random effects: seeds and questions are draws, each cell has one difference. A negative
    estimate of a variance counts as 0. Without any spread the interval is that of `paired`.
    """
    table = np.asarray(differences_SQ, dtype=np.float64)
    if table.ndim != 2 or min(table.shape) < 2:
        raise ValueError(f"need at least two seeds and two questions, got shape {table.shape}")
    (S, Q), mean = table.shape, float(table.mean())  # noqa: N806
    by_seed, by_question = table.mean(axis=1) - mean, table.mean(axis=0) - mean
    rest = np.sum((table - mean - by_seed[:, None] - by_question) ** 2) / ((S - 1) * (Q - 1))
    seeds, questions = by_seed.var() * S / (S - 1), by_question.var() * Q / (Q - 1)
    parts = (max(0.0, float(seeds - rest / Q)), max(0.0, float(questions - rest / S)), float(rest))
    result = Crossed(mean=mean, low=mean, high=mean, p_value=1.0, parts=parts, shape=(S, Q))
    if not np.any(table != table[0, 0]):
        same = paired([0.0] * Q, table[0].tolist())
        return replace(result, low=same.low, high=same.high, p_value=same.p_value)
    error, freedom = result.error()
    half = error * float(stdtrit(freedom, 0.975))
    p_value = 2 * float(stdtr(freedom, -abs(mean) / error))
    return replace(result, low=mean - half, high=mean + half, p_value=p_value)


def t_interval(values: FloatArray) -> Interval:
    """Return Student's interval of the mean of independent values, at least two."""
    half = stdtrit(values.size - 1, 0.975) * values.std(ddof=1) / np.sqrt(values.size)
    return float(values.mean() - half), float(values.mean() + half)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return the p-values adjusted by Holm's method for being the smallest of several."""
    order, adjusted = np.argsort(p_values), np.empty(len(p_values))
    factors = np.arange(len(p_values), 0, -1)
    adjusted[order] = np.maximum.accumulate(np.sort(p_values) * factors).clip(max=1)
    return adjusted.tolist()


def majority(
    answers_Qn: Sequence[Sequence[str | None]],  # noqa: N803
    correct_Qn: ArrayLike,  # noqa: N803
    k: int,
) -> float:
    """Return maj@k: the share of questions whose most frequent answer among k samples is right.

    `answers_Qn` holds normal forms (`prompt_aug.grading.normal_form`). All right answers count as
    one answer. None does not vote unless it is right, as a verifier may say of a text without an
    answer; without any vote the question is wrong. Tied answers share the question: one right
    answer of two tied ones earns 1/2. With n > k samples this is the mean over the n // k blocks
    of k samples.
    """
    correct = np.asarray(correct_Qn, dtype=np.float64)
    samples = correct.shape[1]
    if not 1 <= k <= samples or len(answers_Qn) != correct.shape[0]:
        raise ValueError(f"maj@{k} of {len(answers_Qn)} x {samples} samples")
    won = []
    for answers, right in zip(answers_Qn, correct, strict=True):
        for start in range(0, samples // k * k, k):
            pairs = zip(answers[start : start + k], right[start : start + k], strict=True)
            votes = Counter((x, "" if x else a) for a, x in pairs if x or a is not None)
            most = max(votes.values(), default=0)
            tied = [float(x) for (x, _), count in votes.items() if count == most]
            won.append(np.mean(tied or [0.0]))
    return float(np.mean(won))
