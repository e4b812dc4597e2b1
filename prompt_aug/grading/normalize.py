r"""Canonical LaTeX: one spelling for different notations of the same answer.

Only spelling changes here, never value. `split_unit` interprets words after a number, and
`structure` commas. Every step is a linear pass over a string of bounded length.
"""

import functools
import re
import unicodedata
from operator import methodcaller
from typing import Any

from prompt_aug.grading.evaluate import FUNCTIONS
from prompt_aug.grading.units import UNSURE

TEXT_PATTERN = r"\\text\{[^{}]*\}"  # words in canonical LaTeX
TEXT = re.compile(r"\\text\{([^{}]*)\}")
_SIGNS = {
    **dict.fromkeys("\u2212\u2013\u2014\u2010\u2011\u2012\ufe63", "-"),
    **dict.fromkeys("\u00d7\u2715\u2a2f", r"\times "),
    **dict.fromkeys("\u00b7\u22c5\u2219\u2022", r"\cdot "),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u00ad", ""),
    **dict.fromkeys("\u2019\u2032", "'"),
    **dict.fromkeys("“”", '"'),
    **{chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},  # of full width
    **dict.fromkeys("°º", r"^\circ "),
    **{"℃": r"^\circ\text{C}", "℉": r"^\circ\text{F}"},
    "\u2044": "/",
    **{
        sign: rf"\{name} "
        for sign, name in zip(
            "÷√∞≤≥⩽⩾≦≧≠≈±∪∩∈∅⟨⟩∖αβγδεθλμπρστφωΔΩ",
            "div sqrt infty le ge le ge le ge ne approx pm cup cap in emptyset langle rangle "
            "setminus alpha beta gamma delta epsilon theta lambda mu pi rho sigma tau phi omega "
            "Delta Omega".split(),
            strict=True,
        )
    },
}
_SIGN_TABLE = str.maketrans(_SIGNS)
_RAISED, _LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱ", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎"
_SCRIPTS = re.compile(rf"([{_RAISED}]+)|([{_LOWERED}]+)|[\u00bc-\u00be\u2150-\u215e\u2189]")
# A typed root covers the whole number after it; in TeX \sqrt16 covers one digit.
_TYPED_ROOT = re.compile(r"(?:√|(?<![\\a-zA-Z])sqrt)\s*(\d+(?:\.\d+)?|[a-z](?![a-zA-Z]))")
# TeX does not show these braces: {5}{6} is the number 56.
_IDLE_BRACES = re.compile(r"(?<![a-zA-Z}^_\]\\])(?<![\^_]\d)\{(\d[\d.]*)\}")

# Amounts of money. Before a sign of arithmetic the currency is dropped.
_CURRENCIES = {r"\$": "dollars", "€": "euros", "£": "sterling", "¥": "yen", "¢": "cents"}
_CURRENCY = r"(\\\$|[€£¥¢])"
_MONEY = r"-?(?:\d+(?:(?:,|\{,\}|,\\!|\\[,!])\s*\d{3}(?!\d))*(?:\.\d+)?|\.\d+)"
_END = (
    r"(?=\s*(?:$|[,;:.)\]}=$*<>%]|\\[)\]},;:! %\\]"
    r"|\\(?:text|math|quad|qquad|le|ge|lt|gt|approx|cup)|[A-Za-z]{2}))"
)
_PRICE = re.compile(rf"{_CURRENCY}\s*({_MONEY}){_END}|(?<![\w.}}])({_MONEY})\s*{_CURRENCY}{_END}")

_FONT = "text|textbf|textit|textrm|textnormal|textsf|texttt|emph"
_FONT += "|mathrm|mathbf|mathit|mathsf|mathtt|mbox|hbox"
_FONTS = re.compile(
    rf"\\(?:{_FONT}|operatorname\*?)\s*\{{((?:[^{{}}^]|\^\{{-?\d\}}|\^(?!\{{))*)\}}"
)
_NESTED_FONT = re.compile(rf"\\(?:{_FONT})(?=\s*\{{[^{{}}]*\{{)")
# Of a value: 2\pi\text{m}/\text{s}, but not 2\pi\text{R}/\text{T}.
_RATE = re.compile(r"((?:[\d})]|\\pi(?!\s*\\text\{[A-Z]\}))\s*\\text\{[^{}]*)\}\s*/\s*\\text\{")
_OLD_FONT = re.compile(
    r"\\(?:rm|bf|it|[lL]arge|displaystyle|textstyle|limits|boldsymbol|bm|underline)(?![a-zA-Z])"
    r"|\\(?:text)?color(?:box)?\s*\{[^{}]*\}"
)
# `sub` parses a template even without a match; it calls a function only for matches.
_STEPS: tuple[tuple[re.Pattern[str], Any], ...] = tuple(
    (re.compile(pattern), methodcaller("expand", text) if "\\" in text else text)
    for pattern, text in (
        # Escaped twice, as in tests of Math-Verify: -2 \\le x \\le 7.
        (r"(?<!\\)\\(\\(?:[dt]?frac|sqrt|left|right|[lg]eq?|in|pi|infty|cup|text)\b)", r"\1"),
        (r"\\\\(?:\[[^\]]*\])?", r"\\\\ "),  # the end of a matrix row; `(?<!\\)` below keeps it
        (r"\\(?:[dtcs]|nice)?frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (r"\\(?:[dtcs]|nice)frac(?![a-z])", r"\\frac"),
        (r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
        (r"\\(?:left|right|[bB]igg?[lrm]?|middle)(?![a-zA-Z])\.?", ""),
        (r"\\q?quad(?![a-zA-Z])", " "),
        (r"\\langle(?![a-zA-Z])(.*)\\rangle(?![a-zA-Z])", r"(\1)"),
        (r"(?<=\d)\s*(?:\{\s*,(?:\s|\\[;,:! ])*\}|,\s*\\!)\s*(?=\d{3})", ""),  # thousands
        (r"(?<!\\)\\[!]", ""),
        (r"(?<!\\)\\[,;:> ]|~", " "),
        (r"\\f?box(?:ed)?(?![a-zA-Z])", ""),
        (r"(?<!\\)\\[()]|^\s*\\\[|\\\]\s*$", " "),
        (r"(?<!\\)\$", " "),
        (r"\\leq(?:slant|q)?(?![a-z])|<=", r"\\le "),
        (r"\\geq(?:slant|q)?(?![a-z])|>=", r"\\ge "),
        (r"\\neq(?![a-z])|\\not\s*=|(?<=[a-zA-Z\s])!=", r"\\ne "),
        (r"\\(?:lvert|rvert|vert|mid)(?![a-z])", "|"),
        (r"\\varnothing(?![a-zA-Z])", r"\\emptyset"),
        (r"\\(?:dots|ldots|cdots)(?![a-z])", "..."),
        (r"\^\s*(?:\{\s*)?\\(?:circ|degree)(?![a-z])\s*\}?|\\degree(?![a-z])", r"\\degree "),
        (r"\^\s*\{\s*\\prime\s*\\prime\s*\}", "''"),
        (r"\^\s*(?:\{\s*\\prime\s*\}|\\prime(?![a-z]))", "'"),
        # 28 pct: tests of Math-Verify
        (r"\\%|\s*(?<![a-zA-Z])(?:per ?cent|pct\.?)(?![a-zA-Z])", "%"),
        (r"\\(?:simeq|approxeq|doteq)(?![a-zA-Z])", r"\\approx "),
        (r"(?<![\\a-zA-Z])(sqrt|pi|(?:arc)?(?:sin|cos|tan)|exp|log|ln|frac)(?![a-zA-Z])", r"\\\1"),
        (r"\{([^{}\\]+)\\choose(?![a-z])([^{}\\]+)\}", r"\\binom{\1}{\2}"),
        (r"\\mathrm\s+([a-zA-Z])(?![a-zA-Z])", r"\\mathrm{\1}"),
        # "72", 21st, 5^{\text{th}}
        (r'^\s*"([^"]*)"\s*$|^\s*(\d+)(?:st|nd|rd|th)\s*$', r"\1\2"),
        (r"(?<=\d)\s*\^\s*\{\s*\\(?:text|mathrm)\s*\{\s*(?:st|nd|rd|th)\s*\}\s*\}", ""),
        (r"^([^=]+=.*?),?\s*\\text\s*\{,?\s*for all(?: real)?\s*\}?\s*[a-z]\}?\s*$", r"\1"),
        (r",?\s*\\text\s*\{,?\s*where\s*\}\s*\w\s*\\text\s*\{\s*is an? constant\s*\}\s*$", ""),
        (r"(?<=\d)[eE]([+-]?\d{1,4})(?!\d|\.\d)", r"\\times 10^{\1}"),
        (r"(?<=\d)\s*[xX]\s*(?=10\s*\^)", r"\\times "),
        (r"\*\*(?=[\s({\d-]|[a-z](?![a-zA-Z]))", "^"),
        # A typed fraction before a blank is a factor: 1/2 x. 1/2x stays ambiguous.
        (
            r"(?<![\w.)\]}/^])(?<!\d\s)(\d+)/(\d+)(?=\s+(?:[a-zA-Z]\b|\(|\\(?:pi|sqrt)))",
            r"\\frac{\1}{\2}",
        ),
        (r"\s+", " "),
        # The same value once more: \frac12 (or 0.5), \frac12 (=0.5), \frac12\text{ (0.5)}.
        (
            r"(?<=[\d}!]) ?(?:\\text ?\{ ?\((?:or |= ?)?|\( ?(?:\\text ?\{ ?or ?\}|or\b|=)) ?"
            r"(-?(?:[\d./]+|\\frac\{\d+\}\{\d+\})) ?\) ?\}?$",
            r" or \1",
        ),
    )
)
# Keeps an ellipsis, except after a decimal: "5, ..." is not 5.
_TRAILING = re.compile(r"(?<![\s.,;:])(?![\s.,;:]*\.{3})[\s.,;:]+$")
_ACCENTED = re.compile(r"(\\(?:mathbb|mathcal|vec|hat|bar|tilde|d?dot|overline))\{(\w|\\[a-z]+)\}")
_SHORT_SCRIPT = re.compile(r"([\^_])\{(\w)\}")
# Remarks in brackets after an answer; golds and answers of MathArena have "(about 18.9 cards)".
_NEAR = re.compile(
    r"(?:or |i\.e\.,? ?)?(?:about|approx(?:imately)?\.?|around|roughly|nearly|\\approx):? ?"
    r"([-+]?[\d.,]*\d(?: ?\\times ?10\^ ?-?\d+)?%?) ?([A-Za-z][A-Za-z .]*)?"
)
_REASON = re.compile(r"(?:since|because|as|where)\b")
_REMARK = re.compile(r"(?=.*[A-Za-z]{4}|in )[A-Za-z]{2,}(?: [A-Za-z]+)*")
_TYPED = re.compile(r"(\^|\\sqrt(?:\[\w+\])?)\s*(\((?:[^()]|\([^()]*\))*\))")  # 2^(n+1), \sqrt(x)
# TeX without braces, as in answers of MathArena: an argument is one token.
_PIECE = re.compile(r"\\[a-zA-Z]+|\s+|\\?.", re.DOTALL)
_ARGUMENTS = {r"\frac": 2, r"\binom": 2, r"\sqrt": 1, "^": 1, "_": 1}
_BRACKETS = re.compile(r"[{(\[)\]}]")
_BRACKET = re.compile(r"\\[\\{}]|[{}()\[\]]")
_CHOICE_MARK = re.compile(r"^\s*(?:\\text\{)?\s*[A-Ja-j]\s*\)(?=[^)]*$)")


@functools.lru_cache(maxsize=4096)  # hundreds of responses share a gold
def canonical(text: str) -> str:
    r"""Return canonical LaTeX. Words stay in `\text{...}`; everything else loses its font."""
    text = _PRICE.sub(_price, unicodedata.normalize("NFC", text))
    text = _TYPED_ROOT.sub(r"\\sqrt{\1}", re.sub(_CURRENCY, " ", text))
    text = _SCRIPTS.sub(_script, text).translate(_SIGN_TABLE)
    text = _OLD_FONT.sub(" ", text.strip().strip("*`"))
    for pattern, replacement in _STEPS:
        text = pattern.sub(replacement, text)
    text = _FONTS.sub(_text, text)
    text = _RATE.sub(r"\1/", _NESTED_FONT.sub("", text))
    while "{" in text and (shown := _IDLE_BRACES.sub(r"\1", text)) != text:
        text = shown
    return remark_as_unit(_TRAILING.sub("", text).strip())


def remark_as_unit(text: str) -> str:
    r"""Return `\frac{41}{6}\text{ (about }6.8\text{ m)}` as `\frac{41}{6}\approx 6.8\text{ m}`.

    Other words in brackets become words after the value, as a unit; "(since x > 0)" is dropped.
    """
    if (start := text.rfind("(")) < 1:
        return text
    inside = " ".join(re.sub(r"\\text\{|[{}]", " ", text[start + 1 :]).split())
    value = text[:start].rstrip()
    if not value or inside.find(")") != len(inside) - 1:
        return text
    closing = "}" * (value.count("{") - value.count("}"))
    value = value.removesuffix(r"\text{") if value.endswith(r"\text{") else value + closing
    if near := _NEAR.fullmatch(inside[:-1].strip()):
        return rf"{value}\approx {near[1]}" + (rf"\text{{ {near[2]}}}" if near[2] else "")
    if _REASON.match(inside) and not UNSURE.search(inside):
        return value
    worded = _REMARK.fullmatch(inside[:-1]) and value[-1:] in "0123456789)]}%"
    return rf"{value}\text{{ {inside[:-1]}}}" if worded else text


def braced(text: str) -> str:
    r"""Put arguments in braces, for latex2sympy: `\frac{n(n-1)}2`, `\sqrt y`, `2^(n+1)`."""
    tokens = _PIECE.findall(_TYPED.sub(r"\1{\2}", text))[::-1]

    def piece() -> str:
        token = tokens.pop()
        if token == "{":
            while tokens and tokens[-1] != "}":
                token += piece()
            return token + (tokens.pop() if tokens else "")
        if token == r"\sqrt" and tokens[-1:] == ["["]:
            while tokens and token[-1] != "]":
                token += tokens.pop()
        for _ in range(_ARGUMENTS.get(token.partition("[")[0], 0)):
            while tokens and tokens[-1].isspace():
                tokens.pop()
            if not tokens or tokens[-1] in "})(" or (token in "^_" and tokens[-1][0] != "\\"):
                break  # 2^-3
            argument = piece()
            token += argument if argument[0] == "{" else f"{{{argument}}}"
        return token

    return "".join(iter(lambda: piece() if tokens else "", ""))


def _price(match: re.Match[str]) -> str:
    r"""Return `\$5` as `5\text{ dollars}`."""
    return rf"{match[2] or match[3]}\text{{ {_CURRENCIES[match[1] or match[4]]}}}"


def _script(match: re.Match[str]) -> str:
    """Return raised and lowered digits as a script, and `⅝` as a fraction."""
    plain = unicodedata.normalize("NFKC", match[0]).replace("\u2212", "-")
    if match[1] or match[2]:
        return f"{'^' if match[1] else '_'}{{{plain}}}"
    top, _, bottom = plain.partition("\u2044")
    return rf"\frac{{{top}}}{{{bottom}}}"


def _text(match: re.Match[str]) -> str:
    words = " ".join(re.sub(r"\^\{(-?\d)\}", r"^\1", match[1]).split())
    if words.strip(" ,") in ("", "and", "or"):
        return f" {words.strip(' ,')} "
    if words in FUNCTIONS or words in ("e", "i"):
        return f" {words} "
    if measured := re.fullmatch(r"(-?\d[\d.,]*) ([A-Za-z]\D*)", words):
        return rf"{measured[1]}\text{{ {measured[2]}}}"
    return words if re.fullmatch(r"(?:[a-z] ?=)?[\d\W]+", words) else rf"\text{{{words}}}"


def flat(text: str) -> str:
    r"""Return the text with the words of `\text{...}` as plain ones, and single blanks."""
    return " ".join(TEXT.sub(r" \1 ", text).split())


def end_of_group(text: str, start: int) -> int:
    """Return the position after the bracket that closes the one at `start`; -1 if none does."""
    level = 0
    for match in _BRACKETS.finditer(text, start):
        level += (match[0] in "{([") - (match[0] in "})]")
        if level == 0:
            return match.end()
    return -1


def squeeze(text: str) -> str:
    r"""Return the spelling to compare: spaces only between digits, no idle braces."""
    text = _TRAILING.sub("", TEXT.sub(r" \1 ", text))
    text = re.sub(r"\s+(?!\d)|(?<!\d)\s+", "", text)
    return _ACCENTED.sub(r"\1\2", _SHORT_SCRIPT.sub(r"\1\2", text))


def is_balanced(text: str) -> bool:
    r"""Return whether braces close in order and as many brackets open as close, as in `(1,2]`.

    The bracket of a choice, `B) 12`, does not count.
    """
    level = brackets = 0
    for match in _BRACKET.finditer(_CHOICE_MARK.sub("", text)):
        level += {"{": 1, "}": -1}.get(match[0], 0)
        brackets += {"(": 1, "[": 1, ")": -1, "]": -1}.get(match[0], 0)
        if level < 0:
            return False
    return level == 0 == brackets
