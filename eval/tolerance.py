"""Numbers that are right within a relative error, for golds that are rounded measurements.

A gold with a decimal point or a power of ten is a measurement; a whole number or a fraction is
exact. Units that contradict the gold's are wrong at any distance, as they are for the grader.
"""

import re
from collections.abc import Sequence
from fractions import Fraction

from prompt_aug.grading import normal_form
from prompt_aug.grading.normalize import canonical
from prompt_aug.grading.units import split_unit, units_contradict

_MEASURED = re.compile(r"\d\.\d|\.\d|\d[eE][-+]?\d|10\s*\^")


def is_close(answer: str | None, golds: Sequence[str], tolerance: float) -> bool:
    """Return True if `answer` is a number within `tolerance` of one of the decimal `golds`."""
    said = None if answer is None else _number(answer)
    if said is None:
        return False
    share = Fraction(str(tolerance))
    known = filter(None, (_number(gold) for gold in golds if _MEASURED.search(gold)))
    return any(
        abs(said[0] - value) <= share * abs(value) and not units_contradict(said[1], unit)
        for value, unit in known
    )


def _number(text: str) -> tuple[Fraction, str | None] | None:
    """Return (value, unit) of a number, None for any other text."""
    try:  # an irrational number has the form 3.46+i0
        value = Fraction(normal_form(text).removesuffix("+i0"))
        return value, split_unit(canonical(text))[1]
    except (ValueError, ArithmeticError):
        return None
