r"""One spelling for what means the same: from the answer as written to canonical LaTeX.

Only spelling changes here (fonts, spacing, delimiters, Unicode signs, `\dfrac`, words for
symbols), never value. What a word after a number means is `split_unit`'s business, what a comma
means is `structure`'s. Every step is a linear pass over a string of bounded length.
"""

import re
import unicodedata

_SIGNS = {
    **dict.fromkeys("\u2212\u2013\u2014\u2010\u2011\u2012\ufe63", "-"),
    **dict.fromkeys("\u00d7\u2715\u2a2f", r"\times "),
    **dict.fromkeys("\u00b7\u22c5\u2219\u2022", r"\cdot "),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u00ad", ""),
    **dict.fromkeys("\u2019\u2032", "'"),
    **dict.fromkeys("“”", '"'),
    "÷": r"\div ",
    "√": r"\sqrt ",
    "∞": r"\infty ",
    "°": r"^\circ ",
    "≤": r"\le ",
    "≥": r"\ge ",
    "≠": r"\ne ",
    "≈": r"\approx ",
    "±": r"\pm ",
    "\u222a": r"\cup ",
    "∩": r"\cap ",
    "\u2208": r"\in ",
    "∅": r"\emptyset ",
    "⟨": r"\langle ",
    "⟩": r"\rangle ",
    "\u2216": r"\setminus ",
    "²": "^{2}",
    "³": "^{3}",
    "½": r"\frac{1}{2}",
    "¼": r"\frac{1}{4}",
    "¾": r"\frac{3}{4}",
    "⅓": r"\frac{1}{3}",
    "⅔": r"\frac{2}{3}",
    "€": r"\$",
    "£": r"\$",
    **{
        sign: rf"\{name} "
        for sign, name in zip(
            "\u03b1\u03b2\u03b3\u03b4\u03b5\u03b8\u03bb\u03bc\u03c0\u03c1\u03c3\u03c4\u03c6\u03c9\u0394\u03a9",
            [
                "alpha",
                "beta",
                "gamma",
                "delta",
                "epsilon",
                "theta",
                "lambda",
                "mu",
                "pi",
                "rho",
                "sigma",
                "tau",
                "phi",
                "omega",
                "Delta",
                "Omega",
            ],
            strict=True,
        )
    },
}
_SIGN_TABLE = str.maketrans(_SIGNS)
_SQUARE_METRES = re.compile(r"(?<=\d)\s?([ckm]?m)(?=[²³])")  # nobody writes a variable so

_FONT = r"text|textbf|textit|textrm|textnormal|textsf|mathrm|mathbf|mathit|mathsf|mbox|hbox"
_TEXT = re.compile(rf"\\(?:{_FONT}|operatorname\*?)\s*\{{([^{{}}]*)\}}")
_ESCAPED_TWICE = "boxed|text|d?frac|sqrt|left|right|leq?|geq?|pi|cdot|infty|cup"  # by an export
_OLD_FONT = re.compile(r"\\(?:rm|bf|it|displaystyle|textstyle|limits|boldsymbol|bm)(?![a-zA-Z])")
_STEPS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (rf"(?<!\\)\\(\\(?:{_ESCAPED_TWICE})(?![a-zA-Z]))", r"\1"),
        (r"(?<=\d)or(?=[A-Za-z](?:\([a-z]\))?\s*=)", " or "),
        (r"\\\\(?:\[[^\]]*\])?", r"\\\\ "),  # a row of a matrix keeps its mark: see below
        (r"\\[dtc]frac(?![a-z])", r"\\frac"),
        (r"\\(?:left|right|[bB]igg?[lrm]?|middle)(?![a-zA-Z])\.?", ""),
        (r"\\(?:quad|qquad|hspace\{[^{}]*\}|phantom|hfill|thinspace)(?![a-zA-Z])", " "),
        (r"(?<=\d)(?:\{,\}|,\s*\\!)\s*(?=\d{3})", ""),  # a typeset thousands comma is no list
        (r"(?<!\\)\\[!]", ""),
        (r"(?<!\\)\\[,;:> ]|~", " "),
        (r"\\f?box(?:ed)?(?![a-zA-Z])", ""),
        (r"(?<!\\)\\[()]|^\s*\\\[|\\\]\s*$", " "),
        (r"(?<!\\)\$", " "),
        (r"\{,\}", ","),
        (r"^\s*\\approx(?![a-zA-Z])", ""),
        (r"\\(?:leqslant|leq)(?![a-z])", r"\\le"),
        (r"\\(?:geqslant|geq)(?![a-z])", r"\\ge"),
        (r"\\neq(?![a-z])|\s!=", r"\\ne "),
        (r"<=", r"\\le "),
        (r">=", r"\\ge "),
        (r"\\math(?:rm|it)\{([ei])\}", r"\1"),
        (r"\\(?:lbrace|\{)", r"\\{"),
        (r"\\(?:rbrace|\})", r"\\}"),
        (r"\\(?:lvert|rvert|vert|mid)(?![a-z])", "|"),
        (r"\\(?:varnothing|O)(?![a-zA-Z])", r"\\emptyset"),
        (r"\\(?:dots|ldots|cdots)(?![a-z])", "..."),
        (r"\\land(?![a-z])|\\wedge(?![a-z])", " and "),
        (r"\\lor(?![a-z])|\\vee(?![a-z])", " or "),
        (r"\^\s*(?:\{\s*)?\\(?:circ|degree)(?![a-z])\s*\}?|\\degree(?![a-z])", r"\\degree "),
        (r"\^\s*(?:\{\s*\\prime\s*\}|\\prime(?![a-z]))", "'"),
        (r"\\%", "%"),
        (r"\s*(?:\bpercentage points?|\bpercent(?:age)?|\bpct\.?)(?![a-zA-Z])", "%"),
        (r"\binfinity\b|(?<![\\a-zA-Z])inf(?:ty)?\b", r"\\infty "),
        (r"(?<![\\a-zA-Z])(sqrt|pi|sin|cos|tan|log|ln|frac)(?![a-zA-Z])", r"\\\1"),
        (r"(?<=\d)e([+-]?\d{1,4})(?![\d.])", r"\\times 10^{\1}"),
        (r"(?<=\d)\s*[xX]\s*(?=10\s*\^)", r"\\times "),
        (r"\*\*(?=[\s({\d-])", "^"),
        (r"\s+", " "),
    )
)
_TRAILING = re.compile(r"[\s.,;:]+$")
_GAP = re.compile(r"(?<![\d\\a-zA-Z}]) | (?![\d\\a-zA-Z{(])|(?<=[^\d]) (?=\\)")
_SHORT_SCRIPT = re.compile(r"([\^_])\{(\w)\}")

_UNITS = {
    "degree": "degree degrees deg \\degree",
    "cm": "cm centimeter centimeters centimetre centimetres",
    "mm": "mm millimeter millimeters",
    "m": "m meter meters metre metres",
    "km": "km kilometer kilometers kilometre kilometres",
    "in": "in inch inches",
    "ft": "ft foot feet",
    "yd": "yd yard yards",
    "mi": "mi mile miles",
    "s": "s sec secs second seconds",
    "min": "min mins minute minutes",
    "h": "h hr hrs hour hours",
    "day": "day days",
    "week": "week weeks",
    "month": "month months",
    "year": "yr yrs year years",
    "g": "g gram grams",
    "kg": "kg kilogram kilograms",
    "lb": "lb lbs pound pounds",
    "oz": "oz ounce ounces",
    "dollar": "dollar dollars usd",
    "cent": "cent cents",
    "mph": "mph",
    "l": "l liter liters litre litres",
    "gal": "gal gallon gallons",
    "unit": "unit units",
    "rad": "rad radian radians",
    "Hz": "hz hertz",
    "eV": "ev",
    "MeV": "mev",
    "nm": "nm",
    "J": "joule joules",
    "mol": "mol moles",
}
_UNIT_OF = {name: unit for unit, names in _UNITS.items() for name in names.split()}
# Only words of these lengths can be a unit without \text: "2 xy" and "3 RC" are products.
_PLAIN_UNITS = frozenset(name for name in _UNIT_OF if len(name) > 1 and name.isalpha())
_LETTERS = re.compile(r"[a-z]+")
_MIN_UNKNOWN_WORD = 4
_WORD_TAIL = re.compile(r"\s*((?<![\\a-zA-Z])[A-Za-z][A-Za-z .,/'-]*(?:\^\{?-?\d\}?)?)$")
_TEXT_TAIL = re.compile(r"\s*\\text\{([^{}]*)\}\s*(\^\{?-?\d\}?)?\s*$")


def canonical(text: str) -> str:
    r"""Canonical LaTeX; text stays marked as `\text{...}`, everything else loses its font."""
    text = _SQUARE_METRES.sub(r"\\text{ \1}", unicodedata.normalize("NFC", text))
    text = text.translate(_SIGN_TABLE)
    text = "".join(_fullwidth(char) for char in text)
    text = text.strip().strip("*").replace("\\$", " ")
    text = _OLD_FONT.sub(" ", text)
    for pattern, replacement in _STEPS:
        text = pattern.sub(replacement, text)
    text = _TEXT.sub(_text, text)
    return _TRAILING.sub("", text).strip()


def _fullwidth(char: str) -> str:
    return unicodedata.normalize("NFKC", char) if "\uff01" <= char <= "\uff5e" else char


def _text(match: re.Match[str]) -> str:
    words = " ".join(match.group(1).split())
    if not words:
        return " "
    if words.rstrip(",") in ("and", "or", ", and", ", or"):
        return " and "
    return words if re.fullmatch(r"[\d\W]+", words) else rf"\text{{{words}}}"


def squeeze(text: str) -> str:
    r"""The spelling compared for equality: no spaces but between two digits, no idle braces."""
    text = _TRAILING.sub("", re.sub(r"\\text\{([^{}]*)\}", r" \1 ", text))
    text = re.sub(r"\s+(?!\d)|(?<!\d)\s+", "", text)
    return _SHORT_SCRIPT.sub(r"\1\2", text)


def split_unit(text: str) -> tuple[str, str | None]:
    r"""(the text without what is measured, the unit): `80\text{ cents}` gives ("80", "cent").

    The unit is None where there is none; "" where it is a word that the table does not know
    ("apples") or several units: such a one cannot contradict another. "cm^2" carries its power.
    """
    rest, words = text, ""
    while match := _TEXT_TAIL.search(rest):
        words = " ".join((match.group(1), match.group(2) or "", words))
        rest = rest[: match.start()]
    if not words and (match := _WORD_TAIL.search(rest)) and _is_unit_phrase(match.group(1)):
        words, rest = match.group(), rest[: match.start()]
    if rest.rstrip().endswith("\\degree"):
        words, rest = "degrees", rest.rstrip().removesuffix("\\degree")
    if not words or not rest.strip():
        return text, None
    known = {_UNIT_OF[word] for word in _LETTERS.findall(words.lower()) if word in _UNIT_OF}
    if len(known) != 1:
        return rest.strip(), ""
    power = re.search(r"\^\s*\{?\s*(-?\d)", words)
    named = re.search(r"\b(?:(sq)|(cu))", words.lower())
    return rest.strip(), known.pop() + (
        "^" + power[1] if power else ("^2" if named[1] else "^3") if named else ""
    )


def units_contradict(one: str | None, other: str | None) -> bool:
    """cm against m, cm^2 against cm^3; a unit or a power that is left out contradicts nothing."""
    if not one or not other:
        return False
    (name, _, power), (other_name, _, other_power) = one.partition("^"), other.partition("^")
    return name != other_name or bool(power and other_power and power != other_power)


def _is_unit_phrase(words: str) -> bool:
    parts = re.findall(r"[A-Za-z]+", words)
    return all(
        part.lower() in _PLAIN_UNITS
        or len(part) >= _MIN_UNKNOWN_WORD
        or part in ("of", "per", "sq")
        for part in parts
    ) and not words.startswith("and")
