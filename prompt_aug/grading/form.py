r"""Normal form, to count votes: answers with the same form are equal.

    \frac12, 0.50, x = \frac{2}{4}   ->  1/2
    \{3, 1\};  1, 3                  ->  {1,3}

Grading is not an equivalence relation: 80 equals both "80 cents" and "80 dollars". Equality of
normal forms is one. They omit labels, units and percent signs.
"""

from prompt_aug.grading.equality import words_of
from prompt_aug.grading.evaluate import digits, evaluate
from prompt_aug.grading.extract import open_box
from prompt_aug.grading.grader import MAX_ANSWER, MAX_NESTING, nesting
from prompt_aug.grading.normalize import canonical, squeeze
from prompt_aug.grading.structure import Node, build
from prompt_aug.grading.units import split_unit

_DIGITS = 30
_DECIMAL_BITS = 10_000
_MARKS = {"list": "{}", "set": "{}", "matrix": "[]", "tuple": "()", "union": "<>"}


def normal_form(answer: str) -> str:
    """Return the normal form; of an unreadable answer, its text without white space."""
    plain = "".join(answer.split())
    if len(answer) > MAX_ANSWER or nesting(answer) > MAX_NESTING:
        return plain[:MAX_ANSWER]
    try:
        return _form(build(canonical(open_box(answer)))) or plain
    except (ValueError, ArithmeticError, RecursionError):  # unreadable: a vote for itself
        return plain


def _form(node: Node) -> str:
    if node.kind == "either":  # the first of several readings
        return _form(node.items[0])
    if node.kind == "leaf":
        return _leaf(node.text)
    parts = [_form(item) for item in node.items]
    if node.kind in ("list", "set", "union"):
        parts = sorted(set(parts))
    if len(parts) == 1 and node.kind in ("list", "set"):
        return parts[0]
    marks = node.bounds if len(node.bounds) == 2 == len(parts) else _MARKS[node.kind]
    return f"{marks[0]}{','.join(parts)}{marks[1]}"


def _leaf(text: str) -> str:
    if words := words_of(text):
        return words
    plain = split_unit(text)[0].rstrip("% ")
    try:
        value = evaluate(plain)
    except ValueError:  # no number, or one too large to write down
        return squeeze(plain)
    if value.exact is not None:
        parts = (value.exact.numerator, value.exact.denominator)
        # Python writes at most 4300 decimal digits; hexadecimal has no limit.
        large = max(part.bit_length() for part in parts) > _DECIMAL_BITS
        return "/".join(map(hex, parts)) if large else str(value.exact)
    if value.has_letters:
        return " ".join(f"{z.real + 0.0:.8g}{z.imag + 0.0:+.8g}i" for z in value.approximate)
    number = digits(value.text)
    return "+i".join(
        "0" if abs(part) < 1e-60 else number.context.nstr(part, _DIGITS)
        for part in (number.real, number.imag)
    )
