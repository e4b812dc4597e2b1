r"""Predictions that repeat the question: right in value, and no answer.

A response that boxes `\log_2 32` for the question "What is $\log_2 32$?" has solved nothing; the
algebra of the grader would do its work. Two tests, both blind to values:

* the prediction has the tokens of a formula of the question (or of a side of it) in any order, and
  not those of a gold;
* the golds have no letters (numbers, intervals, sets of numbers), and the prediction leaves undone
  what the question asks: a sum, integral, limit, gcd or logarithm that stands in the question, or
  an equation or inequality that is not solved for its letter.

Labels, units, brackets, fonts and thousands separators do not count as tokens, so `x = 5` is
spelled like the gold `5`. Plain integers, words and letters are no formulas.
"""

import re
from collections.abc import Sequence
from functools import lru_cache

from prompt_aug.grading.evaluate import evaluate, surely_different
from prompt_aug.grading.normalize import canonical, squeeze
from prompt_aug.grading.notation import TEXT_PATTERN
from prompt_aug.grading.structure import split_top
from prompt_aug.grading.units import split_unit

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
_PLAIN = re.compile(rf"[\s(]*-?(?:\d+|[A-Za-z]+|{TEXT_PATTERN})[\s).%]*")
_RELATION = re.compile(r"\\(?:le|ge|ne|lt|gt|in|equiv)(?![a-zA-Z])|[<>=]")
_ORDER = re.compile(r"(\\(?:le|ge|lt|gt)(?![a-zA-Z])|[<>])")
_MIRRORED = {">": "<", r"\gt": r"\lt", r"\ge": r"\le"}
_SOLVED = re.compile(r"\s*(?:[A-Za-z]|\\[a-z]+)(?:_\{?\w+\}?)?\s*")
_PARTS = re.compile(rf"{TEXT_PATTERN}|\\cup(?![a-z])|\b(?:and|or)\b|[,;]")
_LETTER = re.compile(r"(?<![\\a-zA-Z])(?![ei](?![a-zA-Z]))[a-zA-Z]+(?![a-zA-Z])")
_GREEK = re.compile(
    r"\\(?:alpha|beta|gamma|delta|theta|lambda|mu|rho|sigma|tau|phi|omega)(?![a-z])"
)
_MIN_WRAPPED = 4  # tokens: shorter ones are values that an answer may well contain
# What changes nothing: + 0, times 1, over 1, to the power 1.
_NEUTRAL = re.compile(
    r"[-+]\s*0(?![\d.])|(?:\\cdot|\\times|\*|/|\\div)\s*\{?1\}?(?![\d.])|\^\s*\{?1\}?(?![\d.])"
    r"|(?<![\d.])0\s*\+|(?<![\d.])1\s*(?:\\cdot|\\times|\*)"
)
_UNDONE = {
    name: re.compile(rf"\\(?:{spelled})(?![a-zA-Z])|(?<![\\a-zA-Z])(?:{spelled})(?=[\s(_])")
    for name, spelled in {
        "sum": "sum|Sigma",
        "prod": "prod",
        "int": "i*int",
        "lim": "lim",
        "gcd": "gcd|GCD",
        "lcm": "lcm|LCM",
        "log": "log|ln|lg",
        "mod": "p?mod|bmod",
        "floor": "lfloor|lceil|floor|ceil",
    }.items()
}


def _written(text: str) -> str:
    r"""Canonical, but a repeating decimal is not yet the fraction that may be asked for."""
    return canonical(text, fractions=False)


def is_copied(prediction: str, golds: Sequence[str], question: str) -> bool:
    """Whether `prediction` is a formula of the question, or leaves undone what it asks."""
    written, known = _written(prediction), [_written(gold) for gold in golds]
    tokens = _tokens(written)
    if any(tokens == _tokens(gold) for gold in known):
        return False
    if _is_formula(written) and tokens in _formulas(question[:MAX_QUESTION]):
        return True
    if _keeps_percent(written, known, question):
        return True
    if any(map(_has_letters, known)):  # a chain may begin with the question
        last = split_top(written, "=")[-1]
        return _left_undone(last, known, question) or _is_wrapped(last, known, question)
    return (
        _left_undone(written, known, question)
        or _wraps(written, known, question)
        or _is_wrapped(written, known, question)
    )


def restates(prediction: str, stated: str | None, golds: Sequence[str], question: str) -> bool:
    r"""Whether what the prediction comes to is copied: `\text{The value is }\sqrt{50}`, 2+3 = 2+3.

    `stated` is the value that its words state, None where they state none.
    """
    written = canonical(prediction)
    sides, items = split_top(written, "="), set(split_top(written, ","))
    ends = [stated, sides[-1], written.partition(r"\approx")[0]]
    if not _is_formula(sides[-1]):  # 2 + 3 = y
        ends += sides[:1] if re.fullmatch(r"\s*[A-Za-z]\s*", sides[-1]) else []
    ends += items if len(items) == 1 else ()  # several times the same
    return any(end and is_copied(end, golds, question) for end in ends)


def is_unsolved(prediction: str, golds: Sequence[str]) -> bool:
    """Whether `prediction` is a relation still to be solved, where no gold has a letter."""
    known = [_written(gold) for gold in golds]
    return not any(map(_has_letters, known)) and _has_unsolved(_written(prediction))


@lru_cache(maxsize=512)
def _formulas(question: str) -> frozenset[tuple[str, ...]]:
    """The sorted tokens of every formula of the question and of the sides and items of each."""
    found: set[tuple[str, ...]] = set()
    spans = [next(group for group in match.groups() if group) for match in _MATH.finditer(question)]
    for span in (*spans, *_BARE.findall(_MATH.sub(" ; ", question))):
        text = _written(span)
        pieces = [text, *_RELATION.split(text), *split_top(text, ",", ";", r"\\")]
        for piece in pieces:
            found.add(_tokens(piece))
            found.update(_tokens(side) for side in _RELATION.split(piece))
    return frozenset(found)


def _tokens(text: str) -> tuple[str, ...]:
    """The tokens that carry meaning, sorted; without label and unit."""
    label = re.match(r"\s*[A-Za-z](?:_\{?\w+\}?)?(?:\([a-z, ]{1,9}\))?\s*=(?!.*[=<>])", text)
    text = split_unit(text[label.end() :] if label else text)[0].rstrip("% ")
    text = _NEUTRAL.sub(" ", re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text))
    for spelling, plain in _RESPELLED:
        text = spelling.sub(plain, text)
    sides = _ORDER.split(text)
    if len(sides) == 3:  # a < b is b > a, and not a > b
        low, sign, high = sides[::-1] if sides[1] in _MIRRORED else sides
        return (*_sorted_tokens(low), _MIRRORED.get(sign, sign), *_sorted_tokens(high))
    return _sorted_tokens(text)


# Spellings that no arithmetic is needed for: 07, x - -1, \sqrt[2]{5}.
_RESPELLED = (
    (re.compile(r"(?<![\d.])0+(?=\d)"), ""),
    (re.compile(r"-\s*-"), "+"),
    (re.compile(r"\+\s*\+"), "+"),
    (re.compile(r"\\sqrt\s*\[\s*2\s*\]"), r"\\sqrt"),
)


def _sorted_tokens(text: str) -> tuple[str, ...]:
    found = [token for token in _TOKEN.findall(text) if token not in _IDLE]
    return tuple(sorted(part for token in found for part in _parts(token)))


def _parts(token: str) -> Sequence[str]:
    r"""A number is its digits, because `\log_2 32` and `\frac12` may be written without a gap."""
    if not token[-1].isdigit():
        return [_DIVIDED.get(token, token)]
    return token.rstrip("0").rstrip(".") if "." in token else token


def _is_formula(text: str) -> bool:
    """More than an integer, a letter or a word."""
    return not _PLAIN.fullmatch(text)


def _has_letters(gold: str) -> bool:
    """Whether the answer is a formula of letters: `x > 3` is solved, and has none."""
    return _spells_letters(gold) and (
        not _RELATION.search(gold) or _has_unsolved(gold) or not _is_solved(gold)
    )


def _is_solved(gold: str) -> bool:
    r"""Whether the whole gold is `x > 3`, `1 \le x < 3` or several of these."""
    parts = [part for part in _PARTS.split(gold) if part.strip()]
    return all(_ORDER.search(part) for part in parts)


def _spells_letters(gold: str) -> bool:
    value = re.sub(r"^\s*[A-Za-z](?:_\{?\w+\}?)?\s*(?:=|\\in)(?![a-z])", "", split_unit(gold)[0])
    plain = re.sub(rf"{TEXT_PATTERN}|\b(?:and|or)\b", " ", value)
    return bool(_LETTER.search(plain) or _GREEK.search(plain))


def _wraps(written: str, golds: Sequence[str], question: str) -> bool:
    r"""Whether a formula of the question stands inside, as in `2(26^2-24^2)/2`."""
    text = squeeze(written)
    return any(
        formula in text and not any(formula in squeeze(gold) for gold in golds)
        for formula in _texts(question[:MAX_QUESTION], _MIN_WRAPPED)
    )


def _is_wrapped(written: str, golds: Sequence[str], question: str) -> bool:
    r"""Whether what stands around a formula of the question changes nothing: `\max(E,E)`, `E+1-1`.

    Found with a letter in its place: where the rest comes to this letter, nothing was done.
    """
    text = squeeze(written)
    for formula in _texts(question[:MAX_QUESTION], 2):
        if formula not in text or any(formula in squeeze(gold) for gold in golds):
            continue
        before = r"(?<![\w.\\}])" if formula[0].isalnum() else ""
        after = r"(?![\w.({^!])" if formula[-1].isalnum() else r"(?![\^!])"
        alone = before + re.escape(formula) + after
        rest = _SAME_OF.sub(r"\1", re.sub(alone, lambda _: _PLACE, text))
        if _PLACE in rest and _is_place(rest):
            return True
    return False


def _is_place(text: str) -> bool:
    try:
        return not surely_different(evaluate(text), evaluate(_PLACE))
    except ValueError:  # nothing that can be read, or too large
        return False


_PLACE = r"(\hbar)"
_SAME_OF = re.compile(rf"\\(?:max|min|gcd|lcm)\(?({re.escape(_PLACE)})(?:,{re.escape(_PLACE)})*\)?")


def _keeps_percent(written: str, golds: Sequence[str], question: str) -> bool:
    r"""Whether it is a percentage of the question, where the gold is none: 40\% is asked as 2/5."""
    share = _PERCENT.fullmatch(written)
    if share is None or any("%" in gold for gold in golds):
        return False
    return share[1] in _PERCENT.findall(question[:MAX_QUESTION])


_PERCENT = re.compile(r"(?<![\d.,])(\d[\d.,]{0,20})[\s$]{0,3}(?:\\?%|percent)")


@lru_cache(maxsize=512)
def _texts(question: str, tokens: int) -> frozenset[str]:
    """The formulas of the question with so many tokens, without their blanks."""
    spans = (next(group for group in match.groups() if group) for match in _MATH.finditer(question))
    texts = (_written(span) for span in spans)
    return frozenset(
        squeeze(text) for text in texts if len(_tokens(text)) >= tokens and _is_formula(text)
    )


def _left_undone(written: str, golds: Sequence[str], question: str) -> bool:
    return any(
        pattern.search(written)
        and pattern.search(question)
        and not any(pattern.search(gold) for gold in golds)
        for pattern in _UNDONE.values()
    )


def _has_unsolved(written: str) -> bool:
    r"""Whether a relation in it is not of the form `x < 3` or `1 \le x < 3`."""
    for part in _PARTS.split(written):
        sides = _RELATION.split(part)
        if len(sides) == 1:
            continue
        letters = [side for side in sides if _LETTER.search(side) or _GREEK.search(side)]
        if len(letters) != 1 or not _SOLVED.fullmatch(letters[0]):
            return len(letters) > 0
    return False
