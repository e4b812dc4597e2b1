"""Estimates from counts of right samples, in plain numpy: pass@k, groups without signal, Wilson.

Legend: n samples of a question, c of them right; k of the n are drawn. Bad counts: `ValueError`.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
Table = Callable[[int, Sequence[int]], FloatArray]
Interval = tuple[float, float]
Z = 1.959963984540054  # the normal distribution's 97.5 % quantile


def wilson(rate: float, trials: int) -> Interval:
    r"""Wilson's 95 % score interval of a share of `trials` independent trials.

    .. math:: \Big( p + \frac{z^2}{2n} \pm z \sqrt{\frac{p(1-p)}{n} + \frac{z^2}{4n^2}} \Big)
              \Big/ \Big( 1 + \frac{z^2}{n} \Big)

    0 of 30 is [0, 0.114], where p +- 1.96 SE says [0, 0].
    """
    if trials < 1 or not 0.0 <= rate <= 1.0:
        raise ValueError(f"a share in [0, 1] of at least one trial, not {rate} of {trials}")
    square = Z**2 / trials
    middle = (rate + square / 2) / (1 + square)
    half = math.sqrt(Z**2 * rate * (1 - rate) / trials + square**2 / 4) / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)


def pass_table(samples: int, ks: Sequence[int]) -> FloatArray:
    r"""pass@k of a question with c of n right, by row c = 0 ... n and column k of `ks`.

    .. math:: 1 - \binom{n-c}{k} / \binom{n}{k} = 1 - \prod_{i=n-c+1}^{n} (1 - k/i)

    (arXiv 2107.03374, section 2.1.) As a product no factorial is formed, so nothing overflows.
    k > n raises, because it has no unbiased estimate.
    """
    for k in ks:
        if not 1 <= k <= samples:
            raise ValueError(f"k = {k} needs as many samples per question, there are {samples}")
    i = np.arange(samples, 0, -1, dtype=np.float64)[:, None]
    # Factors with i < k are only reached where n - c < k, and there the product holds i = k,
    # whose factor is exactly 0; the clip keeps the sign of the others from mattering.
    factors = np.clip(1.0 - np.asarray(ks, dtype=np.float64)[None, :] / i, 0.0, 1.0)
    return np.concatenate([np.zeros((1, len(ks))), 1.0 - np.cumprod(factors, axis=0)])


def all_table(samples: int, ks: Sequence[int]) -> FloatArray:
    r"""pass^k, the chance that k samples are all right: :math:`\binom{c}{k} / \binom{n}{k}`.

    By row c and column k as `pass_table`: k samples miss together as often as k others pass.
    """
    return 1.0 - pass_table(samples, ks)[::-1]


def no_signal_table(samples: int, ks: Sequence[int]) -> FloatArray:
    r"""The share of groups of k responses that teach nothing: all right or all wrong.

    .. math:: \binom{c}{k} / \binom{n}{k} + \binom{n-c}{k} / \binom{n}{k}
              = \text{pass\^{}k} + 1 - \text{pass@k}

    By row c and column k as `pass_table`. Over the training questions this is the no-signal share
    of GRPO with groups of k (arXiv 2601.22478, section 5.1 and Figure 3), where the reward is
    accuracy alone.
    """
    return all_table(samples, ks) + 1.0 - pass_table(samples, ks)


def pass_at_k(right: ArrayLike, samples: int, k: int) -> float:
    """Unbiased pass@k, the mean over questions; `right` holds c for each, `samples` is n."""
    return _mean(pass_table, right, samples, k)


def no_signal(right: ArrayLike, samples: int, k: int) -> float:
    """Unbiased share of groups of k without signal; arguments as those of `pass_at_k`."""
    return _mean(no_signal_table, right, samples, k)


def powers(samples: int) -> list[int]:
    """k = 1, 2, 4, ... up to n, and n itself."""
    return sorted({2**i for i in range(samples.bit_length()) if 2**i <= samples} | {samples})


def _mean(table: Table, right: ArrayLike, samples: int, k: int) -> float:
    c = np.atleast_1d(np.asarray(right))
    if c.size == 0 or np.any(c < 0) or np.any(c > samples) or np.any(c != np.floor(c)):
        raise ValueError(f"right counts must be whole numbers in [0, {samples}], got {c}")
    return float(table(samples, [k])[c.astype(np.int64), 0].mean())
