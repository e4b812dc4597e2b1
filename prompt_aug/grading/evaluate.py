r"""Value of a formula, by a small bounded reader without eval or sympy.

The value is an exact rational if possible, else complex doubles. Letters get fixed positive values:
formulas with different values at one point are proven different (up to a rounding bound). If the
doubles of two formulas without letters agree, `same_digits` compares `DIGITS_COUNT` digits.
"""

import cmath
import math
import threading
from collections.abc import Callable
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
        return self._keep(combine(a, b, operation, self._field))

    def _sum(self) -> Number:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise Unsupported("nested too deep")
        total, adds = self._signed(self._product), False
        while sign := self._took("+", "-"):
            term = self._product()
            total, adds = self._combine(total, -term if sign == "-" else term, "+"), True
        self._depth -= 1
        return self._done("+", total) if adds else total

    def _product(self) -> Number:
        value, slashed, done = self._signed(self._power), False, ""
        while token := self._peek():
            if self._took(*_TIMES):
                done = done or "*"
                value = self._combine(value, self._signed(self._power), "*")
            elif self._took(*_OVER):
                value = self._combine(value, self._signed(self._power), "/")
                slashed, done = token == "/", "/"
            elif self._starts_factor(token):
                if slashed:
                    raise Unsupported("1/2x is ambiguous")
                if token[0] in "0123456789." and self._tokens[self._at - 1][-1].isdigit():
                    raise Unsupported("two numbers side by side are no product")
                done = done or "*"
                value = self._combine(value, self._power(), "*")
            else:
                break
        return self._done(done, value) if done else value

    def _starts_factor(self, token: str) -> bool:
        return token in "({" or token[0].isalnum() or token[0] in ".\\"

    def _signed(self, read: Callable[[], Number]) -> Number:
        """Read with or without a sign."""
        return -read() if self._took("+", "-") == "-" else read()

    def _power(self) -> Number:
        value = self._atom()
        if self._took("!"):
            value = self._done("!", factorial(value))
            if self._peek() == "!":
                raise Unsupported("double factorial")
        if self._took(r"\degree"):
            value = self._combine(
                value, self._field.pi / 180 if self._in_angle else Fraction(1), "*"
            )
        if self._took("^"):
            value = self._done("^", self._keep(power(value, self._script(), self._field)))
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
            return self._done("", Fraction(token))
        if token in GREEK or token[0].isalpha():
            return self._done("", self._variable(token))
        return self._command(token)

    def _command(self, token: str) -> Number:
        if token == r"\mixed":
            return self._group()
        if token == r"\frac":
            top = self._argument()
            return self._done("/", self._combine(top, self._argument(), "/"))
        if token == r"\sqrt":
            degree = self._group() if self._peek() == "[" else Fraction(2)
            return self._done("^", self._keep(root(self._argument(), degree, self._field)))
        if token == r"\pi":
            return self._field.pi
        if token == r"\binom":
            return self._done("!", binomial(self._argument(), self._argument()))
        if token in FUNCTIONS:
            return self._done("f", self._function(token))
        raise Unsupported(token)

    def _function(self, name: str) -> Number:
        exponent: Number = Fraction(1)
        base: Number | None = None
        while sign := self._took("^", "_"):
            script = self._script()
            exponent, base = (script, base) if sign == "^" else (exponent, script)
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
        if base is None:
            self.used_base = True
            base = self._field.e if self._point == 0 else Fraction(10)
        return self._field.convert(base)

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
    if first.used_letters or first.used_base:
        other = Reader(list(tokens), point=1)
        values.append(DOUBLES.convert(other.read()))
        scale = max(scale, other.scale)
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
