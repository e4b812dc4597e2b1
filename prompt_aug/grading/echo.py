r"""Echoes: predictions that repeat the question instead of answering it (examples: GRADING.md).

`is_copied` and `does_its_work` decide before any comparison with a gold, and `restates` for a
prediction that equals one. What a gold has too is never an echo. Labels, units, brackets, fonts and
thousands separators do not count; plain integers, words and letters are not formulas.

A formula's steps show whether an answer does the question's work:

    13 \cdot 17                    (*, 221)                                 and the leaves 13, 17
    \frac{26 \cdot 17}{2}          (*, 442), (/, 221)                            26, 17, 2
    (x+2)(x-7)                     (+, x+2), (+, x-7), (*, (x+2)(x-7))           x, 2, x, 7
    (x + \frac{4}{2})(x-7) + 1 - 1 the same and (/, 2), (+, the whole)

A sum or a product is one step in any order of its terms, and letters have a value at one point.
Respelling a number, adding 0 or multiplying by 1 adds steps and removes none.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from prompt_aug.grading.evaluate import (
    DOUBLES,
    Number,
    Reader,
    TooBig,
    Unsupported,
    evaluate,
    surely_different,
    tokens_of,
)
from prompt_aug.grading.normalize import TEXT_PATTERN, canonical, is_balanced, squeeze
from prompt_aug.grading.structure import Node, build, split_top
from prompt_aug.grading.units import split_unit

DRAWING = re.compile(r"\[asy\].*?(\[/asy\]|\Z)", re.DOTALL)  # whose coordinates are no formulas
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
RELATION = re.compile(r"\\(?:le|ge|ne|lt|gt|in|equiv)(?![a-zA-Z])|[<>=]")
ORDER = re.compile(r"(\\(?:le|ge|lt|gt)(?![a-zA-Z])|[<>])")
_MIRRORED = {">": "<", r"\gt": r"\lt", r"\ge": r"\le"}
LETTER_ALONE = re.compile(r"\s*[A-Za-z]\s*")
# Respelled before tokens are compared: 07, x - -1, \sqrt[2]{5}.
_RESPELLED = (
    (re.compile(r"(?<![\d.])0+(?=\d)"), ""),
    (re.compile(r"(?<![\d.])\.(?=\d)"), "0."),
    (re.compile(r"-\s*-"), "+"),
    (re.compile(r"\+\s*\+"), "+"),
    (re.compile(r"\\sqrt\s*\[\s*2\s*\]"), r"\\sqrt"),
)
_ROW = re.compile(r"^(?!.*\\begin).*(?:&|\\end)|\\begin(?!.*\\end)", re.DOTALL)  # of a matrix
_SOLVED = re.compile(r"\s*(?:[A-Za-z]|\\[a-z]+)(?:_\{?\w+\}?)?'*\s*(?:\([a-z]\)\s*)?")
# 0.1\overline{6}, 0.1(6), 0.1666...
_REPEATED = re.compile(
    r"\d\s*\\(?:overline|bar|dot)(?![a-z])|\.\s*\\(?:overline|bar|dot)|\d\s*\.{3}|\.\d*\(\d+\)"
)
_PARTS = re.compile(rf"{TEXT_PATTERN}|\\cup(?![a-z])|\b(?:and|or)\b")
_LETTER = re.compile(r"(?<![\\a-zA-Z])(?![ei](?![a-zA-Z]))[a-zA-Z]+(?![a-zA-Z])")
_LETTER_OR_GREEK = re.compile(
    rf"{_LETTER.pattern}"
    r"|\\(?:alpha|beta|gamma|delta|theta|lambda|mu|rho|sigma|tau|phi|omega)(?![a-z])"
)
_MIN_READ = 3  # fewest tokens of a formula in `_holds`; `_MIN_UNREAD` if it is unreadable
_MIN_UNREAD = 4
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
_BUILDER = re.compile(r"^\s*\\\{\s*[a-z](?:\s*\\in[^|:]{1,12})?\s*[|:](.+)\\\}\s*$")  # {x | x > 2}
_PLAIN_NUMBER = re.compile(r"-?(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d+)?")
_UNARY_MINUS = re.compile(r"(?<![\w)}\]!])\s*[-+]")
_OPERATION = re.compile(r"\\(?:frac|sqrt|cdot|times|div|binom)(?![a-zA-Z])|[-+*/^!]")
_SCIENTIFIC = re.compile(r"-?\d+(?:\.\d+)?\s*\\(?:times|cdot)\s*10\s*\^\s*\{?\s*-?\d+\s*\}?")
Step = tuple[str, complex]
_CLOSE = 1e-9  # relative difference by rounding alone
_MAX_STEPS = 200


def is_copied(prediction: str, golds: Sequence[str], question: str) -> bool:
    """Return whether `prediction` is a formula of the question, or not finished.

    A formula counts with its tokens in any order, if its value is the same. Not finished is an
    operation left undone, and a percentage or a repeating decimal that the question has.
    """
    written, answers = canonical(prediction), [canonical(gold) for gold in golds]
    tokens = tokens_in(written)
    if any(tokens == tokens_in(gold) for gold in answers):
        return False
    alike = formulas_of(question).get(tokens, ()) if is_formula(written) else ()
    equation = bool(RELATION.search(written))  # any two equations of the same tokens are alike
    return (
        any(
            (equation and RELATION.search(text)) or not _differ(value_of(written), value_of(text))
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
    return _has_operations(re.sub(TEXT_PATTERN, " ", value))


def _has_operations(text: str) -> bool:
    """Return whether a text has two operations or more; a sign before a value is none."""
    return len(_OPERATION.findall(_UNARY_MINUS.sub(" ", text))) > 1


def restates(prediction: str, stated: str | None, golds: Sequence[str], question: str) -> bool:
    r"""Return whether a right prediction only repeats the question.

    Its final value counts: `stated` (see `stated_value`), the last side of a chain, the value
    before its decimals. So do relations that are unsolved, or not solved for the gold's letter.
    """
    written = canonical(prediction)
    sides, items = split_top(written, "="), set(split_top(written, ","))
    ends = [stated, last_side(written), written.partition(r"\approx")[0]]
    if LETTER_ALONE.fullmatch(sides[-1]):  # 2 + 3 = y
        ends += sides[:1]
    ends += items if len(items) == 1 else ()  # several times the same
    return (
        any(end and is_copied(end, golds, question) for end in ends)
        or _is_unsolved(written, golds)
        or any(_is_another_form(written, gold, question) for gold in golds)
        or _is_unread(written, golds, question)
    )


def _is_unread(written: str, golds: Sequence[str], question: str) -> bool:
    r"""Return whether operations are in a notation that hides their steps, which no gold has.

    A question without operations has none to repeat.
    """
    formulas = map(steps_of, leaves_of_question(question))
    if not any(steps and steps.made for steps in formulas):
        return False
    if any(steps_of(leaf) is None for gold in golds for leaf in leaves_of(gold)):
        return False
    leaves = leaves_of(last_side(written))
    return any(steps_of(leaf) is None and _has_operations(leaf) for leaf in leaves)


def does_its_work(answer: str, golds: Sequence[str], question: str) -> bool:
    """Return whether a part of the answer makes the steps of a formula of the question."""
    answer = last_side(canonical(answer))
    answers = [part for gold in golds for part in (gold, *leaves_of(gold))]
    spelled = {squeeze(leaf) for leaf in answers}
    parts = [leaf for leaf in leaves_of(answer) if squeeze(leaf) not in spelled]
    return any(
        _same_work(part, formula, answers)
        for part in parts
        if is_formula(part)
        for formula in leaves_of_question(question)
    )


def _same_work(part: str, formula: str, golds: list[str]) -> bool:
    work, formula_steps = steps_of(part), steps_of(formula)
    if work is None or formula_steps is None:
        return _holds(part, formula, golds)
    if _differ(part, formula):
        return False
    gold_steps = [steps for gold in golds if (steps := steps_of(gold, decimal=True))]
    return carries(work, formula_steps, gold_steps) or is_no_simpler(
        work, formula_steps, gold_steps
    )


def _holds(part: str, formula: str, golds: list[str]) -> bool:
    """Return whether `part` and no gold has all tokens of `formula`; used if a value is unknown."""
    wanted = Counter(tokens_in(formula))
    least = _MIN_UNREAD if steps_of(formula) is None else _MIN_READ
    if wanted.total() < least or any(wanted <= Counter(tokens_in(gold)) for gold in golds):
        return False
    return wanted <= Counter(tokens_in(part)) and not all(_differ(formula, gold) for gold in golds)


def _differ(first: str, second: str) -> bool | None:
    """Return whether two values differ; None if one of them cannot be read."""
    try:
        return surely_different(evaluate(first), evaluate(second))
    except (Unsupported, TooBig):
        return None


def _is_unsolved(written: str, golds: Sequence[str]) -> bool:
    """Return whether a part is an unsolved relation, and no gold has a letter."""
    answers = [canonical(gold) for gold in golds]
    if any(map(_has_letters, answers)):
        return False
    ends = [end for gold in golds for end in (canonical(gold), *leaves_of(gold))]
    return any(_has_unsolved(part) and not _ends_in(part, ends) for part in _parts_of(written))


def _parts_of(written: str) -> list[str]:
    """Split at commas, "and", "or" and unions; {x | x > 2} gives its condition."""
    pieces = _PARTS.split(_BUILDER.sub(r"\1", written))
    return [part for piece in pieces for part in split_top(piece, "[,;]")]


def _ends_in(part: str, answers: list[str]) -> bool:
    """Return whether the last side of an equation is an answer: AB = 5, P(A) = 1/3."""
    end = split_top(part, "=")[-1]
    return any(
        squeeze(split_unit(end)[0]) == squeeze(split_unit(answer)[0])
        or _differ(value_of(end), value_of(answer)) is False
        for answer in answers
    )


def _is_another_form(written: str, gold: str, question: str) -> bool:
    """Return whether it is the question's equation, not solved for y, and the gold is y = ..."""
    sides, gold_sides = split_top(written, "="), split_top(canonical(gold), "=")
    if len(sides) != 2 or len(gold_sides) != 2 or not LETTER_ALONE.fullmatch(gold_sides[0]):
        return False
    letter, value = gold_sides[0].strip(), gold_sides[1]
    if not _LETTER.search(value) or any(side.strip() == letter for side in sides):
        return False
    equations = (split_top(piece, "=") for piece in pieces_of(question))
    return any(len(e) == 2 and _is_solved_by(e, letter, value) for e in equations)


def _is_solved_by(equation: list[str], letter: str, value: str) -> bool:
    """Return whether an equation holds with `value` for `letter`, for all other letters."""
    if any(side.strip() == letter for side in equation):
        return False
    try:
        inside = ["(", *tokens_of(value), ")"]
        if letter in inside:
            return False
        tokens = [
            [part for token in tokens_of(side) for part in (inside if token == letter else [token])]
            for side in equation
        ]
    except Unsupported:
        return False
    return _differ(*map(" ".join, tokens)) is False


def _has_letters(gold: str) -> bool:
    """Return whether a gold is a formula with letters. The solved `x > 3` is none."""
    value = re.sub(r"^\s*[A-Za-z](?:_\{?\w+\}?)?\s*(?:=|\\in)(?![a-z])", "", split_unit(gold)[0])
    plain = re.sub(rf"{TEXT_PATTERN}|\b(?:and|or)\b", " ", value)
    ordered = all(ORDER.search(part) for part in _parts_of(gold) if part.strip())
    solved = RELATION.search(gold) and ordered and not _has_unsolved(gold)
    return bool(_LETTER_OR_GREEK.search(plain)) and not solved


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
    written = _BUILDER.sub(r"\1", written)  # its bar is not an absolute value
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


def _has_unsolved(written: str) -> bool:
    r"""Return whether a relation in it is not of the form `x < 3` or `1 \le x < 3`."""
    for part in _parts_of(written):
        sides = RELATION.split(part)
        if len(sides) == 1:
            continue
        letters = [side for side in sides if _LETTER_OR_GREEK.search(side)]
        if len(letters) != 1 or not _SOLVED.fullmatch(letters[0]):
            return len(letters) > 0
    return False


@lru_cache(maxsize=512)
def pieces_of(question: str) -> tuple[str, ...]:
    """Return the formulas of the question, their parts between commas, and the sides of these."""
    spans = [next(group for group in match.groups() if group) for match in _MATH.finditer(question)]
    texts = [canonical(span) for span in (*spans, *_BARE.findall(_MATH.sub(" ; ", question)))]
    parts = (part for text in texts for part in (text, *split_top(text, r"[,;]|\\\\")))
    return tuple(dict.fromkeys(piece for part in parts for piece in (part, *RELATION.split(part))))


@lru_cache(maxsize=512)
def formulas_of(question: str) -> dict[tuple[str, ...], list[str]]:
    """Return the pieces of the question by their sorted tokens."""
    formulas: dict[tuple[str, ...], list[str]] = {}
    for text in pieces_of(question):
        formulas.setdefault(tokens_in(text), []).append(text)
    return formulas


@lru_cache(maxsize=512)
def leaves_of_question(question: str) -> tuple[str, ...]:
    """Return the pieces of the question and their items, without whole relations."""
    sides = [piece for piece in pieces_of(question) if not RELATION.search(piece)]
    leaves = dict.fromkeys(leaf for side in sides for leaf in (side, *leaves_of(side)))
    return tuple(
        leaf
        for leaf in leaves
        if leaf.strip() and is_formula(leaf) and is_balanced(leaf) and not _ROW.search(leaf)
    )


def tokens_in(text: str) -> tuple[str, ...]:
    """Return the sorted tokens that carry meaning, without label and unit."""
    label = re.match(r"\s*[A-Za-z](?:_\{?\w+\}?)?(?:\([a-z, ]{1,9}\))?\s*=(?!.*[=<>])", text)
    text = split_unit(text[label.end() :] if label else text)[0].rstrip("% ")
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    for spelling, plain in _RESPELLED:
        text = spelling.sub(plain, text)
    sides = ORDER.split(text)
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


def is_formula(text: str) -> bool:
    """Return whether a text is more than an integer, a letter or a word."""
    return not _PLAIN.fullmatch(text)


def last_side(written: str) -> str:
    """Return the last side of a chain of equations, its result; 5 for 5 = x."""
    sides = split_top(written, "=")
    while len(sides) > 1 and LETTER_ALONE.fullmatch(sides[-1]):
        sides.pop()
    return sides[-1]


def leaves_of(text: str) -> list[str]:
    """Return the values of an answer, without labels and units."""

    def walk(node: Node) -> Iterator[str]:
        if not node.items:
            yield value_of(node.text)
        for item in node.items:
            yield from walk(item)

    return list(walk(build(canonical(text))))


def value_of(leaf: str) -> str:
    return split_unit(last_side(leaf))[0].rstrip("% ")


@dataclass(frozen=True, slots=True)
class Steps:
    """`made`: (operation, value) of every sum, product, quotient, power, ...; `leaves`: the rest.

    Operations are "+", "*", "/" (a product that divides), "^" (roots, too), "!" (binomials, too)
    and "f" (any function).
    """

    made: tuple[Step, ...]
    leaves: tuple[Step, ...]


class _Recorder(Reader):
    def __init__(self, tokens: list[str]) -> None:
        super().__init__(tokens)
        self.steps: list[Step] = []

    def _done(self, _operation: str, value: Number) -> Number:
        self.steps.append((_operation, DOUBLES.convert(value)))
        return value


@lru_cache(maxsize=4096)
def steps_of(text: str, *, decimal: bool = False) -> Steps | None:
    """Return the steps of a formula; None if it cannot be read or has more than `_MAX_STEPS`.

    With `decimal` a rational value that is not whole, such as 1.5, adds a quotient.
    """
    try:
        recorder = _Recorder(tokens_of(text))
        value = recorder.read()
        if decimal and isinstance(value, Fraction) and value.denominator > 1:
            recorder.steps.append(("/", DOUBLES.convert(value)))
    except (Unsupported, TooBig, RecursionError):
        return None
    if len(recorder.steps) > _MAX_STEPS:
        return None
    made = tuple(step for step in recorder.steps if step[0])
    return Steps(made, tuple(step for step in recorder.steps if not step[0]))


def carries(answer: Steps, formula: Steps, golds: list[Steps]) -> bool:
    """Return whether `answer` makes every step of `formula`, and no gold does.

    A quotient counts as a product, since 2E/2 is E. If a gold makes the same steps (3/2, where the
    formula is 6/4), `answer` must also have the formula's quotients, numbers and letters.
    """
    if not formula.made:  # 0.75, where the answer is a fraction
        number = formula.leaves[:1]
        kept = number and number[0][1].real % 1 and _contains(answer.leaves, number)
        return bool(kept) and not any(_contains(gold.leaves, number) for gold in golds)
    made = _products(formula.made)
    if not any(_contains(_products(gold.made), made) for gold in golds):
        return _contains(_products(answer.made), made)
    everything = (*formula.made, *formula.leaves)
    if any(_contains((*gold.made, *gold.leaves), everything) for gold in golds):
        return False
    return _contains((*answer.made, *answer.leaves), everything)


def is_no_simpler(answer: Steps, formula: Steps, golds: list[Steps]) -> bool:
    """Return whether `answer` has as many steps or as large a number as `formula`, and no gold has.

    Steps count only if there are two more than in any gold. A number or a fraction of two numbers
    never counts.
    """
    operations = [operation for operation, _ in answer.made]
    literal = not operations or (operations == ["/"] and len(answer.leaves) == 2)  # a/b
    if not golds or literal:
        return False
    longest = max(len(gold.made) for gold in golds)
    largest = max(_largest(gold) for gold in golds)
    if longest < len(formula.made) <= len(answer.made) and len(answer.made) > longest + 1:
        return True  # one step more is another form: 5(3x-16) is 15x-80
    return largest < _largest(formula) <= _largest(answer)


def _largest(steps: Steps) -> float:
    return max((abs(value) for _, value in steps.leaves), default=0.0)


def _products(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    return tuple(("*" if operation == "/" else operation, value) for operation, value in steps)


def _contains(steps: tuple[Step, ...], wanted: tuple[Step, ...]) -> bool:
    """Return whether `steps` has each of `wanted`, up to its sign, at least as often."""
    left = list(steps)
    for operation, x in wanted:
        for step in left:
            bound = _CLOSE * max(abs(x), abs(step[1]))
            if operation == step[0] and min(abs(x - step[1]), abs(x + step[1])) <= bound:
                left.remove(step)
                break
        else:
            return False
    return True
