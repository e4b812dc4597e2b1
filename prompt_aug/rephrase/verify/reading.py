r"""A question taken apart: prose, formulas in one spelling, drawings.

A dollar sign opens a formula in MATH and an amount in word problems. It is an amount where no
second sign follows, or where what stands between the two reads as prose. A formula that is only a
number (``$2010$``, ``$20,\!000$``, ``$6\%$``, ``$60^\circ$``) is prose, so that `$5$` and `5` and
"five" are one thing.
"""

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

DRAWING = re.compile(r"\[asy\].*?(?:\[/asy\]|\Z)", re.DOTALL)
# A sum of two numbers may as well be said in words: "47 + 38", "47 plus 38".
_SIGNS = {"+": "plus", "-": "minus", "−": "minus", "×": "times", "*": "times", "÷": "divided by"}
_SUM = re.compile(r"(?<![-+*/=^] )(?<![\w.])(\d+) ([-+−×*÷]) (\d+)(?![\w.]\d| ?[-+*/=^])")
_TIMES = re.compile(r"\\(?:times|cdot)\b")
MOST_NESTED = 8  # fractions in one another that are spelled in a line
_UNICODE = str.maketrans(
    dict(zip("×·⋅∙÷−–°½ⁿ", ("*", "*", "*", "*", "/", "-", "-", " ", "1/2", "^n"), strict=True))
    | dict(zip("√≤≥≠∈", (" \\sqrt ", "<=", ">=", "!=", " in "), strict=True))
    | dict(zip("π∞θαβω", "pi infty theta alpha beta omega".split(), strict=True))
    | dict(zip("⌊⌋⌈⌉λ…′’", ("floor(", ")", "ceil(", ")", "lambda", "...", "'", "'"), strict=True))
)
_LOWERED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ", "0123456789-+n")
_SUPERSCRIPT = re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺ⁿ]+")
_TEX = tuple(
    (re.compile(pattern), spelled)
    for pattern, spelled in (
        (r"\\\\", ";"),
        (r"\\(?:text|mbox|textnormal)\s*\{[^{}]*[a-z]{2}[^{}]*\}", ";"),
        (r"\\(?:text|math)(?:bf|rm|it)?(?![a-zA-Z])", ""),
        (r"\\(?:overline|operatorname|displaystyle|left|right)(?![a-zA-Z])", ""),
        (r"\\(?:cdot|times|,|!|;|:|quad|qquad| )(?![a-zA-Z])", " "),
        (r"\\div(?![a-zA-Z])", "/"),
        (r"\\(?:leq?|leqslant)(?![a-zA-Z])|=<", "<="),
        (r"\\(?:geq?|geqslant)(?![a-zA-Z])", ">="),
        (r"\\neq?(?![a-zA-Z])|\\not\s*=", "!="),
        (r"\\lt(?![a-zA-Z])", "<"),
        (r"\\gt(?![a-zA-Z])", ">"),
        (r"\\lfloor", "floor("),
        (r"\\lceil", "ceil("),
        (r"\\r(?:floor|ceil)", ")"),
        (r"\^?\\circ|\\degree", ""),
        (r"\\l?dots|\\cdots", "..."),
        (r"\\[dt]frac", r"\\frac"),
        (r"&", ""),
    )
)  # fmt: skip
_FRACTION = re.compile(r"\\frac\s*(?:\{([^{}]+)\}|(\w))\s*(?:\{([^{}]+)\}|(\w))")
_ROOT = re.compile(r"\\sqrt\s*(?:\{([^{}]+)\}|\(([^()]+)\))")
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_ATOM = re.compile(r"(?:(?<=[/^])|(?<=sqrt))\(([A-Za-z0-9.]+)\)|(?<![A-Za-z0-9^])\((\w)\)(?=[/^])")
FORMULA = "\ue000"  # stands for a formula in `Reading.prose`; of the private use area
AMOUNT = "\ue001"  # a dollar sign that is money

_DISPLAY = re.compile(
    r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\\\((.+?)\\\)"
    r"|\\begin\{(?:align|equation|gather|eqnarray)\*?\}(.+?)"
    r"\\end\{(?:align|equation|gather|eqnarray)\*?\}",
    re.DOTALL,
)
_MARKED_TEXT = re.compile(r"\\(?:text|textbf|textit|mbox|mathrm|operatorname)\s*\{[^{}]*\}")
_PROSE_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{3,}")
_FUNCTIONS = frozenset("sin cos tan cot sec csc log gcd lcm mod max min det abs exp arcsin".split())
_NUMBER = re.compile(
    r"\\?\$?\s*-?\d+(?:\.\d+)?(?:\s*(?:\\?%|\\degree|\s*/\s*\d+|\s*\\text\{[^{}]*\}))*"
    r"|-?\d*\\frac\{\d+\}\{\d+\}|-?\d*\\frac\d\d|\d+\\text\{(?:st|nd|rd|th)\}"
    r"|\d+\^(?:\{?\\text\{(?:st|nd|rd|th)\}\}?|\{(?:st|nd|rd|th)\})"
)
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}\s*|,\s*\\!\s*|,)(?=\d{3}(?!\d))")
_ARRAY = re.compile(r"\\begin\{(?:tabular|array)\}\{[^{}]*\}|\\end\{(?:tabular|array)\}|\\\\(?=\s)")
_BARE = re.compile(
    r"(?<![\w\\])(?:(?:[A-Za-z]\([a-z]\)|\d*[a-zA-Z](?:\^\{?\d+\}?)?|\d+(?:\.\d+)?)\s*"
    r"(?:[-+*/=<>≤≥−]|<=|>=)\s*)+(?:\d+(?:\.\d+)?[a-zA-Z]?(?:\^\{?\d+\}?)?|[a-zA-Z](?:\^\{?\d+\}?)?)"
    r"(?![\w\\])"
)


@dataclass(frozen=True, slots=True)
class Reading:
    """What a text is made of.

    prose:     the words, with `FORMULA` where a formula stood and no drawings
    formulas:  the formulas in order, each `compact`
    drawings:  the ``[asy]`` blocks, as they stand
    whole:     the text without drawings
    """

    prose: str
    formulas: tuple[str, ...]
    drawings: tuple[str, ...]
    whole: str = ""


@functools.lru_cache(maxsize=256)
def read(text: str) -> Reading:
    """The parts of `text`; linear in its length."""
    drawings = tuple(DRAWING.findall(text))
    text = _ARRAY.sub(" ", DRAWING.sub(" ", text)).replace("\\$", AMOUNT)
    prose: list[str] = []
    formulas: list[str] = []
    for piece, is_formula in _pieces(text):
        if not is_formula:
            prose.append(_bare(_SUM.sub(_spoken, piece), formulas))
            continue
        number = _as_sum(piece) or _as_number(piece)
        if number is not None:
            prose.append(f" {number} ")
        elif spelled := compact(piece):
            formulas.append(spelled)
            prose.append(f" {FORMULA} ")
    return Reading(prose="".join(prose), formulas=tuple(formulas), drawings=drawings, whole=text)


def _pieces(text: str) -> Iterator[tuple[str, bool]]:
    """The text in order, as (piece, is it a formula)."""
    start = 0
    for match in _DISPLAY.finditer(text):
        yield from _inline(text[start : match.start()])
        yield next(group for group in match.groups() if group is not None), True
        start = match.end()
    yield from _inline(text[start:])


def _inline(text: str) -> Iterator[tuple[str, bool]]:
    parts = text.split("$")
    yield parts[0], False
    index = 1
    while index < len(parts):
        inside = parts[index]
        if index + 1 < len(parts) and not _is_money(inside, parts[index + 1]):
            yield inside, True
            yield parts[index + 1], False
            index += 2
        else:
            yield AMOUNT + inside, False
            index += 1


def _is_money(inside: str, after: str) -> bool:
    """Whether the sign before `inside` is an amount's: what follows reads as prose."""
    words = [
        word
        for word in _PROSE_WORD.findall(_MARKED_TEXT.sub(" ", inside))
        if word.lower() not in _FUNCTIONS and not word.isupper()
    ]
    if not re.match(r"\s?\d", inside):
        return len(words) > 5  # an unclosed formula runs into a sentence
    return bool(words) or (inside[-1:].isspace() and after[:1].isdigit())


def _as_sum(formula: str) -> str | None:
    """A formula "a + b" of two numbers, in words; None for any other."""
    plain = _TIMES.sub("×", formula.strip().rstrip(".,;?"))
    return _SUM.sub(_spoken, plain) if _SUM.fullmatch(plain) else None


def _spoken(match: re.Match[str]) -> str:
    one, sign, other = match.groups()
    return f" {one} {_SIGNS[sign]} {other} "


def _as_number(formula: str) -> str | None:
    """A formula that is one number, as prose; None for any other."""
    plain = _THOUSANDS.sub("", formula.replace(AMOUNT, r"\$").strip().rstrip(".,;:?"))
    plain = re.sub(r"\\[,;!: ]", " ", plain).strip()
    plain = re.sub(r"\\(?:mathrm|textrm|rm)\b", r"\\text", plain)
    plain = re.sub(r"\^\s*\{?\s*\\circ\s*\}?", r"\\degree", plain).replace(r"\dfrac", r"\frac")
    if not _NUMBER.fullmatch(plain):
        return None
    plain = plain.replace("\\$", AMOUNT).replace("\\degree", " degrees").replace("\\%", "%")
    plain = re.sub(r"\\text\{([^{}]*)\}", r" \1", plain)
    plain = re.sub(r"\\frac\{(\d+)\}\{(\d+)\}|\\frac(\d)(\d)", _plain_fraction, plain)
    return re.sub(r"(\d)\^?\{?\s*(st|nd|rd|th)\}?", r"\1\2", plain)


@functools.lru_cache(maxsize=1024)
def compact(formula: str) -> str:
    """Return TeX, Unicode or ASCII in one spelling without spaces: "x^2+1/(2y)", "sqrt5", "<="."""
    plain = formula.replace(r"\$", " ").replace(AMOUNT, " ").translate(_UNICODE)
    plain = _SUPERSCRIPT.sub(_raised, _THOUSANDS.sub("", plain))
    for pattern, spelled in _TEX:
        plain = pattern.sub(spelled, plain)
    for _ in range(MOST_NESTED):  # from the inside out
        before, plain = plain, _ROOT.sub(r"sqrt(\1\2)", _FRACTION.sub(_divided, plain))
        if plain == before:
            break
    plain = _COMMAND.sub(r"\1", plain.replace("{", "(").replace("}", ")"))
    plain = re.sub(r"[\s*\\]", "", plain.replace("[", "(").replace("]", ")"))
    return _ATOM.sub(r"\1\2", plain).rstrip(".,;")


def _raised(match: re.Match[str]) -> str:
    return "^{" + match.group().translate(_LOWERED) + "}"


def _divided(match: re.Match[str]) -> str:
    """Return a fraction as it is written in a line: x/2, (x+1)/(x-2)."""
    sides = (match.group(1) or match.group(2), match.group(3) or match.group(4))
    return "/".join(side if re.fullmatch(r"[\w^.]+", side) else f"({side})" for side in sides)


def _plain_fraction(match: re.Match[str]) -> str:
    top, bottom = (group for group in match.groups() if group is not None)
    return f" {top}/{bottom}"


def _bare(prose: str, formulas: list[str]) -> str:
    """Formulas that stand in the prose without dollar signs are formulas too: ``x^2 + 1 = y``."""

    def taken(match: re.Match[str]) -> str:
        found = match.group()
        if not re.search(r"[A-Za-z]", found) or not re.search(r"[=<>^+*/−]", found):
            return found
        formulas.append(compact(found))
        return f" {FORMULA} "

    return _BARE.sub(taken, prose)
