r"""Canonical LaTeX: one spelling for different notations of the same answer.

Only spelling changes here, never value. `split_unit` interprets words after a number, and
`structure` commas. Every step is a linear pass over a string of bounded length.
"""

import functools
import re
import unicodedata

from prompt_aug.grading.notation import TEXT, amounts, currencies

_SIGNS = {
    **dict.fromkeys("\u2212\u2013\u2014\u2010\u2011\u2012\ufe63", "-"),
    **dict.fromkeys("\u00d7\u2715\u2a2f", r"\times "),
    **dict.fromkeys("\u00b7\u22c5\u2219\u2022", r"\cdot "),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u00ad", ""),
    **dict.fromkeys("\u2019\u2032", "'"),
    **dict.fromkeys("“”", '"'),
    **{chr(code): chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F)},  # of full width
    "°": r"^\circ ",
    "\u2044": "/",
    **{
        sign: rf"\{name} "
        for sign, name in zip(
            "÷√∞≤≥≠≈±∪∩∈∅⟨⟩∖αβγδεθλμπρστφωΔΩ",
            "div sqrt infty le ge ne approx pm cup cap in emptyset langle rangle setminus alpha "
            "beta gamma delta epsilon theta lambda mu pi rho sigma tau phi omega Delta "
            "Omega".split(),
            strict=True,
        )
    },
}
_SIGN_TABLE = str.maketrans(_SIGNS)
_RAISED, _LOWERED = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱ", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎"
_SCRIPTS = re.compile(rf"([{_RAISED}]+)|([{_LOWERED}]+)|[\u00bc-\u00be\u2150-\u215e\u2189]")
# A typed root covers the whole number after it; in TeX \sqrt16 covers one digit.
_TYPED_ROOT = re.compile(r"(?:√|(?<![\\a-zA-Z])sqrt)\s*(\d+(?:\.\d+)?|[a-z](?![a-zA-Z]))")
_INVISIBLE = re.compile(
    r"\\[hv]?phantom\s*(?:\{[^{}]*\}|\\[a-zA-Z]+|[^\s{])|\\[hv]space\*?\s*\{[^{}]*\}"
)
_TYPED_BINOM = re.compile(r"\{([^{}\\]{1,60})\\choose(?![a-z])([^{}\\]{1,60})\}")
_BASE_IN_WORDS = re.compile(
    r"(?:\(\s*(\d+)\s*\)\s*_\s*\{?\s*|(?<![\w.])(\d+)(?:\s|\\[a-z]+\{|\})*base[\s{}]*)"
    r"(\d{1,2})(?!\d)[\s}]*$"
)
# TeX does not show these braces: {5}{6} is the number 56.
_IDLE_BRACES = re.compile(r"(?<![a-zA-Z}^_\]\\])\{(\d[\d.]*)\}")
_SQUARE_METRES = re.compile(r"(?<=\d)\s?([ckm]?m)(?=[²³])")  # never a variable

_FONT = r"text|textbf|textit|textrm|textnormal|textsf|mathrm|mathbf|mathit|mathsf|mbox|hbox"
_FONTS = re.compile(rf"\\(?:{_FONT}|operatorname\*?)\s*\{{([^{{}}]*)\}}")
# Some exports of data sets double the backslash of these.
_ESCAPED_TWICE = "boxed|text|d?frac|sqrt|left|right|leq?|geq?|pi|cdot|infty|cup|begin|end"
_SIZES = "tiny|small|normalsize|large|Large|LARGE|huge|Huge"
_OLD_FONT = re.compile(r"\\(?:rm|bf|it|displaystyle|textstyle|limits|boldsymbol|bm)(?![a-zA-Z])")
# Between two values a wide gap separates items, elsewhere it is a blank.
_GAP_OF_A_LIST = (
    r"(?<=[\w})\]!])\s*\\q?quad(?![a-zA-Z])\s*"
    r"(?=[\w{(\[+-]|\\(?:[dt]?frac|sqrt|pi|\{)(?![a-z]))"
)
_STEPS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (rf"(?<!\\)\\(\\(?:{_ESCAPED_TWICE})(?![a-zA-Z]))", r"\1"),
        (r"(?<=\d)or(?=[A-Za-z](?:\([a-z]\))?\s*=)", " or "),
        (r"\\\\(?:\[[^\]]*\])?", r"\\\\ "),  # the end of a matrix row; `(?<!\\)` below keeps it
        (r"\\(?:[dtcs]|nice)frac(?![a-z])", r"\\frac"),
        (rf"\\(?:{_SIZES})(?![a-zA-Z])|\\(?:text)?color\s*\{{[^{{}}]*\}}", " "),
        (r"\\underline(?=\s*\{)|^\s*\\therefore(?![a-zA-Z])", ""),
        (r"\\log\s*_\s*(?:e(?![a-zA-Z])|\{\s*e\s*\})", r"\\ln "),
        (r"\\(?:checkmark|(?:black)?square|Box|qed(?:symbol|here)?)\s*$", ""),
        (r"\\(?:left|right|[bB]igg?[lrm]?|middle)(?![a-zA-Z])\.?", ""),
        (_GAP_OF_A_LIST, ", "),
        (r"\\(?:quad|qquad|hspace\{[^{}]*\}|phantom|hfill|thinspace)(?![a-zA-Z])", " "),
        (r"(?<=\d)\s*(?:\{\s*,(?:\s|\\[;,:! ])*\}|,\s*\\!)\s*(?=\d{3})", ""),  # thousands
        (r"(?<!\\)\\[!]", ""),
        (r"(?<!\\)\\[,;:> ]|~", " "),
        (r"\\f?box(?:ed)?(?![a-zA-Z])", ""),
        (r"(?<!\\)\\[()]|^\s*\\\[|\\\]\s*$", " "),
        (r"(?<!\\)\$", " "),
        (r"\{,\}", ","),
        (r"^\s*\\approx(?![a-zA-Z])", ""),
        (r"\\(?:leqslant|leq)(?![a-z])", r"\\le"),
        (r"\\(?:geqslant|geq)(?![a-z])", r"\\ge"),
        (r"\\neq(?![a-z])|\\not\s*=|(?<=[a-zA-Z\s])!=", r"\\ne "),
        (r"<=", r"\\le "),
        (r">=", r"\\ge "),
        (r"\\math(?:rm|it)\{([ei])\}", r"\1"),
        (r"\\(?:lbrace|\{)", r"\\{"),
        (r"\\(?:rbrace|\})", r"\\}"),
        (r"\((?:\s|\\[a-z]+\{)*mod(?:ulo)?[\s}]*(\d+)\s*\)", r"\\pmod{\1}"),
        (r"(?<=\d)(?:\s|\\[a-z]+\{)+mod(?:ulo)?[\s}]+(?=\d)", r" \\bmod "),
        (r"\\(?:lvert|rvert|vert|mid)(?![a-z])", "|"),
        (r"\\(?:varnothing|O)(?![a-zA-Z])", r"\\emptyset"),
        (r"\\(?:dots|ldots|cdots)(?![a-z])", "..."),
        (r"\\land(?![a-z])|\\wedge(?![a-z])", " and "),
        (r"\\lor(?![a-z])|\\vee(?![a-z])", " or "),
        (r"\^\s*(?:\{\s*)?\\(?:circ|degree)(?![a-z])\s*\}?|\\degree(?![a-z])", r"\\degree "),
        (r"(?<=[\d}])\s*\\deg(?![a-zA-Z])(?!\s*[\w(\\])", r"\\degree "),
        (r"\^\s*(?:\{\s*\\prime\s*\}|\\prime(?![a-z]))", "'"),
        (r"\\%", "%"),
        (r"\s*(?:\bpercentage points?|\bper\s?cent(?:age)?|\bpct\.?)(?![a-zA-Z])", "%"),
        (r"\binfinity\b|(?<![\\a-zA-Z])inf(?:ty)?\b", r"\\infty "),
        (r"(?<![\\a-zA-Z])(sqrt|pi|sin|cos|tan|log|ln|frac)(?![a-zA-Z])", r"\\\1"),
        (r"(?<=\d)[eE]([+-]?\d{1,4})(?!\d|\.\d)", r"\\times 10^{\1}"),
        (r"\\langle(?![a-zA-Z])(.*)\\rangle(?![a-zA-Z])", r"(\1)"),
        (r"(?<=\d)\s*[xX]\s*(?=10\s*\^)", r"\\times "),
        (r"\*\*(?=[\s({\d-])", "^"),
        # A typed fraction before a blank is a factor: 1/2 x. 1/2x stays ambiguous.
        (
            r"(?<![\w.)\]}/^])(?<!\d\s)(\d+)/(\d+)(?=\s+(?:[a-zA-Z](?![a-zA-Z])|\(|\\(?:pi|sqrt|frac)(?![a-z])))",
            r"\\frac{\1}{\2}",
        ),
        (r"\s+", " "),
    )
)
# Keeps an ellipsis, except after a decimal: "5, ..." is not 5.
_TRAILING = re.compile(r"(?<![\s.,;:])(?![\s.,;:]*\.{3})[\s.,;:]+$")
_MORE_DIGITS = re.compile(r"(?<=\d)(\.\d+)\s*\.{3}\s*$")
_SHORT_SCRIPT = re.compile(r"([\^_])\{(\w)\}")
_UPRIGHT_INDEX = re.compile(r"_\{\s*\\text\{\s*([A-Za-z])\s*\}\s*\}")
# 0.1\overline{6}, 0.(6), and 0.1666...: a block three times and dots
_REPEATING = re.compile(
    r"(?<![\d.])(\d{0,12})\.(\d{0,12}?)"
    r"(?:\\(?:overline|bar|dot)\s*\{?(\d{1,12})\}?|(\d{1,6}?)\4{2,}\s*\.\.\.|(?<=\.)\((\d{1,12})\))(?![\d{])"
)
_COUNTED = re.compile(r"([A-Za-z][A-Za-z .'-]*?)(\s*,(?:\s*and)?|\s+and)")  # 2 boys, [3 girls]
_MEASURED = re.compile(r"(-?\d[\d.,]*) ([A-Za-z][^\d]*)")  # a number with its unit
_ARGUMENTS = {r"\frac": 2, r"\sqrt": 1, r"\binom": 2, "^": 1, "_": 1}
_ATOM = re.compile(r"\s*(\\[a-zA-Z]+|\\.|[^\s{}])", re.DOTALL)
_NEEDS_BRACES = re.compile(
    r"\\(?:frac|sqrt|binom)(?![a-zA-Z])\s*[^{\s]|\}\s*[^\s{]|[\^_]\s*\\|\^\s*\("
)
_MAX_BRACED = 40
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_BRACKETS = re.compile(r"[{(\[)\]}]")
_BRACKET = re.compile(r"\\[\\{}]|[{}()\[\]]")
_CHOICE_MARK = re.compile(r"^\s*(?:\\text\{)?\s*[A-Ja-j]\s*\)(?=[^)]*$)")


def _script(match: re.Match[str]) -> str:
    """Return raised and lowered digits as a script, and `⅝` as a fraction."""
    plain = unicodedata.normalize("NFKC", match[0]).replace("\u2212", "-")
    if match[1] or match[2]:
        return f"{'^' if match[1] else '_'}{{{plain}}}"
    top, _, bottom = plain.partition("\u2044")
    return rf"\frac{{{top}}}{{{bottom}}}"


@functools.lru_cache(maxsize=4096)  # hundreds of responses share a gold
def canonical(text: str, *, fractions: bool = True) -> str:
    r"""Return canonical LaTeX. Words stay in `\text{...}`; everything else loses its font."""
    text = _SQUARE_METRES.sub(r"\\text{ \1}", currencies(unicodedata.normalize("NFC", text)))
    text = _TYPED_ROOT.sub(r"\\sqrt{\1}", _INVISIBLE.sub(" ", text))
    text = _TYPED_BINOM.sub(r"\\binom{\1}{\2}", text)
    text = _BASE_IN_WORDS.sub(lambda base: f"{base[1] or base[2]}_{{{base[3]}}}", text)
    text = _SCRIPTS.sub(_script, text).translate(_SIGN_TABLE)
    text = _OLD_FONT.sub(" ", text.strip().strip("*`"))
    for pattern, replacement in _STEPS:
        text = pattern.sub(replacement, text)
    text = _UPRIGHT_INDEX.sub(r"_{\1}", amounts(_FONTS.sub(_text, text)))
    text = _braced(_REPEATING.sub(_fraction, text) if fractions else text)
    while "{" in text and (shown := _IDLE_BRACES.sub(r"\1", text)) != text:
        text = shown
    return _TRAILING.sub("", _MORE_DIGITS.sub(r"\1", text)).strip()


def _fraction(match: re.Match[str]) -> str:
    """Return a repeating decimal as a fraction."""
    whole, start = match[1] or "0", match[2]
    block = match[3] or match[4] or match[5]
    bottom = 10 ** len(start) * (10 ** len(block) - 1)
    top = int(whole + start + block) - int(whole + start)
    return rf"\frac{{{top}}}{{{bottom}}}"


def _braced(text: str, depth: int = 0) -> str:
    r"""Put arguments of `\frac`, `\sqrt` and `\binom`, and commands in scripts, in braces."""
    if depth > _MAX_BRACED or not _NEEDS_BRACES.search(text):
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        piece, position = _piece(text, position, depth)
        out.append(piece)
    return "".join(out)


def _piece(text: str, position: int, depth: int) -> tuple[str, int]:
    """Return the token at `position`, with its arguments in braces, and the next position."""
    match = _ATOM.match(text, position)
    if match is None:
        return text[position], position + 1
    token, position = match[1], match.end()
    blank: str = text[match.start() : match.start(1)]
    count = _ARGUMENTS.get(token, 0) if depth < _MAX_BRACED else 0
    out: list[str] = [blank, token]
    if token == r"\sqrt" and (degree := re.compile(r"\s*\[[^\[\]]*\]").match(text, position)):
        out.append(degree[0].strip())
        position = degree.end()
    for _ in range(count):
        at = len(text) - len(text[position:].lstrip())
        opening = text[at : at + 1]
        end = -1
        if opening == "{":
            end = end_of_group(text, at, _BRACES)
        elif opening == "(" and token in (r"\sqrt", "^"):  # as typed: sqrt(2), e^(2x)
            end = end_of_group(text, at)
            end = end if text[end - 1] == ")" else -1
        if end > at:
            out.append(f"{{{_braced(text[at + 1 : end - 1], depth + 1)}}}")
        if end > at or opening in ("", "{", "}"):
            position = max(at, end)
            continue
        if token in "^_" and text[at] != "\\":
            break  # 2^-3 and x^2 stay as they are
        argument, position = _piece(text, at, depth + 1)
        out.append(f"{{{argument.strip()}}}")
    return "".join(out), position


def end_of_group(text: str, start: int, signs: re.Pattern[str] = _BRACKETS) -> int:
    """Return the position after the bracket that closes the one at `start`; -1 if none does."""
    level = 0
    for match in signs.finditer(text, start):
        level += (match[0] in "{([") - (match[0] in "})]")
        if level == 0:
            return match.end()
    return -1


def _text(match: re.Match[str]) -> str:
    words = " ".join(match.group(1).split())
    if not words:
        return " "
    if words.strip(" ,") in ("and", "or"):
        return f" {words.strip(' ,')} "
    before, after = match.string[: match.start()].rstrip(), match.string[match.end() :].lstrip()
    between_numbers = before[-1:].isdigit() and after[:1].isdigit()
    if between_numbers and (counted := _COUNTED.fullmatch(words)):
        return rf"\text{{ {counted[1]}}}{' and ' if counted[2].strip(' ,') else ', '}"
    if measured := _MEASURED.fullmatch(words):
        return rf"{measured[1]}\text{{ {measured[2]}}}"
    return words if re.fullmatch(r"[\d\W]+", words) else rf"\text{{{words}}}"


def squeeze(text: str) -> str:
    r"""Return the spelling to compare: spaces only between digits, no idle braces."""
    text = _TRAILING.sub("", TEXT.sub(r" \1 ", text))
    text = re.sub(r"\s+(?!\d)|(?<!\d)\s+", "", text)
    return _SHORT_SCRIPT.sub(r"\1\2", text)


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
