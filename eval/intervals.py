"""Intervals and tests: bootstrap over questions and samples, paired differences.

Legend as in `eval.metrics`. All intervals are 95 %. Randomness is a function of `seed`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from eval.metrics import paired_difference, right_counts
from prompt_aug.base.estimates import FloatArray, Interval, wilson

DRAWS = 1000
FLIPS = 10_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Difference:
    """A paired difference b - a with its interval and the p-value of "there is none"."""

    mean: float
    low: float
    high: float
    p_value: float
    questions: int


def resample(correct_Qn: ArrayLike, seed: int = 0, draws: int = DRAWS) -> NDArray[np.int64]:  # noqa: N803
    r"""Two-level bootstrap: questions with replacement, then each one's samples.

    Row b, column c: how many of the Q questions of draw b have c right of n. A drawn question has
    count c with probability

    .. math:: P(c) = \frac{1}{Q} \sum_q \mathrm{Binomial}(n, c_q / n)(c)

    and the Q questions of a draw are independent, so the row is Multinomial(Q, P): exactly the
    distribution of resampling Q x n samples one by one, at the cost of n + 1 numbers.
    """
    right, samples = right_counts(correct_Qn), int(np.shape(correct_Qn)[1])
    weights = np.bincount(right, minlength=samples + 1) / right.size
    chance = weights @ _binomials(samples)
    return np.random.default_rng(seed).multinomial(right.size, chance / chance.sum(), size=draws)


def accuracy_interval(correct_Qn: ArrayLike, seed: int = 0) -> Interval:  # noqa: N803
    """Of the accuracy: two-level bootstrap; Wilson over questions where it is 0 or 1.

    The bootstrap of n equal verdicts knows no other. Wilson counts questions, not samples: those
    of a question stand and fall together here. Resampling samples too is wider than clustering by
    question alone, by the variance inside questions over n once more: on the safe side.
    """
    right, samples = right_counts(correct_Qn), int(np.shape(correct_Qn)[1])
    rate = float(right.mean() / samples)
    if rate in (0.0, 1.0):
        return wilson(rate, right.size)
    shares = np.arange(samples + 1) / samples
    values = resample(correct_Qn, seed) @ shares / right.size
    low, high = np.quantile(values, [0.025, 0.975])
    return float(low), float(high)


def paired(means_a: Mapping[str, float], means_b: Mapping[str, float], seed: int = 0) -> Difference:
    """b - a over the same questions: bootstrap interval and sign-flip p-value.

    Both map a question's key to its share of right samples. p is the share of random signs of the
    differences whose mean is at least as far from 0, (1 + hits) / (1 + FLIPS), so never 0: under
    "no difference" each question's difference is as likely as its opposite.
    """
    mean = paired_difference(means_a, means_b).accuracy  # refuses different questions
    differences = np.array([means_b[key] - means_a[key] for key in sorted(means_a)])
    rng = np.random.default_rng(seed)
    size = differences.size
    # Equal differences are exchangeable: a draw is how often each value comes.
    values, counts = np.unique(differences, return_counts=True)
    drawn = rng.multinomial(size, counts / size, size=DRAWS) @ values / size
    low, high = np.quantile(drawn, [0.025, 0.975])
    # The sum of m random signs is 2 Binomial(m, 1/2) - m.
    sizes, members = np.unique(np.abs(differences), return_counts=True)
    signs = 2 * rng.binomial(members, 0.5, size=(FLIPS, members.size)) - members
    flipped = np.abs(signs @ sizes / size)
    hits = int(np.sum(flipped >= abs(mean) - 1e-12))
    return Difference(
        mean=mean,
        low=float(low),
        high=float(high),
        p_value=(1 + hits) / (1 + FLIPS),
        questions=size,
    )


def majority(
    answers_Qn: Sequence[Sequence[str | None]],  # noqa: N803
    correct_Qn: ArrayLike,  # noqa: N803
    k: int,
) -> float:
    """maj@k: the share of questions whose most frequent answer among k samples is right.

    All right answers are one answer; wrong ones are the same where their normal forms are
    (`prompt_aug.grading.normal_form`, which `answers_Qn` holds). None does not vote, and without
    any vote the question is wrong. Tie rule: the tied answers share the question, so that
    one right answer of two tied ones earns 1/2, the mean over random choices. With n > k samples
    the mean over the n // k blocks of k samples, in the order of their numbers.
    """
    correct = np.asarray(correct_Qn, dtype=np.float64)
    samples = correct.shape[1]
    if not 1 <= k <= samples or len(answers_Qn) != correct.shape[0]:
        raise ValueError(f"maj@{k} of {len(answers_Qn)} x {samples} samples")
    blocks = range(0, samples // k * k, k)
    won = [
        _vote(answers[start : start + k], right[start : start + k])
        for answers, right in zip(answers_Qn, correct, strict=True)
        for start in blocks
    ]
    return float(np.mean(won))


def _vote(answers: Sequence[str | None], right: FloatArray) -> float:
    given = ((a, bool(x)) for a, x in zip(answers, right, strict=True) if a is not None)
    votes = Counter((is_right, "" if is_right else answer) for answer, is_right in given)
    if not votes:
        return 0.0
    most = max(votes.values())
    return float(np.mean([is_right for (is_right, _), count in votes.items() if count == most]))


def _binomials(samples: int) -> FloatArray:
    """Binomial(n, c / n) at 0 ... n, by row c = 0 ... n; by logarithms, which do not overflow."""
    counts = np.arange(samples + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, samples + 1)))])
    choose = logs[samples] - logs[counts] - logs[samples - counts]
    table = np.zeros((samples + 1, samples + 1))
    table[0, 0] = table[samples, samples] = 1.0
    p = counts[1:samples, None] / samples
    if p.size:
        table[1:samples] = np.exp(choose + counts * np.log(p) + (samples - counts) * np.log1p(-p))
    return table
