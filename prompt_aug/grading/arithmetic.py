"""Arithmetic that raises before it computes a huge number, and the tokens of formulas.

Rationals are exact. All other numbers are complex, in one of two fields: `DOUBLES`, whose overflow
raises, and `DIGITS` (mpmath), for formulas that doubles have bounded.
"""

import cmath
import hashlib
import math
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath

Number = Any  # Fraction, complex or mpmath's mpc

MAX_BITS = 32_000
MAX_FACTORIAL = 2500
DIGITS_COUNT = 110


class Unsupported(ValueError):  # noqa: N818  an answer, not a fault
    """A formula that the reader does not support."""


class TooBig(ValueError):  # noqa: N818
    """A number that would be too large to write down."""


class Field:
    """Complex numbers of one precision: their conversion, constants, roots and functions."""

    def __init__(self, library: Any, number: Callable[[Any], Any], pi: Any, e: Any) -> None:
        self._number, self.sqrt, self.log = number, library.sqrt, library.log
        self.pi, self.e, self.i = number(pi), number(e), number(1j)
        names = "sin cos tan sinh cosh tanh log exp".split()
        self.functions = {rf"\{name}": getattr(library, name) for name in names}
        self.functions |= {rf"\arc{n}": getattr(library, f"a{n}") for n in ("sin", "cos", "tan")}
        self.functions |= {
            r"\ln": library.log,
            r"\cot": lambda x: 1 / library.tan(x),
            r"\sec": lambda x: 1 / library.cos(x),
            r"\csc": lambda x: 1 / library.sin(x),
        }

    def convert(self, value: Number) -> Any:
        """Return `value` in this field. Raises TooBig for infinities."""
        try:
            if isinstance(value, Fraction) and self._number is not complex:
                return self._number(value.numerator) / self._number(value.denominator)
            number = self._number(value)
        except OverflowError:
            raise TooBig("beyond a double") from None
        if number != number or abs(number) > MAX_DOUBLE:
            raise TooBig("beyond a double")
        return number


MAX_DOUBLE = 1.7e308
_mp = mpmath.MPContext()  # its own context, so other code cannot change its precision
_mp.dps = DIGITS_COUNT
DOUBLES = Field(cmath, complex, math.pi, math.e)
DIGITS = Field(_mp, _mp.mpc, _mp.pi, _mp.e)


def combine(a: Number, b: Number, operation: str, field: Field) -> Number:
    """Return a + b, a * b or a / b."""
    try:
        if not (isinstance(a, Fraction) and isinstance(b, Fraction)):
            a, b = field.convert(a), field.convert(b)
        if operation == "+":
            return a + b
        return a * b if operation == "*" else a / b
    except ZeroDivisionError:
        raise Unsupported("division by zero") from None
    except OverflowError:
        raise TooBig("product") from None


def power(base: Number, exponent: Number, field: Field) -> Number:
    """Return base ** exponent, exact for a rational base and a whole exponent."""
    exact = isinstance(exponent, Fraction)
    if exact and exponent.denominator == 1 and isinstance(base, Fraction):
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if abs(base) not in (0, 1) and bits * abs(exponent) > MAX_BITS:
            raise TooBig("power")
        if base == 0 and exponent <= 0:
            raise Unsupported("0 to the power 0")
        return base ** (int(exponent) % 2 if abs(base) == 1 else int(exponent))
    if exact and exponent == Fraction(1, 2):
        return root(base, Fraction(2), field)
    if exact and exponent.denominator > 1 and field.convert(base).real < 0:
        raise Unsupported("fractional power of a negative number")
    try:
        return field.convert(base) ** field.convert(exponent)
    except OverflowError:
        raise TooBig("power") from None
    except ZeroDivisionError:
        raise Unsupported("0 to a negative power") from None


def root(value: Number, degree: Number, field: Field) -> Number:
    """Return the principal root, or the real one for an odd degree.

    The square root of a rational square is exact. The cube root of -8 is -2, as in school.
    """
    if not isinstance(degree, Fraction) or degree.denominator != 1 or not 2 <= degree <= 64:
        raise Unsupported("root")
    if isinstance(value, Fraction) and value >= 0 and degree == 2:
        top, bottom = math.isqrt(value.numerator), math.isqrt(value.denominator)
        if top * top == value.numerator and bottom * bottom == value.denominator:
            return Fraction(top, bottom)
    number = field.convert(value)
    if degree == 2:
        return field.sqrt(number)
    if number.real < 0:
        if degree % 2 == 0 or number.imag != 0:
            raise Unsupported("root of a negative number")
        return -((-number) ** (field.convert(Fraction(1)) / int(degree)))
    return number ** (field.convert(Fraction(1)) / int(degree)) if number else number


def factorial(value: Number) -> Number:
    """Return n! of a whole number up to `MAX_FACTORIAL`."""
    if not isinstance(value, Fraction) or value.denominator != 1 or value < 0:
        raise Unsupported("factorial")
    if value > MAX_FACTORIAL:
        raise TooBig("factorial")
    return Fraction(math.factorial(int(value)))


def binomial(n: Number, k: Number) -> Number:
    """Return n over k of whole numbers up to `MAX_FACTORIAL`."""
    if not all(isinstance(x, Fraction) and x.denominator == 1 for x in (n, k)) or not 0 <= k <= n:
        raise Unsupported("binomial")
    if n > MAX_FACTORIAL:
        raise TooBig("binomial")
    return Fraction(math.comb(int(n), int(k)))


_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d+)?|\.\d+)|(?P<command>\\[a-zA-Z]+)|(?P<letter>[a-zA-Z]'*)"
    r"|(?P<sign>[-+*/^_(){}\[\]!]))"
)
GREEK = frozenset(
    rf"\{name}"
    for name in (
        "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa "
        "lambda mu nu xi rho sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta "
        "Lambda Xi Sigma Phi Psi Omega ell hbar"
    ).split()
)
FUNCTIONS = frozenset(DOUBLES.functions)


# A mixed number: a proper fraction right after a whole number.
_MIXED = re.compile(r"(?<![\d.^_])([1-9]\d*)\s*\\frac\{(\d+)\}\{(\d+)\}(?!\s*\^)")


def mixed_as_sums(text: str, form: str = "(%s)") -> str:
    r"""Rewrite `3\frac{1}{2}` as `(3+\frac{1}{2})`."""

    def mixed(match: re.Match[str]) -> str:
        whole, top, bottom = match.groups()
        proper = int(top) < int(bottom)
        return form % rf"{whole}+\frac{{{top}}}{{{bottom}}}" if proper else match[0]

    return _MIXED.sub(mixed, text)


def tokens_of(text: str) -> list[str]:
    """Return the tokens of a formula. Raises `Unsupported` at the first unknown sign."""
    # Brackets would end the argument of a function: \sin 22\frac{1}{2}^\circ.
    tokens, position, text = [], 0, mixed_as_sums(text, r"\mixed{%s}").rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise Unsupported(text[position])
        tokens.append(match[0].strip())
        position = match.end()
    return tokens


def letter_value(name: str, point: int) -> complex:
    """Return a fixed number in [0.4, 1.4) for a letter, another one at every point."""
    digest = hashlib.blake2b(f"{point}:{name}".encode(), digest_size=6).digest()
    return complex(0.4 + int.from_bytes(digest, "big") / 2**48)
