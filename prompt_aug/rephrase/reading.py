r"""Read a text for the checks: prose, formulas in one spelling, and numbers as values.

Formulas stand between dollars or TeX's brackets, or are found as such in prose. A formula that is
only a number (``$20,\!000$``, ``$6\%$``, ``$60^\circ$``) becomes prose.

"24", "twenty-four", "two dozen", ``$24$`` and "24th" are 24; "two-thirds" and ``\frac{2}{3}`` are
2/3. A *soft* value may come or go: one, "two" and "both" as words, names ("step 1"), squares.
"""

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

from text_to_num import text2num

from prompt_aug.grading.echo import DRAWING
from prompt_aug.grading.normalize import canonical, squeeze

FORMULA, AMOUNT = "\ue000", "\ue001"  # placeholders in the prose
_FORMULAS = re.compile(
    r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\\\((.+?)\\\)|\$(?P<inline>[^$]+)\$"
    r"|\\begin\{(?:align|equation|gather|eqnarray)\*?\}(.+?)\\end\{[a-z]+\*?\}",
    re.DOTALL,
)
_ARRAY = re.compile(r"\\(?:begin|end)\{(?:tabular|array)\}(?:\{[^{}]*\})?|\\\\(?=\s)")
_MARKED_TEXT = re.compile(r"\\(?:text|textbf|textit|mbox|mathrm|operatorname)\s*\{[^{}]*\}")
_PROSE_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
_FUNCTIONS = frozenset("sin cos tan cot sec csc log gcd lcm mod max min det abs exp arcsin".split())
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}\s*|,\s*\\!\s*|,)(?=\d{3}(?!\d))")
_NUMBER = re.compile(rf"{AMOUNT}? ?-?(?:\d+ )?(?:\d*\.)?\d+(?:/\d+)?(?: ?(?:%|[a-z]+))*")
_TERM = r"(?:[A-Za-z]\([a-z]\)|\d*[a-zA-Z](?:\^\{?\d+\}?)?|\d+(?:\.\d+)?)"
_BARE = re.compile(rf"(?<![\w\\])(?:{_TERM}\s*(?:<=|>=|[-+*/=<>≤≥−])\s*)+{_TERM}(?![\w\\])")
_RELATIONS = {"le": "<=", "ge": ">=", "ne": "!=", "lt": "<", "gt": ">"}
_RELATION = re.compile(r"\\(le|ge|ne|lt|gt)(?![a-zA-Z])")
_SHORT = re.compile(r"(\\sqrt|\\frac\{[^{}]*\})\s*(\w)")  # an argument without braces
_FRACTION = re.compile(r"\\frac\{([^{}]*)\}\{([^{}]*)\}")
# Brackets around a numerator without signs, or around one letter or number. 1/(2x) is not 1/2x.
_ALONE = re.compile(r"(?<![\w)])\(([\w.^]+)\)(?=/)|(?<=[/^])\((\w(?:\^\w)?|\d+|pi)\)")
_IDLE = re.compile(r"\\(?:cdot|times)|\\(?:begin|end)\([a-z]+\*?\)|[\s*\\]")
_SEPARATOR = re.compile(r"\\\\|\\(?:text|mbox|textnormal)\s*\{[^{}]*[a-z]{2}[^{}]*\}")


@dataclass(frozen=True, slots=True)
class Reading:
    """A text without drawings: `prose` has `FORMULA` for each of the compact `formulas`."""

    prose: str
    formulas: tuple[str, ...] = ()
    text: str = ""


@functools.lru_cache(maxsize=256)
def read(text: str) -> Reading:
    """Split `text` into prose and formulas, in time linear in its length."""
    text = _ARRAY.sub(" ", DRAWING.sub(" ", text)).replace("\\$", AMOUNT)
    prose: list[str] = []
    formulas: list[str] = []

    def bare(match: re.Match[str]) -> str:
        if not re.search(r"[A-Za-z]", match[0]):
            return match[0]
        formulas.append(compact(match[0]))  # a formula without dollar signs: x^2 + 1 = y
        return f" {FORMULA} "

    for piece, is_formula in _pieces(text):
        if not is_formula:
            prose.append(_BARE.sub(bare, piece))
        elif number := _as_number(piece):
            prose.append(f" {number} ")
        elif spelled := compact(piece):
            formulas.append(spelled)
            prose.append(f" {FORMULA} ")
    return Reading("".join(prose), tuple(formulas), text)


def _pieces(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the text in order, as (piece, True for a formula)."""
    start = 0
    while match := _FORMULAS.search(text, start):
        inside = next(group for group in match.groups() if group is not None)
        if match["inline"] and _is_money(inside, text[match.end() : match.end() + 1]):
            yield text[start : match.start()] + AMOUNT, False
            start = match.start() + 1
        else:
            yield text[start : match.start()], False
            yield inside, True
            start = match.end()
    yield text[start:].replace("$", AMOUNT), False


def _is_money(inside: str, after: str) -> bool:
    """Return True if the dollar before `inside` marks an amount: the text reads as prose."""
    listed = _PROSE_WORD.findall(_MARKED_TEXT.sub(" ", inside))
    words = [word for word in listed if word.lower() not in _FUNCTIONS and not word.isupper()]
    if not re.match(r"\s?\d", inside):
        return len(words) > 5  # an unclosed formula runs into a sentence
    return bool(words) or (inside[-1:].isspace() and after.isdigit())


def _as_number(formula: str) -> str | None:
    """Return a formula that is one number, with or without a unit, as prose, else None."""
    plain = re.sub(r"\^\s*\{?\s*\\circ\s*\}?|\\degree", " degrees ", _THOUSANDS.sub("", formula))
    plain = re.sub(r"\\[dt]?frac\s*(?:\{(\d+)\}|(\d))\s*(?:\{(\d+)\}|(\d))", r" \1\2/\3\4", plain)
    plain = re.sub(r"\^?\s*\{?\\(?:text|mathrm|textrm|rm)\b|\\[,;!: ]|[{}]", " ", plain)
    plain = " ".join(plain.replace("\\%", "%").split()).strip(" .,;:?")
    return plain if _NUMBER.fullmatch(plain) else None


@functools.lru_cache(maxsize=1024)
def compact(formula: str) -> str:
    """Return TeX, Unicode or ASCII in one spelling without spaces: "x^2+1/(2y)", "<="."""
    plain = canonical(_SEPARATOR.sub(";", formula.replace(AMOUNT, " ")))
    plain = squeeze(_RELATION.sub(lambda match: _RELATIONS[match[1]], plain))
    plain = _FRACTION.sub(r"(\1)/(\2)", _SHORT.sub(r"\1{\2}", plain))
    plain = plain.translate(str.maketrans("{}[]", "()()"))
    return _ALONE.sub(r"\1\2", _IDLE.sub("", plain))


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
_VALUE = re.compile(
    rf"""(?P<minus>[-−–]\s?|\b(?:minus|negative)\s)?
    (?:\b(?P<namer>step|part|case|figure|problem|example|question|option|choice|clue)\s
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
_SIGNED = re.compile(r"(?:[=<>,;:]|(?<!\^)\(|[a-z]{2} ) *$")  # before the sign of one number
LONGEST_NUMBER = 200  # characters; int() refuses 4300 digits
_POWER = re.compile(r"\^\{?([23])\}?(?![\d.])")


@dataclass(frozen=True, slots=True)
class Number:
    """An absolute value; a `soft` one may be added or dropped. `negative` is None if in doubt."""

    value: Fraction
    soft: bool = False
    percent: bool = False
    negative: bool | None = False

    @property
    def share(self) -> Fraction:
        return self.value / 100 if self.percent else self.value


def numbers(reading: Reading) -> list[Number]:
    """Return every value; a square or cube in a formula is soft, since prose may name it."""
    formulas = "".join(f" ; {formula}" for formula in reading.formulas).replace(",", " , ")
    prose, literals = (
        filter(None, map(number_of, _VALUE.finditer(text)))
        for text in (reading.prose.lower(), _POWER.sub(" ", formulas))
    )
    values = [replace(number, soft=number.value in (0, 1, 2)) for number in literals]
    if re.search(rf"[-−]\s*{FORMULA}", reading.prose):  # "- 3 < n": outside of the formula
        values = [replace(n, negative=n.negative or None) for n in values]
    powers = [Number(Fraction(power), soft=True) for power in _POWER.findall(formulas)]
    return [*prose, *values, *powers]


def _spelled(words: str) -> int:
    """Return the value of number words; 0 for none and for "thousand hundred"."""
    try:
        return int(text2num(words, "en"))
    except ValueError:
        return 0


def number_of(match: re.Match[str]) -> Number | None:
    """Return the number that a match of `_VALUE` spells; None for n/0 and absurd lengths."""
    number, minus = _unsigned(match), match["minus"]
    if not (number and minus):
        return number
    start, end = match.span()
    before, after = match.string[max(0, start - 9) : start], match.string[end : end + 1]
    sure = minus in "-−" and _SIGNED.search(before) and not re.match(r"[\w(\\^*/+−-]", after)
    return replace(number, negative=True if sure or minus == "negative " else None)


def _unsigned(match: re.Match[str]) -> Number | None:
    parts = match.groupdict("")
    if part := parts["part"]:
        return Number(Fraction(1, _PARTS[part]), soft=not parts["of"] and part != "half")
    if parts["parts"]:
        return Number(Fraction(_spelled(parts["top"]), _PARTS[parts["parts"]]))
    if parts["ordinal"]:
        rank = _ORDINALS[parts["ordinal"]] + _spelled(parts["tens"])
        return Number(Fraction(rank), soft=rank <= 2 or rank >= 100)  # "the nearest hundredth"
    if name := parts["named"]:
        if name.startswith(("half", "quarter")):
            return Number(Fraction(1, _PARTS[name.rstrip("s")]), soft=name != "half")
        return Number(Fraction((_TIMES | _SOFT)[name[:5].rstrip("s")]), soft=name[:5] not in _TIMES)
    if dozen := parts["dozen"]:
        return Number(Fraction(6 if "half" in dozen else 12), soft=dozen == "dozens")
    scaled = bool(parts["scale"] or parts["percent"] or parts["and"])
    if digits := parts["digits"].replace(",", ""):
        *integer, part = digits.split()  # at any white space, as in "3\n1/2"
        denominator = part.partition("/")[2]
        # The denominator may be any script's 0.
        if len(digits) > LONGEST_NUMBER or (denominator and not int(denominator)):
            return None
        value = sum(map(Fraction, integer), Fraction(part))
        small = value <= 2 if parts["th"] else value == 1 and not (parts["money"] or scaled)
        soft = small or digits == "00" or bool(parts["namer"])
    else:
        value = Fraction(_spelled(parts["words"]))
        soft = value <= 2 and not scaled
    value *= _SCALES.get(parts["scale"], 1)
    value += Fraction(1, _PARTS[parts["and"]]) if parts["and"] else 0
    return Number(value, soft, bool(parts["percent"]))


def in_tokens(prose: str) -> str:
    """Return lower-case prose with ``#value`` in place of each number."""

    def token(match: re.Match[str]) -> str:
        number = number_of(match)
        shown = f"#{number.value}{'%' if number.percent else ''}" if number else ""
        return f"{match['minus'] or ''}{match['namer'] or ''} {shown} "

    return _VALUE.sub(token, prose)
