r"""Answers that are not written in TeX: amounts of money, words, typed signs, other brackets.

`currencies` and `amounts` rewrite parts of any text and belong to canonical LaTeX. `whole` rewrites
whole answers ("twenty-one", "3 to 4", "all real numbers", `]1,2[`, a system of cases) and must not
be used on running text.
"""

import re
from fractions import Fraction

TEXT_PATTERN = r"\\text\{[^{}]*\}"  # words in canonical LaTeX
TEXT = re.compile(r"\\text\{([^{}]*)\}")

_SIGN_OF = {r"\$": "dollars", "€": "euros", "£": "sterling", "¥": "yen", "¢": "cents"}
_SIGN_OF |= {r"\euro": "euros", r"\pounds": "sterling", r"\yen": "yen"}
_SIGN = r"(\\\$|[€£¥¢]|\\(?:euro|pounds|yen)(?![a-z])(?:\{\})?)"
_DIGITS = r"-?(?:\d+(?:(?:,|\{,\}|,\\!|\\[,!])\s*\d{3}(?!\d))*(?:\.\d+)?|\.\d+)"
_MAGNITUDE = r"(?:hundred|thousand|million|billion|trillion)"
_MONEY = rf"{_DIGITS}(?:\s*(?:\\text\{{\s*)?{_MAGNITUDE}\b\s*\}}?)?"
# The end of an amount. Before a sign of arithmetic the currency is dropped.
_END = (
    r"(?=\s*(?:$|[,;:.)\]}=$*<>%]|\\[)\]},;:! %\\]"
    r"|\\(?:text|math|quad|qquad|le|ge|lt|gt|approx|cup)|[A-Za-z]{2}))"
)
_PRICE = re.compile(rf"{_SIGN}\s*({_MONEY}){_END}|(?<![\w.}}])({_MONEY})\s*{_SIGN}{_END}")
_ANY_SIGN = re.compile(_SIGN)
_WORDS = re.compile(r"\\(?:text|textbf|textit|textrm|mathrm|mbox)\s*\{[^{}]*\}")
_POWER_OF = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_AMOUNT = re.compile(
    rf"(?<![\w.\\}}^_/,])(\d{{1,15}}(?:,\d{{3}})*(?:\.\d{{1,15}})?)\s*(\\text\{{)?\s*"
    rf"({_MAGNITUDE}(?:\s+{_MAGNITUDE})*)(?![a-zA-Z-])",
    re.IGNORECASE,
)
_ORDINAL = re.compile(
    r"(?:\\text\{\s*)?(\d{1,9})\s*\^?(?:\s|\\text|[{}])*(st|nd|rd|th)[\s}]*", re.IGNORECASE
)
_CURRENCY_OF = {"USD": "dollars", "US": "dollars", "EUR": "euros", "GBP": "sterling", "JPY": "yen"}
_CODE_FIRST = re.compile(
    rf"(?:\\text\{{\s*)?({'|'.join(_CURRENCY_OF)})[\s}}]*({_DIGITS})"
    r"(?:\\text\{ ?dollars\})?[\s}]*"
)
_UNIT_VECTOR = (
    r"(?:(?:\\mathbf\s*\{)?\s*\\(?:hat|vec|overrightarrow)\s*\{?\s*(?:\\text\{)?\s*\\?([ijk])(?:math)?[\s}]*"
    r"|\\text\{\s*(?:\\hat\s*)?([ijk])\s*\})"
)
_COMPONENT = re.compile(
    rf"\s*([+-]?)\s*((?:\([^()]*\)|\{{[^{{}}]*\}}|[^-+(){{}}])*?)\s*(?:\\cdot\s*|\*\s*)?{_UNIT_VECTOR}\s*"
)
_INTEGER = re.compile(
    r"\s*,?\s*(?:\\text\{\s*)?(?:where\s+|for\s+(?:any|all)\s+(?:integers?\s+)?)?\}?\s*\b([kmn])\s*"
    r"(?:\\in\s*\\math(?:bb|bf)\s*\{?\s*Z\s*\}?|\\text\{\s*is an(?:y)? integer\s*\})[\s}.]*$"
)
_FREE = re.compile(r"(?<![\\a-zA-Z])[kmn](?![a-zA-Z])")
_CONSTANT = re.compile(r"\+\s*([Cc])\s*$")
# A remark on a letter: f(x) = 2x \text{ for all } x, all integers n > 3.
_FOR_ALL = re.compile(
    r"(?<=\S)\s*[,;]?\s*(?:\\text\{\s*,?\s*)?(?:for\s+(?:all|any|every|each)(?![a-z])|\\forall)"
    r"(?:\s+(?:real|positive|natural|integers?|numbers?)(?![a-z]))*[\s}]*[a-z]?"
    r"(?:\s*\\in\s*\\math(?:bb|bf)\s*\{?[RZNQ]\}?)?\s*$"
    r"|^\\text\{\s*(?:for\s+)?all(?:\s+(?:real|integers?|numbers?))*\s*\}\s*(?=[a-z]\s*(?:[<>]|\\[lg]e))"
)
_INSIDE = r"(?:[^{}|:]|(?<!\\)\{(?:[^{}|:]|(?<!\\)\{[^{}|:]*\})*\})"  # \frac{\sqrt{3}}{2} too
_BUILDER = re.compile(
    r"\\\{\s*[a-z](?:\s*\\in\s*\\mathbb\s*\{?R\}?)?\s*[|:]"
    rf"\s*({_INSIDE}*(?:[<>]|\\[lg]e){_INSIDE}*)\\\}}"
)
_REALS = re.compile(
    r"(?:[a-z]\s*(?:\\in|=|is)\s*)?(?:the set of )?(?:all|any) reals?(?: numbers?)?(?: [a-z])?",
    re.IGNORECASE,
)
_RATIO_PART = r"\d{1,15}(?:\.\d{1,15})?"
_TO = re.compile(rf"{_RATIO_PART}(?:\s+to\s+{_RATIO_PART}){{1,5}}")
ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    " sixteen seventeen eighteen nineteen"
).split()
TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_VALUES = {w: n for n, w in enumerate(ONES)} | {w: 10 * n for n, w in enumerate(TENS, 2)}
_VALUES |= {f"{ten} {one}": _VALUES[ten] + _VALUES[one] for ten in TENS for one in ONES[1:10]}
_GROUPS = ("", "thousand", "million", "billion", "trillion")
_LETTER_OF = re.compile(r"\s*[A-Za-z]\s*\\in(?![a-zA-Z])\s*")
_BOUNDED = re.compile(r"\s*([\[\]])([^\[\](),;]+[,;][^\[\](),;]+)([\[\]])\s*")
_SYSTEM = re.compile(
    r"(?:\\\{)?\s*\\begin\s*\{(cases|array|aligned)\}(?:\{[lcr|]*\})?((?:(?!\\begin|\\end).)*)"
    r"\\end\s*\{\1\}\s*\.?",
    re.DOTALL,
)
_ASSIGNED = re.compile(r"\s*&?\s*[A-Za-z](?:_\{?\w\}?)?\s*&?\s*=[^=&]+")


def currencies(text: str) -> str:
    r"""Rewrite `\$5` and `5\$` as `5\text{ dollars}`; drop a sign that marks no price."""

    def worded(price: re.Match[str], unit: str) -> str:
        name = _SIGN_OF[(price[1] or price[4]).removesuffix("{}")]
        return (price[2] or price[3]) + unit.format(name)

    if not _ANY_SIGN.search(text):
        return text
    text = _WORDS.sub(lambda m: _PRICE.sub(lambda price: worded(price, " {} "), m[0]), text)
    text = _PRICE.sub(lambda price: worded(price, r"\text{{ {}}}"), text)
    return _ANY_SIGN.sub(" ", text)


def amounts(text: str) -> str:
    r"""Rewrite `3.5\text{ million}` as 3500000; a unit stays: `3500000\text{ cm}`."""

    def number(match: re.Match[str]) -> str:
        power = sum(_POWER_OF[word] for word in match[3].lower().split())
        value = Fraction(match[1].replace(",", "")) * 10**power
        if power > 2 * _POWER_OF["trillion"] or value.denominator != 1:
            return match[0]
        return f"{value.numerator}{match[2] or ''}"

    return re.sub(r"\\text\{\s*\}", " ", _AMOUNT.sub(number, text))


def flat(text: str) -> str:
    r"""Return the text with the words of `\text{...}` as plain ones, and single blanks."""
    return " ".join(TEXT.sub(r" \1 ", text).split())


def whole(text: str) -> str:
    """Rewrite canonical LaTeX that is a whole answer in one of the notations known here."""
    text = _cases(_outward(_FOR_ALL.sub("", text)))
    if (ordinal := _ORDINAL.fullmatch(text)) and _suffix(int(ordinal[1])) == ordinal[2].lower():
        return ordinal[1]
    if price := _CODE_FIRST.fullmatch(text):
        return rf"{price[2]}\text{{ {_CURRENCY_OF[price[1]]}}}"
    text = _components(text)
    if builder := _BUILDER.fullmatch(text):
        text = builder[1]
    words = flat(text).rstrip(".")
    if _REALS.fullmatch(words):
        return r"\mathbb{R}"
    if _TO.fullmatch(words):
        return ":".join(re.split(r"\s+to\s+", words))
    value = _spelled(words.lower())
    return text if value is None else str(value)


def _suffix(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")


def _components(text: str) -> str:
    r"""Return `3\hat{i}+4\hat{j}` as (3,4), with a third component if k occurs; else the text."""
    found: dict[str, str] = {}
    position = 0
    while part := _COMPONENT.match(text, position):
        name = part[3] or part[4]
        if name in found or (found and not part[1]):
            return text
        found[name] = part[1].replace("+", "") + (part[2].strip() or "1")
        position = part.end()
    if position < len(text) or len(found) < 2:
        return text
    return f"({','.join(found.get(name, '0') for name in ('ijk' if 'k' in found else 'ij'))})"


def same_letters(gold: str, prediction: str) -> tuple[str, str]:
    r"""Return both texts, with the gold's letters for a free integer and a constant.

    `n\pi, n\in\mathbb{Z}` answers `k\pi`, and `x^2+c` answers `x^2+C`. Other letters have a
    meaning in the question.
    """
    if r"\pi" in gold and r"\pi" in prediction:
        texts = [_INTEGER.sub("", text) for text in (gold, prediction)]
        letters = [set(_FREE.findall(text)) for text in texts]
        if len(letters[0]) == len(letters[1]) == 1:
            return texts[0], _FREE.sub(letters[0].pop(), texts[1])
    constant, other = _CONSTANT.search(gold), _CONSTANT.search(prediction)
    if constant and other and constant[1] == "C" and other[1] == "c":
        before = prediction[: other.start()]
        if not re.search(r"(?<![\\a-zA-Z])[cC](?![a-zA-Z])", before):
            return gold, f"{before}+C"
    return gold, prediction


def _spelled(words: str) -> int | None:
    """Return the whole number that the words spell, 105 for "one hundred and five", or None."""
    negative = words.startswith(("minus ", "negative "))
    tokens = words.replace("-", " ").split()[negative:]
    total, bound = 0, len(_GROUPS)
    while tokens:
        tokens = tokens[1:] if tokens[0] == "and" and bound < len(_GROUPS) else tokens
        ends = next((i for i, token in enumerate(tokens) if token in _GROUPS), len(tokens))
        scale = _GROUPS.index(tokens[ends]) if ends < len(tokens) else 0
        value = _below_thousand(tokens[:ends])
        if value is None or scale >= bound or (value == 0 and bound < len(_GROUPS)):
            return None
        total, bound, tokens = total + value * 1000**scale, scale, tokens[ends + 1 :]
    if bound == len(_GROUPS):
        return None
    return -total if negative else total


def _below_thousand(tokens: list[str]) -> int | None:
    if tokens[1:2] != ["hundred"]:
        return _VALUES.get(" ".join(tokens))
    rest = tokens[3:] if tokens[2:3] == ["and"] else tokens[2:]
    more = _VALUES.get(" ".join(rest)) if len(tokens) > 2 else 0
    if more is None or tokens[0] not in ONES[1:10]:
        return None
    return 100 * _VALUES[tokens[0]] + more


def _outward(text: str) -> str:
    """Rewrite `]1,2[`, a notation of open intervals, as `(1,2)`."""
    letter = _LETTER_OF.match(text)
    start = letter.end() if letter else 0
    parts = [_BOUNDED.fullmatch(part) for part in re.split(r"\\cup(?![a-z])", text[start:])]
    found = [part for part in parts if part is not None]
    if len(found) < len(parts) or all(part[1] + part[3] == "[]" for part in found):
        return text
    opened, closed = {"[": "[", "]": "("}, {"]": "]", "[": ")"}
    intervals = (f"{opened[part[1]]}{part[2]}{closed[part[3]]}" for part in found)
    return text[:start] + r"\cup ".join(intervals)


def _cases(text: str) -> str:
    r"""Rewrite a system whose rows are all `x = value` as a list of them."""
    if (system := _SYSTEM.fullmatch(text)) is None:
        return text
    rows = [row.strip(" ,;.") for row in re.split(r"\\\\", system[2]) if row.strip(" ,;.")]
    if len(rows) < 2 or not all(map(_ASSIGNED.fullmatch, rows)):
        return text
    return ", ".join(row.replace("&", " ").strip() for row in rows)
