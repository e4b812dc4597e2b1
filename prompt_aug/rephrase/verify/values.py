"""The numbers of a question as values, however they are written.

"24", "twenty-four", "two dozen", ``$24$`` and "24th" are 24; "two-thirds" and ``\\frac{2}{3}`` are
2/3; "25%" and "25 percent" are 25 percent. A value is *soft* where a good rephrasing may leave it
out or bring it in: one, "two" and "both" as words, numbers that only name ("step 1"), small
exponents ("squared").
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from text_to_num import text2num

from prompt_aug.rephrase.verify.reading import AMOUNT, Reading

UNITS = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
UNITS += " fifteen sixteen seventeen eighteen nineteen"
TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
SCALES = "hundred thousand million billion"
_CARDINALS = frozenset(f"{UNITS} {TENS} {SCALES}".split())
_ORDINALS = {
    word: value
    for value, word in enumerate(
        "zeroth first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth "
        "thirteenth fourteenth fifteenth sixteenth seventeenth eighteenth nineteenth".split()
    )
} | {tens[:-1] + "ieth": 10 * n for n, tens in enumerate(TENS.split(), 2)}
_ORDINALS |= {"hundredth": 100, "thousandth": 1000}
_PARTS = {f"{word}s": value for word, value in _ORDINALS.items() if value > 2}
_PARTS |= {word: value for word, value in _ORDINALS.items() if value > 2}
_PARTS |= {"half": 2, "halves": 2, "quarter": 4, "quarters": 4}
_TIMES = {
    "twice": 2,
    "double": 2,
    "doubles": 2,
    "doubled": 2,
    "doubling": 2,
    "twofold": 2,
    "thrice": 3,
    "triple": 3,
    "triples": 3,
    "tripled": 3,
    "tripling": 3,
    "threefold": 3,
    "quadruple": 4,
    "quadruples": 4,
    "quadrupled": 4,
}
_SOFT_TWO = frozenset("both pair pairs couple couples either two-way".split())
_NAMERS = frozenset("step part case figure problem example question option choice clue".split())
_DEFINITE = frozenset("the these those all".split())
MOST_COUNTED = 6
LONGEST_RUN = 12  # words of one number
LONGEST_NUMBER = 200  # characters; no question has one, and int() refuses 4300 digits
_TOKEN = re.compile(
    r"\d+(?:,\d{3})+(?:\.\d+)?|\d+\s+\d+/\d+(?![\d/])|\d+/\d+|\d*\.\d+|\d+"
    r"|[a-z]+|%|[" + AMOUNT + r"]"
)
_LITERAL = re.compile(r"(?<![\d.])(\d+)/(\d+)(?![\d.])|(\d*\.\d+|\d+)")
_POWER = re.compile(r"\^\{?([23])\}?(?![\d.])")


@dataclass(frozen=True, slots=True)
class Number:
    """A value of a text, `start` and `end` its place in the tokens.

    `soft` ones may come and go; one that `counts` what is named before ("the three friends") may
    come.
    """

    value: Fraction
    soft: bool = False
    percent: bool = False
    counts: bool = False
    start: int = 0
    end: int = 0


def words(prose: str) -> list[str]:
    """Lower-case words, numbers and signs of a prose, in order; hyphens separate."""
    return [token for token in _TOKEN.findall(prose.lower()) if len(token) <= LONGEST_NUMBER]


def numbers(reading: Reading) -> list[Number]:
    """Every value of the prose, then every one of the formulas."""
    return [*in_words(words(reading.prose)), *in_formulas(reading.formulas)]


def in_formulas(formulas: Sequence[str]) -> Iterator[Number]:
    """The literals of formulas; a square or cube is soft, since words say it too."""
    for formula in formulas:
        for match in _POWER.finditer(formula):
            yield Number(Fraction(int(match.group(1))), soft=True)
        for match in _LITERAL.finditer(_POWER.sub(" ", formula)):
            found = [group for group in match.groups() if group is not None]
            if max(map(len, found)) > LONGEST_NUMBER:
                continue
            if len(found) == 2 and int(found[1]):
                yield Number(Fraction(int(found[0]), int(found[1])))
            else:
                yield Number(Fraction(found[0]), soft=found[0] in ("0", "1", "2"))


def in_words(tokens: Sequence[str]) -> Iterator[Number]:
    """The values of a list of `words`, each with the tokens it takes."""
    place = 0
    while place < len(tokens):
        found = _at(tokens, place)
        if found is None:
            place += 1
        else:
            yield found
            place = found.end


def _at(tokens: Sequence[str], place: int) -> Number | None:
    """The number that starts at this token, with the longest reading."""
    token = tokens[place]
    for reader in (_digits, _spelled, _fraction, _named):
        found = reader(tokens, place, token)
        if found is not None:
            return found
    return None


def _digits(tokens: Sequence[str], place: int, token: str) -> Number | None:
    if not token[0].isdigit() and token[0] != ".":
        return None
    value, end = _value(token), place + 1
    if value is None:
        return None
    soft = token == "00" or (place > 0 and tokens[place - 1] in _NAMERS)
    if end < len(tokens) and tokens[end] in ("st", "nd", "rd", "th"):
        return Number(value, soft=soft or value <= 2, start=place, end=end + 1)
    money = place > 0 and tokens[place - 1] == AMOUNT
    return _scaled(tokens, place, end, value, soft or (value == 1 and not money))


def _value(token: str) -> Fraction | None:
    whole, _, part = token.replace(",", "").rpartition(" ")
    top, _, bottom = part.partition("/")
    if bottom and not int(bottom):
        return None
    return Fraction(whole.strip() or 0) + (
        Fraction(int(top), int(bottom)) if bottom else Fraction(top)
    )


def _spelled(tokens: Sequence[str], place: int, token: str) -> Number | None:
    """A run of number words, split where it is not a number ("five six")."""
    if token not in _CARDINALS:
        return None
    end = place + 1
    while end < min(len(tokens), place + LONGEST_RUN) and (
        tokens[end] in _CARDINALS
        or (
            tokens[end] == "and"
            and tokens[end - 1] in SCALES.split()
            and end + 1 < len(tokens)
            and tokens[end + 1] in _CARDINALS
        )
    ):
        end += 1
    value = None
    while value is None and end > place:
        try:
            value = Fraction(text2num(" ".join(tokens[place:end]), "en"))
        except (ValueError, KeyError):
            end -= 1
    if value is None:
        return None
    if end < len(tokens) and tokens[end] in _ORDINALS and value % 10 == 0 and value < 100:
        ordinal = _ORDINALS[tokens[end]]
        if 0 < ordinal < 10:
            return Number(value + ordinal, start=place, end=end + 1)
    if end < len(tokens) and tokens[end] in _PARTS and value < _PARTS[tokens[end]] * 10:
        return Number(value / _PARTS[tokens[end]], start=place, end=end + 1)
    found = _scaled(tokens, place, end, value, value <= 2)
    counts = found.value <= MOST_COUNTED and place > 0 and tokens[place - 1] in _DEFINITE
    return replace(found, counts=counts)


def _scaled(tokens: Sequence[str], place: int, end: int, value: Fraction, soft: bool) -> Number:
    """`value` with what follows it: percent, dozen, million, "and a half"."""
    rest = tuple(tokens[end : end + 3])
    if rest[:1] in (("%",), ("percent",)):
        return Number(value, percent=True, start=place, end=end + 1)
    if rest[:1] in (("dozen",), ("dozens",)):
        return Number(value * 12, start=place, end=end + 1)
    if rest[:1] in (("thousand",), ("million",), ("billion",), ("hundred",)):
        scale = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9}
        return Number(value * scale[rest[0]], start=place, end=end + 1)
    if len(rest) == 3 and rest[0] == "and" and rest[1] in ("a", "one") and rest[2] in _PARTS:
        return Number(value + Fraction(1, _PARTS[rest[2]]), start=place, end=end + 3)
    return Number(value, soft=soft, start=place, end=end)


def _fraction(tokens: Sequence[str], place: int, token: str) -> Number | None:
    """half, a third of, half a dozen, a dozen."""
    rest = tuple(tokens[place + 1 : place + 3])
    if token == "half":
        if rest in (("a", "dozen"), ("dozen", "of")) or rest[:1] == ("dozen",):
            return Number(Fraction(6), start=place, end=place + 1 + rest.index("dozen") + 1)
        return Number(Fraction(1, 2), start=place, end=place + 1)
    if token in ("dozen", "dozens"):
        return Number(Fraction(12), soft=token == "dozens", start=place, end=place + 1)
    if token in ("a", "an", "one") and rest[:1] and rest[0] in _PARTS and rest[0] != "half":
        if len(rest) < 2 or rest[1] in ("of", "as", "the", "less", "more", "that", "its", "his"):
            return Number(Fraction(1, _PARTS[rest[0]]), start=place, end=place + 2)
        return Number(Fraction(1, _PARTS[rest[0]]), soft=True, start=place, end=place + 2)
    if token == "quarter" or (token in _PARTS and rest[:1] == ("of",) and token.endswith("s")):
        return Number(Fraction(1, _PARTS[token]), soft=True, start=place, end=place + 1)
    return None


def _named(tokens: Sequence[str], place: int, token: str) -> Number | None:
    """twice, triple, both, first, third."""
    if token in _TIMES:
        return Number(Fraction(_TIMES[token]), start=place, end=place + 1)
    if token in _SOFT_TWO or token in ("once", "single"):
        value = 1 if token in ("once", "single") else 2
        return Number(Fraction(value), soft=True, start=place, end=place + 1)
    if token in _ORDINALS:
        value = _ORDINALS[token]
        soft = value <= 2 or value >= 100  # "the nearest hundredth", "two decimal places"
        return Number(Fraction(value), soft=soft, start=place, end=place + 1)
    return None
