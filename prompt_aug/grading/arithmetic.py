"""Arithmetic on exact rationals and complex doubles that refuses before it computes a huge number;

and the tokens that `evaluate` reads: functions, letters and the values that letters get.
"""

import cmath
import hashlib
import math
import re
from collections.abc import Callable
from fractions import Fraction

Number = Fraction | complex

MAX_BITS = 32_000
MAX_FACTORIAL = 2500


class Unsupported(ValueError):  # noqa: N818  an answer, not a fault
    """Not a formula that this reader knows."""


class TooBig(ValueError):  # noqa: N818
    """A number that would be too large to write down."""


def to_double(value: Number) -> complex:
    """The nearest double; refuses infinities."""
    try:
        number = complex(value)
    except OverflowError:
        raise TooBig("beyond a double") from None
    if not cmath.isfinite(number):
        raise TooBig("beyond a double")
    return number


def combine(a: Number, b: Number, operation: str) -> Number:
    """a + b, a * b or a / b."""
    try:
        if not (isinstance(a, Fraction) and isinstance(b, Fraction)):
            a, b = to_double(a), to_double(b)
        if operation == "+":
            return a + b
        return a * b if operation == "*" else a / b
    except ZeroDivisionError:
        raise Unsupported("division by zero") from None
    except OverflowError:
        raise TooBig("product") from None


def power(base: Number, exponent: Number) -> Number:
    """base ** exponent, exact for a whole exponent; a power of a power tower is too big."""
    if isinstance(exponent, Fraction) and exponent.denominator == 1 and isinstance(base, Fraction):
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if abs(base) not in (0, 1) and bits * abs(exponent) > MAX_BITS:
            raise TooBig("power")
        if base == 0 and exponent <= 0:
            raise Unsupported("0 to the power 0")
        return base ** (int(exponent) % 2 if abs(base) == 1 else int(exponent))
    if isinstance(exponent, Fraction) and exponent == Fraction(1, 2):
        return root(base, Fraction(2))
    if isinstance(exponent, Fraction) and exponent.denominator > 1 and to_double(base).real < 0:
        raise Unsupported("fractional power of a negative number")
    try:
        return to_double(base) ** to_double(exponent)
    except OverflowError:
        raise TooBig("power") from None
    except ZeroDivisionError:
        raise Unsupported("0 to a negative power") from None


def root(value: Number, degree: Number) -> Number:
    """The principal root; exact for the square root of a square."""
    if not isinstance(degree, Fraction) or degree.denominator != 1 or not 2 <= degree <= 64:
        raise Unsupported("root")
    if degree != 2 and to_double(value).real < 0:
        raise Unsupported("odd root of a negative number")
    if isinstance(value, Fraction) and value >= 0 and degree == 2:
        top, bottom = math.isqrt(value.numerator), math.isqrt(value.denominator)
        if top * top == value.numerator and bottom * bottom == value.denominator:
            return Fraction(top, bottom)
    if degree == 2:
        return cmath.sqrt(to_double(value))
    return to_double(value) ** (1 / int(degree))


def factorial(value: Number) -> Number:
    """n! of a whole number up to `MAX_FACTORIAL`."""
    if not isinstance(value, Fraction) or value.denominator != 1 or value < 0:
        raise Unsupported("factorial")
    if value > MAX_FACTORIAL:
        raise TooBig("factorial")
    return Fraction(math.factorial(int(value)))


def binomial(n: Number, k: Number) -> Number:
    """n over k of whole numbers up to `MAX_FACTORIAL`."""
    if not (isinstance(n, Fraction) and isinstance(k, Fraction)):
        raise Unsupported("binomial")
    if n.denominator != 1 or k.denominator != 1 or not 0 <= k <= n:
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
    for name in [
        "alpha",
        "beta",
        "gamma",
        "delta",
        "epsilon",
        "varepsilon",
        "zeta",
        "eta",
        "theta",
        "vartheta",
        "iota",
        "kappa",
        "lambda",
        "mu",
        "nu",
        "xi",
        "rho",
        "sigma",
        "tau",
        "upsilon",
        "phi",
        "varphi",
        "chi",
        "psi",
        "omega",
        "Gamma",
        "Delta",
        "Theta",
        "Lambda",
        "Xi",
        "Sigma",
        "Phi",
        "Psi",
        "Omega",
        "ell",
        "hbar",
    ]
)
FUNCTIONS: dict[str, Callable[[complex], complex]] = {
    r"\sin": cmath.sin,
    r"\cos": cmath.cos,
    r"\tan": cmath.tan,
    r"\cot": lambda x: 1 / cmath.tan(x),
    r"\sec": lambda x: 1 / cmath.cos(x),
    r"\csc": lambda x: 1 / cmath.sin(x),
    r"\arcsin": cmath.asin,
    r"\arccos": cmath.acos,
    r"\arctan": cmath.atan,
    r"\sinh": cmath.sinh,
    r"\cosh": cmath.cosh,
    r"\tanh": cmath.tanh,
    r"\ln": cmath.log,
    r"\log": cmath.log,
    r"\exp": cmath.exp,
}


def tokens_of(text: str) -> list[str]:
    """The tokens of a formula; raises `Unsupported` at the first sign that is none."""
    tokens, position, text = [], 0, text.rstrip()
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise Unsupported(text[position])
        tokens.append(match[0].strip())
        position = match.end()
    return tokens


def letter_value(name: str, point: int) -> complex:
    """A fixed positive number in [0.4, 1.4) for a letter, another at every point."""
    digest = hashlib.blake2b(f"{point}:{name}".encode(), digest_size=6).digest()
    return complex(0.4 + int.from_bytes(digest, "big") / 2**48)
