r"""Predictions that repeat the question: right in value, and no answer.

A response that boxes `\log_2 32` for the question "What is $\log_2 32$?" has solved nothing; the
algebra of the grader would do its work. Before it is compared with the golds, a prediction is an
echo (`is_copied`) where

* it has the tokens of a formula of the question (or of a side of it) in any order, and not those of
  a gold;
* it leaves undone what no gold leaves: a sum, product, integral, limit, gcd, lcm, maximum, and, if
  the question has them, a logarithm, remainder or floor.

One that is right is an echo all the same (`restates`) where

* computing it passes through every step of a formula of the question that has its value (`steps`),
  so that `\frac{2 \cdot 13 \cdot 17}{2}` and `(14-1) \cdot 17` repeat `13 \cdot 17`;
* the golds have no letters (numbers, intervals, sets of numbers), and it is a relation that is not
  solved for its letter; or a gold is `y = ...` and it is another form of the question's equation.

Labels, units, brackets, fonts and thousands separators do not count as tokens, so `x = 5` is
spelled like the gold `5`. Plain integers, words and letters are no formulas.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache

from prompt_aug.grading.arithmetic import TooBig, Unsupported, tokens_of
from prompt_aug.grading.evaluate import evaluate, surely_different
from prompt_aug.grading.normalize import canonical, is_balanced, squeeze
from prompt_aug.grading.notation import TEXT_PATTERN, whole
from prompt_aug.grading.steps import carries, steps_of
from prompt_aug.grading.structure import Node, build, split_top
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
_MIN_READ = 3  # tokens of a formula that another one holds, where no arithmetic can tell
_MIN_UNREAD = 4
# What no answer leaves to be worked out, and what it may, unless it is what the question asks.
_UNDONE = re.compile(
    r"\\(?:sum|prod|i*int|lim|gcd|lcm|Sigma)(?![a-zA-Z])|\\(?:max|min)\s*[({\\]"
    r"|(?<![\\a-zA-Z])(?:sum|prod|lim|gcd|GCD|lcm|LCM)\s*[(_]"
)
_ASKED = {
    name: re.compile(rf"\\(?:{spelled})(?![a-zA-Z])|(?<![\\a-zA-Z])(?:{spelled})(?=[\s(_])")
    for name, spelled in {
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
    alike = _formulas(question[:MAX_QUESTION]).get(tokens, ()) if _is_formula(written) else ()
    return (
        any(_may_equal(written, text) for text in alike)
        or _keeps_percent(written, known, question)
        or _left_undone(_last_side(written), known, question)
    )


def restates(prediction: str, stated: str | None, golds: Sequence[str], question: str) -> bool:
    r"""Whether a right prediction only says again what the question says.

    What it comes to counts: `stated` in `\text{The value is }\sqrt{50}` (None where its words state
    nothing), the last side of a chain, the value before its decimals.
    """
    written = canonical(prediction)
    sides, items = split_top(written, "="), set(split_top(written, ","))
    ends = [stated, _last_side(written), written.partition(r"\approx")[0]]
    if _LETTER_ALONE.fullmatch(sides[-1]):  # 2 + 3 = y
        ends += sides[:1]
    ends += items if len(items) == 1 else ()  # several times the same
    return (
        any(end and is_copied(end, golds, question) for end in ends)
        or _does_its_work(stated or _last_side(written), golds, question)
        or _is_unsolved(written, golds)
        or any(_is_another_form(written, gold, question) for gold in golds)
    )


def _last_side(written: str) -> str:
    """What a chain comes to: who repeats the question and solves it answers. Never x of 5 = x."""
    sides = split_top(written, "=")
    while len(sides) > 1 and _LETTER_ALONE.fullmatch(sides[-1]):
        sides.pop()
    return sides[-1]


_LETTER_ALONE = re.compile(r"\s*[A-Za-z]\s*")


def _does_its_work(answer: str, golds: Sequence[str], question: str) -> bool:
    """Whether a part of the answer computes what a formula of the question does (see `steps`)."""
    known = [leaf for gold in golds for leaf in _leaves(gold)]
    spelled = {squeeze(leaf) for leaf in known}
    parts = [leaf for leaf in _leaves(answer) if squeeze(leaf) not in spelled]
    return any(
        _same_work(part, formula, known)
        for part in parts
        if _is_formula(part)
        for formula in _formula_leaves(question[:MAX_QUESTION])
    )


def _same_work(part: str, formula: str, golds: list[str]) -> bool:
    work, asked = steps_of(part), steps_of(formula)
    if work is None or asked is None:
        return _holds(part, formula, golds)
    if not asked.made or _differ(part, formula):
        return False
    return carries(
        work, asked, [steps for gold in golds if (steps := steps_of(gold, decimal=True))]
    )


def _holds(part: str, formula: str, golds: list[str]) -> bool:
    """Whether `part` has all tokens of `formula`, which no gold has: where one cannot be read."""
    wanted = Counter(_tokens(formula))
    least = _MIN_UNREAD if steps_of(formula) is None else _MIN_READ
    if wanted.total() < least or any(wanted <= Counter(_tokens(gold)) for gold in golds):
        return False
    return wanted <= Counter(_tokens(part)) and not all(_differ(formula, gold) for gold in golds)


def _may_equal(one: str, other: str) -> bool:
    """Not so of 2(i+4) and 2+4i, whose tokens are the same. Two equations may always be."""
    if _RELATION.search(one) and _RELATION.search(other):
        return True
    return not _differ(_value_of(one), _value_of(other))


def _differ(one: str, other: str) -> bool:
    try:
        return surely_different(evaluate(one), evaluate(other))
    except (Unsupported, TooBig):
        return False


def _leaves(text: str) -> list[str]:
    """The values of an answer, without labels and units."""
    return [_value_of(leaf) for leaf in _walk(build(whole(_written(text))))]


def _walk(node: Node) -> Iterator[str]:
    if not node.items:
        yield node.text
    for item in node.items:
        yield from _walk(item)


def _value_of(leaf: str) -> str:
    return split_unit(_last_side(leaf))[0].rstrip("% ")


@lru_cache(maxsize=512)
def _formula_leaves(question: str) -> tuple[str, ...]:
    """The formulas of the question and the sides and items of each; no relation as a whole."""
    sides = dict.fromkeys(side for piece in _pieces(question) for side in _RELATION.split(piece))
    leaves = dict.fromkeys(leaf for side in sides for leaf in (side, *_leaves(side)))
    return tuple(
        leaf for leaf in leaves if leaf.strip() and _is_formula(leaf) and is_balanced(leaf)
    )


def _is_unsolved(written: str, golds: Sequence[str]) -> bool:
    """Whether it is a relation still to be solved, where no gold has a letter."""
    known = [_written(gold) for gold in golds]
    return not any(map(_has_letters, known)) and _has_unsolved(written)


def _is_another_form(written: str, gold: str, question: str) -> bool:
    """Whether it is the question's equation, not solved for y, where the gold is y = ..."""
    sides, asked = split_top(written, "="), split_top(_written(gold), "=")
    if len(sides) != 2 or len(asked) != 2 or not _LETTER_ALONE.fullmatch(asked[0]):
        return False
    letter, value = asked[0].strip(), asked[1]
    if not _LETTER.search(value) or any(side.strip() == letter for side in sides):
        return False
    equations = (split_top(piece, "=") for piece in _pieces(question[:MAX_QUESTION]))
    return any(len(e) == 2 and _is_solved_by(e, letter, value) for e in equations)


def _is_solved_by(equation: list[str], letter: str, value: str) -> bool:
    """Whether an equation holds for all other letters where `letter` is `value`."""
    if any(side.strip() == letter for side in equation):
        return False
    try:
        inside = ["(", *tokens_of(value), ")"]
        if letter in inside:
            return False
        left, right = (
            " ".join(
                t for token in tokens_of(side) for t in (inside if token == letter else [token])
            )
            for side in equation
        )
        return not surely_different(evaluate(left), evaluate(right))
    except (Unsupported, TooBig):
        return False


@lru_cache(maxsize=512)
def _pieces(question: str) -> tuple[str, ...]:
    """The formulas of the question, and the parts of each between commas."""
    spans = [next(group for group in match.groups() if group) for match in _MATH.finditer(question)]
    texts = [_written(span) for span in (*spans, *_BARE.findall(_MATH.sub(" ; ", question)))]
    return tuple(
        dict.fromkeys(
            piece
            for text in texts
            for piece in (text, *_RELATION.split(text), *split_top(text, ",", ";", r"\\"))
        )
    )


@lru_cache(maxsize=512)
def _formulas(question: str) -> dict[tuple[str, ...], list[str]]:
    """Every formula of the question, and the sides and items of each, by their sorted tokens."""
    pieces = _pieces(question)
    sides = (side for piece in pieces for side in _RELATION.split(piece))
    found: dict[tuple[str, ...], list[str]] = {}
    for text in dict.fromkeys((*pieces, *sides)):
        found.setdefault(_tokens(text), []).append(text)
    return found


def _tokens(text: str) -> tuple[str, ...]:
    """The tokens that carry meaning, sorted; without label and unit."""
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


def _keeps_percent(written: str, golds: Sequence[str], question: str) -> bool:
    r"""Whether it is a percentage of the question, where the gold is none: 40\% is asked as 2/5."""
    share = _PERCENT.fullmatch(written)
    if share is None or any("%" in gold for gold in golds):
        return False
    return share[1] in _PERCENT.findall(question[:MAX_QUESTION])


_PERCENT = re.compile(r"(?<![\d.,])(\d[\d.,]{0,20})[\s$]{0,3}(?:\\?%|percent)")


def _left_undone(written: str, golds: Sequence[str], question: str) -> bool:
    if _UNDONE.search(written) and not any(map(_UNDONE.search, golds)):
        return True
    return any(
        pattern.search(written)
        and pattern.search(question)
        and not any(pattern.search(gold) for gold in golds)
        for pattern in _ASKED.values()
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
