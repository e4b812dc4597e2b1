"""Estimates from counts of right samples, in numpy: pass@k, zero-variance groups, Wilson.

n samples of a question, c of them right; k of the n are drawn. Invalid counts raise ValueError.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
Table = Callable[[int, Sequence[int]], FloatArray]
Interval = tuple[float, float]
Z = 1.959963984540054  # the normal distribution's 97.5 % quantile


def wilson(rate: float, trials: float) -> Interval:
    r"""Return Wilson's 95 % score interval of a share of `trials` independent trials.

    .. math:: \Big( p + \frac{z^2}{2n} \pm z \sqrt{\frac{p(1-p)}{n} + \frac{z^2}{4n^2}} \Big)
              \Big/ \Big( 1 + \frac{z^2}{n} \Big)

    For 0 of 30 it is [0, 0.114]; p +- 1.96 SE would give [0, 0].
    """
    if trials < 1 or not 0.0 <= rate <= 1.0:
        raise ValueError(f"a share in [0, 1] of at least one trial, not {rate} of {trials}")
    square = Z**2 / trials
    middle = (rate + square / 2) / (1 + square)
    half = math.sqrt(Z**2 * rate * (1 - rate) / trials + square**2 / 4) / (1 + square)
    return max(0.0, middle - half), min(1.0, middle + half)


def pass_table(samples: int, ks: Sequence[int]) -> FloatArray:
    r"""Return pass@k for c of n right, in row c = 0 ... n and column k of `ks`.

    .. math:: 1 - \binom{n-c}{k} / \binom{n}{k} = 1 - \prod_{i=n-c+1}^{n} (1 - k/i)

    (arXiv 2107.03374, section 2.1.) The product avoids factorials, so nothing overflows. k > n
    raises, because it has no unbiased estimate.
    """
    for k in ks:
        if not 1 <= k <= samples:
            raise ValueError(f"k = {k} needs as many samples per question, there are {samples}")
    i = np.arange(samples, 0, -1, dtype=np.float64)[:, None]
    # Factors with i < k, which the clip sets to 0, follow the factor of i = k, which is exactly 0.
    factors = np.clip(1.0 - np.asarray(ks, dtype=np.float64)[None, :] / i, 0.0, 1.0)
    return np.concatenate([np.zeros((1, len(ks))), 1.0 - np.cumprod(factors, axis=0)])


def all_table(samples: int, ks: Sequence[int]) -> FloatArray:
    r"""Return pass^k, the probability that k samples are all right.

    Rows and columns are those of `pass_table`: :math:`\binom{c}{k} / \binom{n}{k}` is 1 - pass@k of
    a question with n - c right samples.
    """
    return 1.0 - pass_table(samples, ks)[::-1]


def no_signal_table(samples: int, ks: Sequence[int]) -> FloatArray:
    r"""Return the share of zero-variance groups of k responses: all right or all wrong.

    .. math:: \binom{c}{k} / \binom{n}{k} + \binom{n-c}{k} / \binom{n}{k}
              = \text{pass\^{}k} + 1 - \text{pass@k}

    Rows and columns are those of `pass_table`. Over the training questions this is the share in
    GRPO with groups of k (arXiv 2601.22478, section 5.1 and Figure 3), if the reward is accuracy.
    """
    return all_table(samples, ks) + 1.0 - pass_table(samples, ks)


def powers(samples: int) -> list[int]:
    """Return k = 1, 2, 4, ... up to n, and n itself."""
    return sorted({2**i for i in range(samples.bit_length())} | {samples})
