"""Equality of two values: numbers with units, ratios, residues, numbers without a unit.

As in `equality`, True and False are proven here, None needs algebra.
"""

import re
from collections.abc import Callable, Iterable
from fractions import Fraction
from functools import partial

from prompt_aug.grading.arithmetic import TooBig, Unsupported
from prompt_aug.grading.evaluate import Value, evaluate, same_digits, surely_different
from prompt_aug.grading.normalize import squeeze
from prompt_aug.grading.notation import TEXT_PATTERN
from prompt_aug.grading.structure import split_top
from prompt_aug.grading.units import split_unit, units_contradict

Oracle = Callable[[str, str], bool]
_MODULUS = re.compile(r"\\[pb]?mod(?![a-z])")
_RESIDUE = re.compile(
    r"(?:[a-z]\s*\\equiv\s*)?(-?\d+)\s*\(?\s*\\[pb]?mod\s*\{?\s*(\d+)\s*\}?\s*\)?"
)
# math-verify reads `1 2 3` as 6, `5_x` as 5 and `12_3+1` as 13.
NO_NUMBER = (
    re.compile(r"\\approx"),  # decimals that are not its own
    re.compile(r"(?<![\d.,/_{])\d+\s+\d+(?!\d*\s*/)"),
    re.compile(r"\d\s*_"),
)
# Words and primes that math-verify takes for factors: `2\text{ boys }3\text{ girls}`, `30' 15`.
_NO_FORMULA = (re.compile(rf"[\w)}}]\s*{TEXT_PATTERN}\s*[\d(\\]"), re.compile(r"\d\s*['\"]"))
_OTHER_PERCENT = re.compile(r"%\s*%|[\w)}]\s*[-+][^%]*%")  # 100-50% is no half
_LONG_DECIMAL = re.compile(r"-?\d{1,9}\.(\d{6,30})")
_OPPOSED = (
    "am/pm north/south east/west left/right up/down profit/loss gain/loss f/c more/less"
    " increase/decrease boys/girls fahrenheit/celsius clockwise/counterclockwise"
).split()


def all_of(results: Iterable[bool | None], deciding: bool = False) -> bool | None:
    """Return `deciding` at the first result that is it, None if any is None, else the other."""
    found: bool | None = not deciding
    for result in results:
        if result is deciding:
            return deciding
        found = None if result is None else found
    return found


any_of = partial(all_of, deciding=True)


def compare_ratios(gold: str, pred: str, oracle: Oracle | None) -> bool | None:
    """Return whether one factor other than 0 takes a : b : c to d : e : f.

    None for fewer than three parts. The same parts must be 0, and not all of them.
    """
    golds, preds = split_top(gold, ":"), split_top(pred, ":")
    if max(len(golds), len(preds)) < 3:
        return None
    if len(golds) != len(preds):
        return False
    zeros = [[compare_numbers(part, "0", oracle) for part in parts] for parts in (golds, preds)]
    if None in zeros[0] + zeros[1]:
        return None if oracle is None else False
    if zeros[0] != zeros[1] or False not in zeros[0]:
        return False
    first, other = golds[zeros[0].index(False)], preds[zeros[0].index(False)]
    return all_of(
        compare_numbers(f"({g})\\cdot({other})", f"({p})\\cdot({first})", oracle)
        for g, p in zip(golds, preds, strict=True)
    )


def compare_quantities(gold: str, pred: str, oracle: Oracle | None) -> bool | None:
    """Compare two values with or without units. Units that contradict are never equal."""
    gold_text, gold_unit = split_unit(gold)
    pred_text, pred_unit = split_unit(pred)
    percents = (gold_text.endswith("%"), pred_text.endswith("%"))
    if (
        units_contradict(gold_unit, pred_unit)
        or (gold_unit is not None and pred_unit is not None and _opposed(gold, pred))
        or (percents == (True, False) and pred_unit)
        or (percents == (False, True) and gold_unit)
    ):
        return False
    if squeeze(gold_text) == squeeze(pred_text):
        return True
    return not _OTHER_PERCENT.search(pred_text) and compare_numbers(gold_text, pred_text, oracle)


def _opposed(gold: str, pred: str) -> bool:
    """Return whether one has "north" and the other "south", or another such pair."""
    golds, preds = (set(re.findall(r"[a-z]+", t.lower().replace(".", ""))) for t in (gold, pred))
    pairs = (set(pair.split("/")) for pair in _OPPOSED)
    said = [(golds & pair, preds & pair) for pair in pairs]
    return any(len(one) == len(other) == 1 and one != other for one, other in said)


def compare_residues(gold: str, pred: str, oracle: Oracle | None) -> bool | None:
    r"""Compare `7 \pmod{11}` with 7 or `7 \pmod{11}`; None without a modulus."""
    parts = [_RESIDUE.fullmatch(text) for text in (gold, pred)]
    if parts[0] and number_of(pred) is not None:
        return compare_numbers(parts[0][1], pred, oracle)
    if not parts[1] or (not parts[0] and _MODULUS.search(gold)):
        return None
    if parts[0] and parts[0][2] != parts[1][2]:
        return False
    stated = parts[1][1]
    if r"\bmod" in pred:  # a sign of arithmetic: 12 \bmod 5 is 2
        stated = str(int(stated) % int(parts[1][2])) if int(parts[1][2]) else stated
    return compare_numbers(parts[0][1] if parts[0] else gold, stated, oracle)


def _value(text: str) -> Value | None:
    try:
        return evaluate(text)
    except Unsupported:
        return None


def number_of(text: str) -> Value | None:
    """Return the value of a text that is one number, with or without a unit, else None."""
    try:
        value = evaluate(split_unit(text)[0])
    except (Unsupported, TooBig):
        return None
    return None if value.has_letters else value


def is_number(text: str) -> bool:
    try:
        return _value(text) is not None
    except TooBig:
        return True


def compare_numbers(gold: str, pred: str, oracle: Oracle | None) -> bool | None:
    gold_number, pred_number = gold.rstrip(" %"), pred.rstrip(" %")
    scales = [Fraction(1)]
    if gold.endswith("%") != pred.endswith("%"):
        scales.append(Fraction(1, 100) if pred.endswith("%") else Fraction(100))
    try:
        gold_value = _value(gold_number)
    except TooBig:
        return _ask_text(gold_number, pred_number, oracle)
    pred_value = _value(pred_number)
    if gold_value is None or pred_value is None:
        return _ask_text(gold_number, pred_number, oracle)
    if gold_value.exact is not None and pred_value.exact is not None:
        return any(gold_value.exact == pred_value.exact * scale for scale in scales)
    if len(scales) == 1:
        if rounds_to(pred_value, gold_number):
            return True
        if surely_different(gold_value, pred_value, real=True):
            return False
        try:
            if (same := same_digits(gold_value, pred_value)) is not None:
                return same
        except (TooBig, Unsupported):  # a pole that only more digits show
            pass
    return _ask_text(gold_number, pred_number, oracle)


def rounds_to(value: Value, decimal: str) -> bool:
    r"""Return True if an irrational number has the six or more decimals shown: \sqrt{17}, 4.123106.

    Always False if `value.exact` is set: it is compared exactly.
    """
    shown = _LONG_DECIMAL.fullmatch(decimal)
    if shown is None or value.exact is not None or value.has_letters:
        return False
    return abs(value.at(0) - float(decimal)) <= 0.5 / 10 ** len(shown[1]) + 1e-15 * value.scale


def _ask_text(gold: str, pred: str, oracle: Oracle | None) -> bool | None:
    if any(sign.search(text) for sign in _NO_FORMULA for text in (gold, pred)):
        return False
    return None if oracle is None else oracle(gold, pred)
