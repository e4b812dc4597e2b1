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

from prompt_aug.grading.arithmetic import (
    FUNCTIONS,
    GREEK,
    MAX_BITS,
    Number,
    TooBig,
    Unsupported,
    binomial,
    combine,
    factorial,
    letter_value,
    power,
    root,
    to_double,
    tokens_of,
)

MAX_DEPTH = 40

_TIMES = frozenset(("*", r"\cdot", r"\times"))
_OVER = frozenset(("/", r"\div"))


class Reader:
    """Recursive descent over the tokens; one instance per point."""

    def __init__(self, tokens: list[str], *, point: int) -> None:
        self._tokens = tokens
        self._point = point
        self._at = 0
        self._depth = 0
        self.used_letters = False
        self.scale = 0.0

    def read(self) -> Number:
        """The value of all tokens; raises `Unsupported` or `TooBig`."""
        value = self._sum()
        if self._at != len(self._tokens):
            raise Unsupported("trailing text")
        return value

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self, expected: str | None = None) -> str:
        token = self._peek()
        if not token or (expected is not None and token != expected):
            raise Unsupported(f"expected {expected}")
        self._at += 1
        return token

    def _keep(self, value: Number) -> Number:
        if isinstance(value, Fraction):
            if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
                raise TooBig("rational")
            self.scale = max(
                self.scale,
                2.0 ** min(1000, value.numerator.bit_length())
                / 2.0 ** min(1000, value.denominator.bit_length() - 1),
            )
            return value
        if not cmath.isfinite(value):
            raise TooBig("beyond a double")
        self.scale = max(self.scale, abs(value))
        return value

    def _sum(self) -> Number:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unsupported("nested too deep")
        sign = self._take() if self._peek() in ("+", "-") else "+"
        total = self._product()
        total = -total if sign == "-" else total
        while self._peek() in ("+", "-"):
            sign = self._take()
            term = self._product()
            total = self._keep(combine(total, -term if sign == "-" else term, "+"))
        self._depth -= 1
        return total

    def _product(self) -> Number:
        value, slashed = self._signed_power(), False
        while token := self._peek():
            if token in _TIMES:
                self._take()
                value = self._keep(combine(value, self._signed_power(), "*"))
            elif token in _OVER:
                self._take()
                value = self._keep(combine(value, self._signed_power(), "/"))
                slashed = token == "/"
            elif self._starts_factor(token):
                if slashed:
                    raise Unsupported("1/2x is ambiguous")
                value = self._keep(combine(value, self._power(), "*"))
            else:
                break
        return value

    def _starts_factor(self, token: str) -> bool:
        return token in "({" or token[0].isalnum() or token[0] in ".\\"

    def _signed_power(self) -> Number:
        if self._peek() in ("+", "-"):
            return -self._power() if self._take() == "-" else self._power()
        return self._power()

    def _power(self) -> Number:
        value = self._atom()
        while self._peek() == "!":
            self._take()
            value = factorial(value)
        if self._peek() == "^":
            self._take()
            value = self._keep(power(value, self._script()))
            if self._peek() == "^":
                raise Unsupported("double superscript")
        return self._keep(value)

    def _script(self) -> Number:
        r"""An argument as TeX takes it: a group, or one digit, letter or command."""
        token = self._peek()
        if token in ("{", "("):
            return self._group()
        if token in ("+", "-"):
            self._take()
            return -self._script() if token == "-" else self._script()
        return self._atom()

    def _argument(self) -> Number:
        r"""Like `_script`, but `\frac12` is one half: a number gives one digit."""
        token = self._peek()
        if token.isdigit() and len(token) > 1:
            self._tokens = [
                *self._tokens[: self._at],
                token[0],
                token[1:],
                *self._tokens[self._at + 1 :],
            ]
        return self._script()

    def _group(self) -> Number:
        close = {"{": "}", "(": ")", "[": "]"}[self._take()]
        value = self._sum()
        self._take(close)
        return value

    def _atom(self) -> Number:
        token = self._peek()
        if token in ("(", "{", "["):
            return self._group()
        token = self._take()
        if token[0].isdigit() or token[0] == ".":
            return self._number(token)
        if token == r"\frac":
            return self._fraction()
        if token == r"\sqrt":
            return self._root()
        if token == r"\pi":
            return complex(math.pi)
        if token == r"\binom":
            return binomial(self._argument(), self._argument())
        if token in FUNCTIONS:
            return self._function(token)
        if token in GREEK or token[0].isalpha():
            return self._variable(token)
        raise Unsupported(token)

    def _number(self, token: str) -> Number:
        if len(token) * 3 > MAX_BITS:
            raise TooBig("number")
        value = Fraction(token)
        if self._peek() == "_":
            raise Unsupported("number in another base")
        if value.denominator == 1 and self._peek() == r"\frac":
            start = self._at
            self._take()
            if (part := self._plain_fraction()) is not None and value:
                return value + part  # 3\frac{1}{2} is a mixed number
            self._at = start
        return value

    def _plain_fraction(self) -> Fraction | None:
        tail = "".join(self._tokens[self._at : self._at + 6])
        match = re.match(r"\{(\d+)\}\{(\d+)\}|(\d)(\d)$", tail)
        if match is None or int(match[2] or match[4]) == 0:
            return None
        before = self._at
        part = self._fraction()
        if isinstance(part, Fraction) and part < 1 and self._peek() != "^":
            return part
        self._at = before
        return None

    def _fraction(self) -> Number:
        top = self._argument()
        return self._keep(combine(top, self._argument(), "/"))

    def _root(self) -> Number:
        degree: Number = Fraction(2)
        if self._peek() == "[":
            degree = self._group()
        return self._keep(root(self._argument_of_root(), degree))

    def _argument_of_root(self) -> Number:
        return self._argument() if self._peek() not in ("(", "{") else self._group()

    def _function(self, name: str) -> Number:
        exponent: Number = Fraction(1)
        base: Number | None = None
        while self._peek() in ("^", "_"):
            if self._take() == "^":
                exponent = self._script()
            else:
                base = self._script()
        if exponent == -1 or (base is not None and name != r"\log"):
            raise Unsupported("inverse function")
        argument = to_double(self._function_argument())
        try:
            value = FUNCTIONS[name](argument)
            value = value / cmath.log(to_double(base)) if base is not None else value
        except (ValueError, ZeroDivisionError):
            raise Unsupported(f"{name} outside its domain") from None
        except OverflowError:
            raise TooBig(name) from None
        return power(self._keep(value), exponent)

    def _function_argument(self) -> Number:
        if self._peek() in ("(", "{"):
            return self._group()
        value = self._signed_power()
        while (token := self._peek()) and self._starts_factor(token):
            if token in FUNCTIONS or token in ("(", "{"):
                break
            value = self._keep(combine(value, self._power(), "*"))
        return value

    def _variable(self, token: str) -> Number:
        name = token
        if self._peek() == "_":
            self._take()
            name += "_" + self._subscript()
        elif token == "i":
            return 1j
        elif token == "e":
            return complex(math.e)
        self.used_letters = True
        return letter_value(name, self._point)

    def _subscript(self) -> str:
        if self._peek() != "{":
            return self._take()
        self._take()
        inside = []
        while self._peek() != "}":
            inside.append(self._take())
        self._take()
        return "".join(inside)


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
