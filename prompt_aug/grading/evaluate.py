r"""Value of a formula, by a small bounded reader without eval or sympy.

`evaluate` reads sums, products, powers, roots, fractions, elementary functions and letters. It
returns an exact rational if it can, else complex doubles. Letters get fixed positive values:
formulas with different values at one point are proven different (up to a rounding bound). If the
doubles of two formulas without letters agree, `same_digits` compares `DIGITS_COUNT` digits. Raises
`Unsupported` for what it cannot read, and `TooBig` before it computes a huge number.
"""

import cmath
import math
import threading
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from prompt_aug.grading.arithmetic import (
    DIGITS,
    DIGITS_COUNT,
    DOUBLES,
    FUNCTIONS,
    GREEK,
    MAX_BITS,
    Field,
    Number,
    TooBig,
    Unsupported,
    binomial,
    combine,
    factorial,
    letter_value,
    power,
    root,
    tokens_of,
)

MAX_DEPTH = 40

_TIMES = frozenset(("*", r"\cdot", r"\times"))
_OVER = frozenset(("/", r"\div"))
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
        self.used_base = False
        self.scale = 0.0

    def read(self) -> Number:
        """Return the value of all tokens. Raises `Unsupported` or `TooBig`."""
        value = self._sum()
        if self._at != len(self._tokens):
            raise Unsupported("trailing text")
        return value

    def _done(self, _operation: str, value: Number) -> Number:
        """Receive each intermediate value and its operation, "" for a number or a letter."""
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
        value = self._field.convert(value)
        self.scale = max(self.scale, float(abs(value)))
        return value

    def _sum(self) -> Number:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unsupported("nested too deep")
        sign = self._take() if self._peek() in ("+", "-") else "+"
        total, adds = self._product(), False
        total = -total if sign == "-" else total
        while self._peek() in ("+", "-"):
            sign = self._take()
            term = self._product()
            total = self._keep(combine(total, -term if sign == "-" else term, "+", self._field))
            adds = True
        self._depth -= 1
        return self._done("+", total) if adds else total

    def _product(self) -> Number:
        value, slashed, done = self._signed_power(), False, ""
        while token := self._peek():
            if token in _TIMES:
                self._take()
                done = done or "*"
                value = self._keep(combine(value, self._signed_power(), "*", self._field))
            elif token in _OVER:
                self._take()
                value = self._keep(combine(value, self._signed_power(), "/", self._field))
                slashed, done = token == "/", "/"
            elif self._starts_factor(token):
                if slashed:
                    raise Unsupported("1/2x is ambiguous")
                if token[0] in "0123456789." and self._tokens[self._at - 1][-1].isdigit():
                    raise Unsupported("two numbers side by side are no product")
                done = done or "*"
                value = self._keep(combine(value, self._power(), "*", self._field))
            else:
                break
        return self._done(done, value) if done else value

    def _starts_factor(self, token: str) -> bool:
        return token in "({" or token[0].isalnum() or token[0] in ".\\"

    def _signed_power(self) -> Number:
        if self._peek() in ("+", "-"):
            return -self._power() if self._take() == "-" else self._power()
        return self._power()

    def _power(self) -> Number:
        value = self._atom()
        if self._peek() == "!":
            self._take()
            value = self._done("!", factorial(value))
            if self._peek() == "!":
                raise Unsupported("double factorial")
        if self._peek() == r"\degree":
            self._take()
            angle = self._field.pi / 180 if self._in_angle else Fraction(1)
            value = self._keep(combine(value, angle, "*", self._field))
        if self._peek() == "^":
            self._take()
            value = self._done("^", self._keep(power(value, self._script(), self._field)))
            if self._peek() == "^":
                raise Unsupported("double superscript")
        return self._keep(value)

    def _script(self) -> Number:
        r"""Return the value of a script: a group; a number, letter or command, signed or not."""
        token = self._peek()
        if token in ("{", "("):
            return self._group()
        if token in ("+", "-"):
            self._take()
            return -self._script() if token == "-" else self._script()
        return self._atom()

    def _argument(self) -> Number:
        r"""Read like `_script`, but only one digit of a number: `\frac12` is one half."""
        token = self._peek()
        if token.isdigit() and len(token) > 1:
            self._tokens[self._at : self._at + 1] = [token[0], token[1:]]
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
            return self._done("", self._number(token))
        if token == r"\mixed":
            return self._group()
        if token == r"\frac":
            return self._fraction()
        if token == r"\sqrt":
            return self._root()
        if token == r"\pi":
            return self._field.pi
        if token == r"\binom":
            return self._done("!", binomial(self._argument(), self._argument()))
        if token in FUNCTIONS:
            return self._done("f", self._function(token))
        if token in GREEK or token[0].isalpha():
            return self._done("", self._variable(token))
        raise Unsupported(token)

    def _number(self, token: str) -> Number:
        if len(token) * 3 > MAX_BITS:
            raise TooBig("number")
        value = Fraction(token)
        if self._peek() == "_":
            raise Unsupported("number in another base")
        return value

    def _fraction(self) -> Number:
        top = self._argument()
        return self._done("/", self._keep(combine(top, self._argument(), "/", self._field)))

    def _root(self) -> Number:
        degree: Number = Fraction(2)
        if self._peek() == "[":
            degree = self._group()
        return self._done("^", self._keep(root(self._argument(), degree, self._field)))

    def _function(self, name: str) -> Number:
        exponent: Number = Fraction(1)
        base: Number | None = None
        while self._peek() in ("^", "_"):
            if self._take() == "^":
                exponent = self._script()
            else:
                base = self._script()
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
                value /= self._field.log(self._base(base))
        except (ValueError, ZeroDivisionError):
            raise Unsupported(f"{name} outside its domain") from None
        except OverflowError:
            raise TooBig(name) from None
        return power(self._keep(value), exponent, self._field)

    def _base(self, base: Number | None) -> Number:
        r"""Return the base of a logarithm: of `\log x` e at the first point, 10 at the others."""
        if base is not None:
            return self._field.convert(base)
        self.used_base = True
        return self._field.e if self._point == 0 else self._field.convert(Fraction(10))

    def _function_argument(self) -> Number:
        if self._peek() in ("(", "{"):
            return self._group()
        value = self._signed_power()
        while (token := self._peek()) and self._starts_factor(token):
            if token in FUNCTIONS or token in ("(", "{"):
                break
            value = self._keep(combine(value, self._power(), "*", self._field))
        return value

    def _variable(self, token: str) -> Number:
        name = token
        if self._peek() == "_":
            self._take()
            name += "_" + self._subscript()
        elif token == "i":
            return self._field.i
        elif token == "e":
            return self._field.e
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Value:
    """Value of a formula; `exact` if it was computed as a rational.

    `scale` bounds all intermediate numbers.
    """

    text: str
    exact: Fraction | None
    approximate: tuple[complex, ...]
    scale: float

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
    for point in range(1, POINTS):
        if first.used_letters or first.used_base:
            other = Reader(list(tokens), point=point)
            values.append(DOUBLES.convert(other.read()))
            scale = max(scale, other.scale)
    return Value(text=text, exact=None, approximate=tuple(values), scale=scale)


def surely_different(a: Value, b: Value) -> bool:
    """Return True if two values differ by more than rounding can explain."""
    if a.exact is not None and b.exact is not None:
        return a.exact != b.exact
    error = 1e-12 * max(a.scale, b.scale)
    pairs = [(a.at(point), b.at(point)) for point in range(POINTS)]
    return any(
        cmath.isinf(x) or cmath.isinf(y) or abs(x - y) > 1e-9 * max(abs(x), abs(y)) + error
        for x, y in pairs
    )


def same_digits(a: Value, b: Value) -> bool | None:
    """Return whether two numbers agree in all but the last ten of `DIGITS_COUNT` digits.

    None with letters, or if intermediate results cancel so far that few digits are left.
    """
    if a.has_letters or b.has_letters:
        return None
    x, y = digits(a.text), digits(b.text)
    size, scale = max(abs(x), abs(y)), max(a.scale, b.scale, 1e-300)
    if abs(x - y) > size * _EPSILON + scale * _EPSILON:
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
