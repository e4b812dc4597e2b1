r"""The value of a formula, by a small bounded reader of our own: no eval, no sympy.

`evaluate` reads sums, products, powers, roots, fractions, elementary functions and letters, and
gives an exact rational where it can, else a complex double. Letters get fixed positive values, so
two formulas with different values at one point are different formulas: "not equal" is proven
(up to a rounding bound), "equal" only for rationals. What it cannot read it refuses
(`Unsupported`), what would be huge it refuses before computing it (`TooBig`).
"""

import cmath
import math
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from prompt_aug.grading.arithmetic import to_double
from prompt_aug.grading.reader import Reader
from prompt_aug.grading.tokens import tokens_of

POINTS = 2
_LONG_DECIMAL = re.compile(r"-?\d{1,9}\.(\d{6,30})")


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """`exact` where the formula is a rational number; `scale` bounds the numbers on the way."""

    exact: Fraction | None
    approximate: tuple[complex, ...]
    scale: float

    def at(self, point: int) -> complex:
        """The value at a point; without letters every point is the same."""
        return self.approximate[min(point, len(self.approximate) - 1)]


@lru_cache(maxsize=8192)
def evaluate(text: str) -> Value:
    """The value of `text`; raises `Unsupported` or `TooBig`."""
    tokens = tokens_of(text)
    first = Reader(tokens, point=0)
    value = first.read()
    if isinstance(value, Fraction) and not first.used_letters:
        return Value(exact=value, approximate=(_rounded(value),), scale=first.scale)
    values, scale = [to_double(value)], first.scale
    for point in range(1, POINTS):
        if first.used_letters:
            other = Reader(tokens, point=point)
            values.append(to_double(other.read()))
            scale = max(scale, other.scale)
    return Value(exact=None, approximate=tuple(values), scale=scale)


def surely_different(a: Value, b: Value) -> bool:
    """True where the two values differ by more than rounding can explain."""
    if a.exact is not None and b.exact is not None:
        return a.exact != b.exact
    error = 1e-12 * max(a.scale, b.scale)
    pairs = [(a.at(point), b.at(point)) for point in range(POINTS)]
    return any(
        cmath.isinf(x) or cmath.isinf(y) or abs(x - y) > 1e-9 * max(abs(x), abs(y)) + error
        for x, y in pairs
    )


def rounds_to(value: Value, decimal: str) -> bool:
    r"""True where an irrational number has the shown decimals, six or more: \sqrt{17} and 4.123106.

    Never for a rational: a decimal is compared with a fraction exactly.
    """
    shown = _LONG_DECIMAL.fullmatch(decimal)
    if shown is None or value.exact is not None or len(value.approximate) > 1:
        return False
    return abs(value.at(0) - float(decimal)) <= 0.5 / 10 ** len(shown[1]) + 1e-15 * value.scale


def _rounded(value: Fraction) -> complex:
    try:
        return complex(value)
    except OverflowError:
        return complex(math.inf)
