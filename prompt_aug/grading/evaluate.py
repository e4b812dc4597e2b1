r"""Value of a formula, by a small bounded reader without eval or sympy.

Arithmetic raises before it computes a huge number. Rationals are exact; all other numbers are
complex, as doubles or, if the doubles of two numbers agree, with `DIGITS_COUNT` digits. Letters get
fixed positive values: formulas with different values at one point are proven different.
"""

import cmath
import hashlib
import math
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import mpmath

Number = Any  # Fraction, complex or mpmath's mpc

MAX_BITS = 32_000
MAX_DEPTH = 40
MAX_DOUBLE = 1.7e308
MAX_FACTORIAL = 2500
DIGITS_COUNT = 110


class Unsupported(ValueError):  # noqa: N818  an answer, not a fault
    """A formula that the reader does not support."""


class TooBig(ValueError):  # noqa: N818
    """A number that would be too large to write down."""


class Field:
    """Complex numbers of one precision: their conversion, constants, roots and functions."""

    def __init__(self, library: Any, number: Callable[[Any], Any]) -> None:
        self._number, self.sqrt, self.log = number, library.sqrt, library.log
        self.pi, self.e, self.i = number(library.pi), number(library.e), number(1j)
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
        if isinstance(value, Fraction) and self._number is not complex:
            return self._number(value.numerator) / self._number(value.denominator)
        with suppress(OverflowError):
            number = self._number(value)
            if abs(number) <= MAX_DOUBLE:  # not of NaN
                return number
        raise TooBig("beyond a double")


_mp = mpmath.MPContext()  # its own context, so other code cannot change its precision
_mp.dps = DIGITS_COUNT
DOUBLES = Field(cmath, complex)
DIGITS = Field(_mp, _mp.mpc)


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
        integer, top, bottom = match.groups()
        proper = int(top) < int(bottom)
        return form % rf"{integer}+\frac{{{top}}}{{{bottom}}}" if proper else match[0]

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


_TIMES = ("*", r"\cdot", r"\times")
_OVER = ("/", r"\div")
_BRACKETS = {"{": "}", "(": ")", "[": "]"}
_TRIGONOMETRIC = frozenset(rf"\{name}" for name in ("sin", "cos", "tan", "cot", "sec", "csc"))


class Reader:
    """Recursive descent over the tokens; one instance per point."""

    def __init__(self, tokens: list[str], *, point: int = 0, field: Field = DOUBLES) -> None:
        self._tokens = tokens
        self._field = field
        self._in_angle = False
        self._point = point
        self._at = 0
        self._depth = 0
        self.used_letters = False
        self.scale = 0.0

    def read(self) -> Number:
        """Return the value of all tokens. Raises `Unsupported` or `TooBig`."""
        value = self._sum()
        if self._at != len(self._tokens):
            raise Unsupported("trailing text")
        return value

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, *expected: str) -> str:
        """Return the next token; without one that is `expected`, raise `Unsupported`."""
        token = self._peek()
        if not token or (expected and token not in expected):
            raise Unsupported(f"expected {expected}")
        self._at += 1
        return token

    def _took(self, *wanted: str) -> str:
        """Return the next token and go on if it is `wanted`, else ""."""
        return self._take() if self._peek() in wanted else ""

    def _keep(self, value: Number) -> Number:
        if isinstance(value, Fraction):
            bits = (value.numerator.bit_length(), value.denominator.bit_length())
            if max(bits) > MAX_BITS:
                raise TooBig("rational")
            size = 2.0 ** min(1000, bits[0]) / 2.0 ** min(1000, bits[1] - 1)
        else:
            value = self._field.convert(value)
            size = float(abs(value))
        self.scale = max(self.scale, size)
        return value

    def _combine(self, a: Number, b: Number, operation: str) -> Number:
        """Return a + b, a * b or a / b."""
        try:
            if not (isinstance(a, Fraction) and isinstance(b, Fraction)):
                a, b = self._field.convert(a), self._field.convert(b)
            value = a + b if operation == "+" else a * b if operation == "*" else a / b
        except ZeroDivisionError:
            raise Unsupported("division by zero") from None
        return self._keep(value)

    def _sum(self) -> Number:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unsupported("nested too deep")
        total = self._signed(self._product)
        while sign := self._took("+", "-"):
            term = self._product()
            total = self._combine(total, -term if sign == "-" else term, "+")
        self._depth -= 1
        return total

    def _product(self) -> Number:
        value, slashed = self._signed(self._power), False
        while token := self._peek():
            if self._took(*_TIMES):
                value = self._combine(value, self._signed(self._power), "*")
            elif self._took(*_OVER):
                value = self._combine(value, self._signed(self._power), "/")
                slashed = token == "/"
            elif self._starts_factor(token):
                if slashed:
                    raise Unsupported("1/2x is ambiguous")
                if token[0] in "0123456789." and self._tokens[self._at - 1][-1].isdigit():
                    raise Unsupported("two numbers side by side are no product")
                value = self._combine(value, self._power(), "*")
            else:
                break
        return value

    def _starts_factor(self, token: str) -> bool:
        return token in "({" or token[0].isalnum() or token[0] in ".\\"

    def _signed(self, read: Callable[[], Number]) -> Number:
        """Read with or without a sign."""
        return -read() if self._took("+", "-") == "-" else read()

    def _power(self) -> Number:
        value = self._atom()
        if self._took("!"):
            value = factorial(value)
            if self._peek() == "!":
                raise Unsupported("double factorial")
        if self._took(r"\degree"):
            unit = self._field.pi / 180 if self._in_angle else Fraction(1)
            value = self._combine(value, unit, "*")
        if self._took("^"):
            value = self._keep(power(value, self._script(), self._field))
            if self._peek() == "^":
                raise Unsupported("double superscript")
        return self._keep(value)

    def _script(self) -> Number:
        r"""Return the value of a script: a group; a number, letter or command, signed or not."""
        return self._signed(self._script if self._peek() in ("+", "-") else self._atom)

    def _argument(self) -> Number:
        r"""Read like `_script`, but only one digit of a number: `\frac12` is one half."""
        token = self._peek()
        if token.isdigit() and len(token) > 1:
            self._tokens[self._at : self._at + 1] = [token[0], token[1:]]
        return self._script()

    def _group(self) -> Number:
        close = _BRACKETS[self._take()]
        value = self._sum()
        self._take(close)
        return value

    def _atom(self) -> Number:
        if self._peek() in _BRACKETS:
            return self._group()
        token = self._take()
        if token[0].isdigit() or token[0] == ".":
            if len(token) * 3 > MAX_BITS:
                raise TooBig("number")
            if self._peek() == "_":
                raise Unsupported("number in another base")
            return Fraction(token)
        if token in GREEK or token[0].isalpha():
            return self._variable(token)
        return self._command(token)

    def _command(self, token: str) -> Number:
        if token == r"\mixed":
            return self._group()
        if token == r"\frac":
            top = self._argument()
            return self._combine(top, self._argument(), "/")
        if token == r"\sqrt":
            degree = self._group() if self._peek() == "[" else Fraction(2)
            return self._keep(root(self._argument(), degree, self._field))
        if token == r"\pi":
            return self._field.pi
        if token == r"\binom":
            return binomial(self._argument(), self._argument())
        if token in FUNCTIONS:
            return self._function(token)
        raise Unsupported(token)

    def _function(self, name: str) -> Number:
        exponent: Number = Fraction(1)
        base: Number | None = None
        while sign := self._took("^", "_"):
            script = self._script()
            exponent, base = (script, base) if sign == "^" else (exponent, script)
        if name == r"\log" and base is None:  # 10 or e
            base = self._variable("base")
        if exponent == -1 and (inverse := rf"\arc{name[1:]}") in FUNCTIONS:
            name, exponent = inverse, Fraction(1)
        if exponent == -1 or (base is not None and name != r"\log"):
            raise Unsupported("inverse function")
        outside, self._in_angle = self._in_angle, name in _TRIGONOMETRIC
        argument = self._field.convert(self._function_argument())
        self._in_angle = outside
        try:
            value = self._field.functions[name](argument)
            if name == r"\log":
                value /= self._field.log(self._field.convert(base))
        except (ValueError, ZeroDivisionError):
            raise Unsupported(f"{name} outside its domain") from None
        except OverflowError:
            raise TooBig(name) from None
        return power(self._keep(value), exponent, self._field)

    def _function_argument(self) -> Number:
        if self._peek() in ("(", "{"):
            return self._group()
        value = self._signed(self._power)
        while (token := self._peek()) and self._starts_factor(token):
            if token in FUNCTIONS or token in ("(", "{"):
                break
            value = self._combine(value, self._power(), "*")
        return value

    def _variable(self, name: str) -> Number:
        if self._took("_"):
            name += "_" + self._subscript()
        elif name in ("i", "e"):
            return getattr(self._field, name)
        self.used_letters = True
        return letter_value(name, self._point)

    def _subscript(self) -> str:
        if (token := self._take()) != "{":
            return token
        inside = ""
        while (token := self._take()) != "}":
            inside += token
        return inside


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """Value of a formula; `exact` if it was computed as a rational."""

    text: str
    exact: Fraction | None
    approximate: tuple[complex, ...]  # at one point, or at two
    scale: float  # bounds all intermediate numbers

    @property
    def has_letters(self) -> bool:
        r"""True for a function of letters, or of the base of `\log 2`, instead of one number."""
        return len(self.approximate) > 1

    def at(self, point: int) -> complex:
        """Return the value at a point; without letters all points are the same."""
        return self.approximate[min(point, len(self.approximate) - 1)]


@lru_cache(maxsize=8192)
def evaluate(text: str) -> Value:
    """Return the value of `text`. Raises `Unsupported` or `TooBig`."""
    tokens = tokens_of(text)
    first = Reader(list(tokens))
    try:
        value = first.read()
    except RecursionError:
        raise Unsupported("nested too deep") from None
    if isinstance(value, Fraction) and not first.used_letters:
        return Value(text=text, exact=value, approximate=(_rounded(value),), scale=first.scale)
    values, scale = [DOUBLES.convert(value)], first.scale
    if first.used_letters:
        second = Reader(list(tokens), point=1)
        values.append(DOUBLES.convert(second.read()))
        scale = max(scale, second.scale)
    return Value(text=text, exact=None, approximate=tuple(values), scale=scale)


def surely_different(a: Value, b: Value, *, real: bool = False) -> bool:
    """Return True if two values differ by more than rounding can explain.

    With `real`, letters are real: a point at which neither formula is real does not count.
    """
    if a.exact is not None and b.exact is not None:
        return a.exact != b.exact
    error = 1e-12 * max(a.scale, b.scale)
    return any(
        cmath.isinf(x) or cmath.isinf(y) or abs(x - y) > 1e-9 * max(abs(x), abs(y)) + error
        for x, y in ((a.at(point), b.at(point)) for point in (0, 1))
        if not (real and a.has_letters and x.imag and y.imag)
    )


def same_digits(a: Value, b: Value) -> bool | None:
    """Return whether two numbers agree in all but the last ten of `DIGITS_COUNT` digits.

    None with letters, or if intermediate results cancel so far that few digits are left.
    """
    if a.has_letters or b.has_letters:
        return None
    x, y = digits(a.text), digits(b.text)
    size, scale = max(abs(x), abs(y)), max(a.scale, b.scale, 1e-300)
    if abs(x - y) > (size + scale) * _EPSILON:
        return False
    return True if size == 0 or size > scale * 1e-50 or not (x and y) else None


@lru_cache(maxsize=1024)
def digits(text: str) -> Number:
    """Return the value of a number as a complex number of `DIGITS_COUNT` digits."""
    with _digits_lock:  # some of mpmath's functions change the precision while they work
        return DIGITS.convert(Reader(tokens_of(text), field=DIGITS).read())


_EPSILON = DIGITS.convert(Fraction(1, 10 ** (DIGITS_COUNT - 10))).real
_digits_lock = threading.Lock()


def _rounded(value: Fraction) -> complex:
    try:
        return complex(value)
    except OverflowError:
        return complex(math.inf)
