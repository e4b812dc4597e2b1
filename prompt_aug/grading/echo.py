r"""Echoes: predictions that repeat the question instead of answering it (examples: GRADING.md).

`is_copied` decides before any comparison with a gold. What a gold has too is never an echo. Labels,
units, brackets, fonts and thousands separators do not count; plain integers, words and letters are
not formulas.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from prompt_aug.grading.evaluate import TooBig, Unsupported, evaluate, surely_different
from prompt_aug.grading.normalize import TEXT_PATTERN, canonical
from prompt_aug.grading.structure import BUILDER, split_list, split_top
from prompt_aug.grading.units import split_unit

DRAWING = re.compile(r"\[asy\].*?(?:\[/asy\]|\Z)", re.DOTALL)  # whose coordinates are no formulas
MAX_QUESTION = 20_000  # characters; the longest of 10081 real questions has 4309

_MATH = re.compile(
    r"\$\$(.+?)\$\$|\$(.+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]"
    r"|\\begin\{(?:align|equation|gather)\*?\}(.+?)\\end\{",
    re.DOTALL,
)
# A formula in running text: numbers, single letters and signs, at least one sign between two.
_BARE = re.compile(
    r"(?<![\w\\])(?:[\d.]+|[a-zA-Z](?![a-zA-Z])|[-+*/^(){}=<>!|\u2212√π×÷·±⁰¹²³⁴-⁹]|\s(?=\S))+"
)
_TOKEN = re.compile(r"\\[a-zA-Z]+|\d+(?:\.\d+)?|\.\d+|[^\s\\]")
_IDLE = frozenset(
    (*"{}()[],;:.$&*!?+", r"\cdot", r"\times", r"\text", r"\displaystyle", r"\quad", r"\degree")
)
_DIVIDED = {"/": r"\frac", r"\div": r"\frac"}
# No formula: an integer, a letter or a word.
_PLAIN = re.compile(rf"[\s(]*-?(?:\d+|[A-Za-z]+|{TEXT_PATTERN})[\s).%]*")
_RELATION = re.compile(r"\\(?:le|ge|ne|lt|gt|in|equiv)(?![a-zA-Z])|[<>=]")
_ORDER = re.compile(r"(\\(?:le|ge|lt|gt)(?![a-zA-Z])|[<>])")
_MIRRORED = {">": "<", r"\gt": r"\lt", r"\ge": r"\le"}
_LETTER_ALONE = re.compile(r"\s*[A-Za-z]\s*")
# Respelled before tokens are compared: 07, x - -1, \sqrt[2]{5}.
_RESPELLED = (
    (re.compile(r"(?<![\d.])0+(?=\d)"), ""),
    (re.compile(r"(?<![\d.])\.(?=\d)"), "0."),
    (re.compile(r"-\s*-"), "+"),
    (re.compile(r"\+\s*\+"), "+"),
    (re.compile(r"\\sqrt\s*\[\s*2\s*\]"), r"\\sqrt"),
)
# 0.1\overline{6}, 0.1(6), 0.1666...
_REPEATED = re.compile(
    r"\d\s*\\(?:overline|bar|dot)(?![a-z])|\.\s*\\(?:overline|bar|dot)|\d\s*\.{3}|\.\d*\(\d+\)"
)
# Operations that no answer may leave undone; those of `_ASKED` only if the question has them.
_UNDONE = re.compile(
    r"\\(?:sum|prod|i*int|lim|gcd|lcm|Sigma|det|lfloor|lceil)(?![a-zA-Z])|\\(?:max|min)\s*[({\\]"
    r"|(?<![\\a-zA-Z])(?:sum|prod|lim|gcd|GCD|lcm|LCM|floor|ceil)\s*[(_]"
    r"|\\begin\{[vV]matrix\}|\\partial(?![a-zA-Z])|\\\||\\[lr]?Vert(?![a-zA-Z])"
)
_MATRICES = re.compile(r"\\begin\{[a-zA-Z]*matrix\}.*\\begin\{[a-zA-Z]*matrix\}", re.DOTALL)
_ASKED = (
    re.compile(r"\\(?:log|ln|lg)(?![a-zA-Z])|(?<![\\a-zA-Z])(?:log|ln|lg)(?=[\s(_])"),
    re.compile(r"\||\\[lr]?vert(?![a-z])"),  # an absolute value
)
_REMAINDER = re.compile(r"(\d+|[\w})])?\s*\\[bp]?mod(?![a-z])[\s({\[]*(\d{1,18})")
_PERCENT = re.compile(r"(?<![\d.,])(\d[\d.,]{0,20})[\s$]{0,3}(?:\\?%|percent)")
_PLAIN_NUMBER = re.compile(r"-?(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d+)?")
_UNARY_MINUS = re.compile(r"(?<![\w)}\]!\s])\s*[-+]")
_OPERATION = re.compile(r"\\(?:frac|sqrt|cdot|times|div|binom)(?![a-zA-Z])|[-+*/^!]")
_SCIENTIFIC = re.compile(r"-?\d+(?:\.\d+)?\s*\\(?:times|cdot)\s*10\s*\^\s*\{?\s*-?\d+\s*\}?")


def is_copied(prediction: str, golds: Sequence[str], question: str) -> bool:
    """Return whether `prediction` is a formula of the question, or not finished.

    A formula counts with its tokens in any order, if its value is the same. Not finished is an
    operation left undone, and a percentage or a repeating decimal that the question has.
    """
    written, answers = canonical(prediction), [canonical(gold) for gold in golds]
    tokens = tokens_in(written)
    if any(tokens == tokens_in(gold) for gold in answers):
        return False
    parts = split_list(written)
    same = len(parts) > 1 and all(_differ(*map(value_of, (parts[0], x))) is False for x in parts)
    if same and all(is_copied(part, golds, question) for part in parts):
        return True
    alike = () if _PLAIN.fullmatch(written) else formulas_of(question).get(tokens, ())
    equation = bool(_RELATION.search(written))  # any two equations of the same tokens are alike
    return (
        any(
            (equation and _RELATION.search(text)) or not _differ(value_of(written), value_of(text))
            for text in alike  # 2(i+4) and 2+4i differ
        )
        or _keeps_percent(written, answers, question)
        or (_is_new(_REPEATED, last_side(prediction), golds) and bool(_REPEATED.search(question)))
        or _left_undone(last_side(written), answers, question)
    )


def is_unworked(prediction: str, golds: Sequence[str]) -> bool:
    """Return whether a prediction leaves two or more operations, if all golds are numbers."""
    answers = (split_unit(canonical(gold))[0].rstrip("% ") for gold in golds)
    if not all(map(_PLAIN_NUMBER.fullmatch, answers)):
        return False
    value = value_of(canonical(prediction).partition(r"\approx")[0])
    if _SCIENTIFIC.fullmatch(value):
        return False
    operations = _OPERATION.findall(_UNARY_MINUS.sub(" ", re.sub(TEXT_PATTERN, " ", value)))
    return len(operations) > 1


def _differ(first: str, second: str) -> bool | None:
    """Return whether two values differ; None if one of them cannot be read."""
    try:
        return surely_different(evaluate(first), evaluate(second))
    except (Unsupported, TooBig):
        return None


def _keeps_percent(written: str, golds: Sequence[str], question: str) -> bool:
    r"""Return whether it is a percentage of the question, as 40\%, and no gold has a percent."""
    if not written.endswith("%") or any("%" in gold for gold in golds):
        return False
    shares = (share.replace(",", "").rstrip(".") for share in _PERCENT.findall(question))
    return any(_differ(written.rstrip("% "), share) is False for share in shares)


def _is_new(sign: re.Pattern[str], text: str, golds: Sequence[str]) -> bool:
    """Return whether the text has this sign, and no gold has it."""
    return bool(sign.search(text)) and not any(map(sign.search, golds))


def _left_undone(written: str, golds: Sequence[str], question: str) -> bool:
    written = BUILDER.sub(r"\1", written)  # its bar is not an absolute value
    undivided = any(  # 17 mod 5 and 2^{100} mod 7; 7 mod 11 is a residue class
        number and not (number.isdecimal() and int(number[:20]) < int(modulus))
        for number, modulus in _REMAINDER.findall(written)
    )
    return (
        _is_new(_UNDONE, written, golds)
        or _is_new(_MATRICES, written, golds)  # a sum or a product of them
        or (undivided and _is_new(_REMAINDER, written, golds))
        or any(_is_new(p, written, golds) and p.search(question) for p in _ASKED)
    )


@lru_cache(maxsize=512)
def formulas_of(question: str) -> dict[tuple[str, ...], list[str]]:
    """Return formulas of the question, their parts between commas, and sides of these by tokens."""
    spans = [next(group for group in match.groups() if group) for match in _MATH.finditer(question)]
    texts = [canonical(span) for span in (*spans, *_BARE.findall(_MATH.sub(" ; ", question)))]
    parts = (part for text in texts for part in (text, *split_top(text, r"[,;]|\\\\")))
    formulas: dict[tuple[str, ...], list[str]] = {}
    for piece in dict.fromkeys(side for part in parts for side in (part, *_RELATION.split(part))):
        formulas.setdefault(tokens_in(piece), []).append(piece)
    return formulas


def tokens_in(text: str) -> tuple[str, ...]:
    """Return the sorted tokens that carry meaning, without label and unit."""
    label = re.match(r"\s*[A-Za-z](?:_\{?\w+\}?)?(?:\([a-z, ]{1,9}\))?\s*=(?!.*[=<>])", text)
    text = split_unit(text[label.end() :] if label else text)[0].rstrip("% ")
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    for spelling, plain in _RESPELLED:
        text = spelling.sub(plain, text)
    sides = _ORDER.split(text)
    if len(sides) == 3:  # a < b is b > a, and not a > b
        low, sign, high = sides[::-1] if sides[1] in _MIRRORED else sides
        return (*_sorted_tokens(low), _MIRRORED.get(sign, sign), *_sorted_tokens(high))
    return _sorted_tokens(text)


def _sorted_tokens(text: str) -> tuple[str, ...]:
    r"""Return the tokens, of numbers the digits: `\log_2 32` and `\frac12` may have no gap."""
    tokens: list[str] = []
    for token in _TOKEN.findall(text):
        if token[-1].isdigit():
            tokens += token.rstrip("0").rstrip(".") if "." in token else token
        elif token not in _IDLE:
            tokens.append(_DIVIDED.get(token, token))
    return tuple(sorted(tokens))


def last_side(written: str) -> str:
    """Return the last side of a chain of equations, its result; 5 for 5 = x."""
    sides = split_top(written, "=")
    while len(sides) > 1 and _LETTER_ALONE.fullmatch(sides[-1]):
        sides.pop()
    return sides[-1]


def value_of(leaf: str) -> str:
    return split_unit(last_side(leaf))[0].rstrip("% ")
