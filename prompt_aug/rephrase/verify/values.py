r"""Checks of numbers as values that went missing, came in, or were converted.

"24", "twenty-four", "two dozen", ``$24$`` and "24th" are 24; "two-thirds" and ``\frac{2}{3}`` are
2/3. A *soft* value may come or go: one, "two" and "both" as words, names ("step 1"), squares.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from text_to_num import text2num

from prompt_aug.rephrase.verify.reasons import Reason, doubt, reject
from prompt_aug.rephrase.verify.text import AMOUNT, Reading

_UNITS = "one|two|three|four|five|six|seven|eight|nine"
_TENS = "twenty|thirty|forty|fifty|sixty|seventy|eighty|ninety"
_TEENS = "ten|eleven|twelve|thirteen|fourteen|fifteen|sixteen|seventeen|eighteen|nineteen"
_SMALL = rf"(?:(?:{_TENS})(?:[\s-](?:{_UNITS}))?|{_TEENS}|{_UNITS}|zero)"
_SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "dozen": 12}
_SCALE = "(?:hundred|thousand|million|billion)"
_CARDINAL = rf"(?:{_SMALL}(?:(?:[\s-]{_SCALE})+(?:[\s-](?:and\s)?{_SMALL})?)*|{_SCALE})"
_RANKS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth "
    "fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth twentieth"
)
_ORDINALS = {word: value for value, word in enumerate(_RANKS.split(), start=1)}
_ORDINALS |= {"thirtieth": 30, "fortieth": 40, "fiftieth": 50, "hundredth": 100, "thousandth": 1000}
_PARTS = _ORDINALS | {"half": 2, "halve": 2, "quarter": 4}
_PART = "|".join(list(_PARTS)[2:])
_TIMES = {"twice": 2, "doubl": 2, "twofo": 2, "thric": 3, "tripl": 3, "three": 3, "quadr": 4}
_SOFT = {"both": 2, "pair": 2, "coupl": 2, "eithe": 2, "once": 1, "singl": 1}
_NUMBER = re.compile(
    rf"""(?:\b(?P<namer>step|part|case|figure|problem|example|question|option|choice|clue)\s
        |(?P<money>{AMOUNT}\s?))?
    (?:\b(?:(?:an?|one)[\s-](?P<part>{_PART})|(?P<top>{_CARDINAL})[\s-](?P<parts>{_PART})s)\b
         (?P<of>\s(?:of|as|the|less|more|that|its|his)\b|\s*$)?
      |\b(?:(?P<tens>{_TENS})[\s-])?(?P<ordinal>{"|".join(_ORDINALS)})\b
      |(?:(?P<digits>\d+(?:,\d{{3}})+(?:\.\d+)?|\d+\s+\d+/\d+(?![\d/])|\d+/\d+|\d*\.\d+|\d+)
            (?P<th>\s?(?:st|nd|rd|th)\b)?
         |\b(?P<words>{_CARDINAL})\b|\b(?P<dozen>(?:half\s(?:an?\s)?)?dozens?)\b)
       (?:[\s-](?P<scale>{"|".join(_SCALES)})s?\b)?(?:\s?(?P<percent>%|percent\b))?
       (?:\sand\s(?:a|one)\s(?P<and>half|third|quarter)\b)?
      |\b(?P<named>half|quarters?|twice|thrice|(?:doubl|tripl|quadrupl)(?:e[sd]?|ing)
          |(?:two|three)fold|both|pairs?|couples?|either|once|single)\b)""",
    re.VERBOSE,
)
LONGEST_NUMBER = 200  # characters; int() refuses 4300 digits
_POWER = re.compile(r"\^\{?([23])\}?(?![\d.])")
CONVERSIONS = (
    (7, "week", "day"), (12, "year", "month"), (12, "dozen", ""), (12, "f(?:oo|ee)t", "inch"),
    (24, "day", "hour"), (60, "hour", "min"), (60, "min", "sec"), (3600, "hour", "sec"),
    (3, "yard", "f(?:oo|ee)t"), (16, "pound", "ounce"), (100, f"dollar|{AMOUNT}", "cent|¢"),
    (1000, "km|kilo", "m(?:eter)?\\b|gram"), (100, "m(?:eter)?\\b", "cm|centi"),
    (365, "year", "day"), (52, "year", "week"), (10, "decade", "year"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Number:
    """A value; a `soft` one may be added or dropped."""

    value: Fraction
    soft: bool = False
    percent: bool = False

    @property
    def share(self) -> Fraction:
        return self.value / 100 if self.percent else self.value


def numbers(reading: Reading) -> list[Number]:
    """Return every value; a square or cube in a formula is soft, since prose may name it."""
    formulas = " ; ".join(reading.formulas).replace(",", " , ")
    prose, literals = (
        filter(None, map(number_of, _NUMBER.finditer(text)))
        for text in (reading.prose.lower(), _POWER.sub(" ", formulas))
    )
    return [
        *prose,
        *(replace(number, soft=number.value in (0, 1, 2)) for number in literals),
        *(Number(Fraction(power), soft=True) for power in _POWER.findall(formulas)),
    ]


def _spelled(words: str) -> int:
    """Return the value of number words; 0 for none and for "thousand hundred"."""
    try:
        return int(text2num(words, "en"))
    except ValueError:
        return 0


def number_of(match: re.Match[str]) -> Number | None:
    """Return the number that a match of `_NUMBER` spells; None for n/0 and absurd lengths."""
    found = match.groupdict("")
    if part := found["part"]:
        return Number(Fraction(1, _PARTS[part]), soft=not found["of"] and part != "half")
    if found["parts"]:
        return Number(Fraction(_spelled(found["top"]), _PARTS[found["parts"]]))
    if found["ordinal"]:
        rank = _ORDINALS[found["ordinal"]] + _spelled(found["tens"])
        return Number(Fraction(rank), soft=rank <= 2 or rank >= 100)  # "the nearest hundredth"
    if name := found["named"]:
        if name.startswith(("half", "quarter")):
            return Number(Fraction(1, _PARTS[name.rstrip("s")]), soft=name != "half")
        return Number(Fraction((_TIMES | _SOFT)[name[:5].rstrip("s")]), soft=name[:5] not in _TIMES)
    if dozen := found["dozen"]:
        return Number(Fraction(6 if "half" in dozen else 12), soft=dozen == "dozens")
    scaled = bool(found["scale"] or found["percent"] or found["and"])
    if digits := found["digits"].replace(",", ""):
        whole, _, part = digits.rpartition(" ")
        if len(digits) > LONGEST_NUMBER or re.search(r"/0+$", part):
            return None
        value = Fraction(whole.strip() or 0) + Fraction(part)
        small = value <= 2 if found["th"] else value == 1 and not (found["money"] or scaled)
        soft = small or digits == "00" or bool(found["namer"])
    else:
        value = Fraction(_spelled(found["words"]))
        soft = value <= 2 and not scaled
    value *= _SCALES.get(found["scale"], 1)
    value += Fraction(1, _PARTS[found["and"]]) if found["and"] else 0
    return Number(value, soft, bool(found["percent"]))


def in_tokens(prose: str) -> str:
    """Return lower-case prose with ``#value`` in place of each number."""

    def token(match: re.Match[str]) -> str:
        number = number_of(match)
        shown = f"#{number.value}{'%' if number.percent else ''}" if number else ""
        return f"{match['namer'] or ''} {shown} "

    return _NUMBER.sub(token, prose)


def compare_numbers(question: Reading, candidate: Reading) -> Iterator[Reason]:
    """Yield a reason for values that went missing, came in, or changed their count."""
    both = (question, candidate), (candidate, question)
    lost, new, fewer, more = (
        unmatched(*pair, counted) for counted in (False, True) for pair in both
    )
    if lost and new:
        yield reject("numbers", f"{_listed(lost)} became {_listed(new)}")
    elif lost or new:
        yield doubt("numbers", f"{_listed(lost or new)} {'went missing' if lost else 'came in'}")
    elif fewer or more:
        detail = f"{_listed(fewer) or 'none'} less often, {_listed(more) or 'none'} more often"
        yield doubt("numbers", detail)


def unmatched(first: Reading, second: Reading, counted: bool = False) -> set[Fraction]:
    """Return hard values of `first` that `second` lacks or, if `counted`, names less often."""
    own, others = numbers(first), numbers(second)
    known = {n.value for n in others} | {n.share for n in others}
    values = {n.value for n in own if not n.soft and not {n.value, n.share} & known}
    if counted:  # a percentage matches its fraction
        values = set(Counter(n.share for n in own if not n.soft) - Counter(n.share for n in others))
    known = {Fraction(1), *(n.value for n in others)}
    here, there = first.prose.lower(), second.prose.lower()
    return values - {
        one
        for one in values
        for factor, large, small in CONVERSIONS
        if (one * factor in known and re.search(large, here) and re.search(small, there))
        or (one / factor in known and re.search(large, there) and re.search(small, here))
    }


def _listed(values: set[Fraction]) -> str:
    return ", ".join(str(value) for value in sorted(values))
