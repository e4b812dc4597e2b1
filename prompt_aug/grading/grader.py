r"""Grade responses: training, validation, evaluation and data checks call this module.

    response --extract--> answer --repeats the question--> echo
                                 --exact path (here)--> correct | wrong
                                   `--undecided--> math-verify in a killable process

Only formulas that may be equal but are spelled differently need a worker. GRADING.md has the rules.

Safe to call from many threads at once, in Ray actors and after a fork. `grade` blocks while a
worker computes, so a coroutine uses `await asyncio.to_thread(grade, response, gold)`.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Literal, get_args

from prompt_aug.grading.echo import DRAWING, MAX_QUESTION, is_copied, is_unworked, last_side
from prompt_aug.grading.equality import compare, words_of
from prompt_aug.grading.evaluate import TooBig, digits, evaluate, mixed_as_sums
from prompt_aug.grading.extract import (
    Extraction,
    after_phrase,
    closed_boxes,
    extract,
    open_box,
    stated_value,
)
from prompt_aug.grading.normalize import braced, canonical, is_balanced, squeeze
from prompt_aug.grading.pool import GraderError, default_pool
from prompt_aug.grading.structure import Node, build
from prompt_aug.grading.units import split_unit

# fmt: off
Status = Literal[
    "correct", "unworked", "wrong", "echo", "no_answer", "unparsable", "timeout", "too_long",
    "error", "bad_result",
]
# fmt: on
STATUSES: tuple[Status, ...] = get_args(Status)
MAX_WORKER_CALLS = 12  # a list of n formulas can need n * n of them
MAX_ANSWER = 1000  # characters; the longest of 10081 real golds has 204
MAX_NESTING = 40
TOO_BIG = "a number too large to write down ({})"

Gold = str | Sequence[str]
Options = Sequence[str]
Pair = tuple[str, Gold] | tuple[str, Gold, str | None] | tuple[str, Gold, str | None, Options]

_TOWER = re.compile(
    r"\d\s*\}?\s*\^\s*[{(]*\s*-?\d+\s*\^\s*[{(]*\s*\d|\^\s*[{(]*\s*-?\d{5,}|\d{4,}\s*\)?\s*!|!\s*\)?\s*!"
)
_LOG = re.compile(r"\\log(?![a-zA-Z]|\s*_)")
_MACRO = re.compile(
    r"\\(?:let|[egx]?def|(?:re)?newcommand|csname|catcode|[hv]?phantom|[hv]space)(?![a-zA-Z])"
)


@dataclass(eq=False)
class _Stop(Exception):  # noqa: N818  carries a verdict out of a comparison
    status: Status
    detail: str


class _Referee:
    """Oracle that compares by workers; records unreadable formulas."""

    def __init__(self) -> None:
        self._calls = 0
        self.unreadable = ""

    def __call__(self, gold: str, pred: str) -> bool:
        if _TOWER.search(pred) and not _TOWER.search(gold):
            raise TooBig("a tower of powers or factorials")
        self._calls += 1  # cached verdicts count, or a second grade could differ from the first
        if self._calls > MAX_WORKER_CALLS:
            raise _Stop("timeout", "too many formulas to compare")
        status, detail = _verdict(_latex(gold), _latex(pred))
        if status == "timeout":
            raise _Stop("timeout", detail)
        if status == "unparsable":
            self.unreadable = detail
        return status == "correct"


@lru_cache(maxsize=1 << 14)
def _verdict(gold: str, pred: str) -> tuple[str, str]:
    """Return a worker's verdict; raise _Stop, which is not cached, if load may be the cause."""
    reply = default_pool().ask({"gold": gold, "pred": pred})
    status, detail = reply["status"], reply["detail"]
    if status == "error" or detail == "wall":
        raise _Stop("error" if status == "error" else "timeout", detail)
    return status, detail


def _latex(text: str) -> str:
    """Return the text for latex2sympy, whose \\log has the base e."""
    text = mixed_as_sums(braced(_LOG.sub(r"\\log_{10}", text)))
    return text.replace("\\degree", "^{\\circ}").strip()


def _judge_with_workers(undecided: list[tuple[Node, Node]]) -> tuple[Status, str]:
    """Return (status, detail) of the pairs that the exact path left open; "wrong" for none."""
    failed: tuple[Status, str] = ("wrong", "")
    for gold, pred in undecided:
        referee = _Referee()
        try:
            if compare(gold, pred, referee):
                return "correct", ""
            if referee.unreadable and failed[0] == "wrong":
                failed = ("unparsable", referee.unreadable)
        except _Stop as stop:
            failed = (stop.status, stop.detail)
        except TooBig as error:
            failed = ("too_long", TOO_BIG.format(error))
    return failed


@dataclass(frozen=True, kw_only=True, slots=True)
class Grade:
    """Result of grading one response; GRADING.md explains the statuses."""

    extracted: str | None  # the answer found in the response: untrusted text
    status: Status  # "unworked" only without `pay_unworked`
    detail: str = ""
    unworked: bool = False  # the answer equals a gold, as arithmetic that is not worked out

    @property
    def correct(self) -> bool:
        return self.status == "correct"


def grade(
    response: str,
    gold: Gold,
    question: str | None = None,
    options: Options = (),
    *,
    extraction: Extraction | None = None,
    pay_unworked: bool = True,
) -> Grade:
    """Grade a whole response; any of several golds may match.

    With `question`, an answer that only repeats it is `echo`. With `options` the gold is a letter.
    Raises `TypeError` or `ValueError` for an unusable gold.
    """
    golds = _golds(gold)
    extraction = extraction or Extraction()
    if (answer := extract(response, extraction)) is None:
        return Grade(extracted=None, status="no_answer")
    if options:
        choice = _grade_choice(answer, golds, options)
        if choice.detail and not names_letter(answer, options):  # \boxed{7.4} ... Answer: E
            later = extract(response, extraction, after_boxes=True)
            return _grade_choice(later, golds, options) if later else choice
        return choice
    result = _grade_extracted(answer, golds, question)
    return replace(result, status="unworked") if result.unworked and not pay_unworked else result


def grade_answer(prediction: str, gold: Gold, *, question: str | None = None) -> Grade:
    r"""Grade an answer that is already extracted; a `\boxed{...}` in it is opened."""
    return _grade_extracted(open_box(prediction), _golds(gold), question)


def grade_many(
    pairs: Iterable[Pair],
    *,
    extraction: Extraction | None = None,
    on_grade: Callable[[Grade], object] | None = None,
) -> list[Grade]:
    """Grade each (response, gold[, question[, options]]) on all workers; return grades in order."""
    return default_pool().map(lambda pair: grade(*pair, extraction=extraction), pairs, on_grade)


def _golds(gold: Gold) -> list[str]:
    golds = [gold] if isinstance(gold, str) else list(gold)
    if not all(isinstance(text, str) for text in golds):
        raise TypeError(f"gold must be text or a list of texts, got {gold!r}; convert it with str")
    if not any(text.strip() for text in golds):
        raise ValueError("gold is empty, so no answer could be right; drop this question")
    readings = ((text, _stated(text), _all_boxes(text)) for text in golds)
    return list(dict.fromkeys(text for texts_of in readings for text in texts_of if text.strip()))


def _stated(gold: str) -> str:
    """Return the answer that a boxed gold, or a whole worked solution, states."""
    if (opened := open_box(gold)) is not gold:
        return opened
    if gold.count("}") == gold.count("{") + 1:
        gold = gold.rstrip().removesuffix("}")  # in answers of MathArena
    return after_phrase(gold) or gold if "nswer" in gold or "####" in gold else gold


def _all_boxes(gold: str) -> str:
    """Return the boxes of a gold as one list; "" for fewer than two or with words between."""
    boxes = closed_boxes(gold)
    between = "".join(gold[a[1] : b[0]] for a, b in pairwise(boxes))
    if len(boxes) < 2 or any(char.isalnum() for char in between):
        return ""
    return ", ".join(content for _, _, content in boxes)


def _grade_extracted(answer: str, golds: list[str], question: str | None) -> Grade:
    answer = answer.strip()
    if any(answer == gold.strip() for gold in golds):
        return Grade(extracted=answer, status="correct")
    if not answer:
        return Grade(extracted=answer, status="no_answer")
    if len(answer) > MAX_ANSWER or nesting(answer) > MAX_NESTING:
        detail = "characters" if len(answer) > MAX_ANSWER else "nesting"
        return Grade(extracted=answer[:MAX_ANSWER], status="too_long", detail=detail)
    try:
        status, detail = _judge(answer, golds, question)
    except GraderError:
        raise  # the installation is at fault, and every grade would be wrong
    except Exception as error:  # one answer must not end a training run, which logs the rate
        status, detail = "error", f"internal: {type(error).__name__}: {error}"
    unworked = status == "correct" and is_unworked(answer, golds)
    return Grade(extracted=answer, status=status, detail=detail, unworked=unworked)


def _grade_choice(answer: str, golds: list[str], options: Options) -> Grade:
    """Grade a choice; `extracted` is the chosen letter, or the whole answer without one."""
    letter = chosen(answer, options)
    status: Status = "correct" if letter in golds else "wrong" if answer.strip() else "no_answer"
    detail = "" if letter else "not one option's letter, alone or with its text"
    return Grade(extracted=letter or answer[:MAX_ANSWER], status=status, detail=detail)


def nesting(text: str) -> int:
    """Return how deep the brackets of `text` are nested."""
    return max(accumulate(((c in "([{") - (c in ")]}") for c in text), initial=0))


def _judge(answer: str, golds: list[str], question: str | None) -> tuple[Status, str]:
    value, question = stated_value(answer), DRAWING.sub(" ", question or "")[:MAX_QUESTION]
    shown = last_side(canonical(answer)).partition(r"\approx")[0]
    texts = filter(None, (answer, value, shown))
    if question and any(is_copied(text, golds, question) for text in texts):
        return "echo", "the question's own formula, or one still to be worked out"
    status, detail = _compare(answer, golds)
    if status in ("wrong", "unparsable") and value is not None:
        status, detail = _compare(value, golds)
    return status, detail


def _compare(answer: str, golds: list[str]) -> tuple[Status, str]:
    written = canonical(answer)
    if not is_balanced(written):
        return "unparsable", "brackets that do not close"
    if _MACRO.search(written):
        return "unparsable", "a command that changes TeX"
    gold_texts = [canonical(gold) for gold in golds]
    try:
        if any(squeeze(text) == squeeze(written) for text in gold_texts):
            return "correct", ""
        undecided = []
        for text in gold_texts:
            gold, pred = build(text), build(written)
            verdict = compare(gold, pred, None)
            if verdict:
                return "correct", ""
            if verdict is None:
                undecided.append((gold, pred))
    except TooBig as error:
        return "too_long", TOO_BIG.format(error)
    return _judge_with_workers(undecided)


# ------------------------------------------------------------------------- choices
# The leading letter decides: `(B) $10^{-4}$ eV` chooses B, `B or C` none.

LETTERS = "ABCDEFGHIJ"
_STYLE = r"\\(?:text|math)[a-z]*|\\(?:mbox|f?box(?:ed)?|bf|rm|displaystyle)(?![a-zA-Z])|\""
_SPACE = r"\\[()\[\],;:! ]|\\q?quad(?![a-zA-Z])"
_AFTER = rf"(?:[\s$)}}\]*\"]|{_SPACE})*"
_LEADING = re.compile(
    rf"(?:[\s$({{\[*]|{_STYLE}|{_SPACE})*"
    r"(?:(?i:(?:the )?(?:correct )?(?:option|choice|answer)(?: is)?)(?![a-zA-Z])"
    rf"(?:[\s:({{]|{_SPACE})*)?"
    rf"([A-J])(?![a-zA-Z]){_AFTER}(?:[.:,](?!\d){_AFTER})?(?:-(?=\s))?"
)
_IDLE = re.compile(rf"{_STYLE}|{_SPACE}|\\(?:left|right)(?![a-zA-Z])|[$*]")
_BRACES = re.compile(r"[{}\\]")
# A letter that stands for itself: it begins the text, or follows one of these words or a blank and
# a bracket. An article, a symbol of a formula and `I and II` of a list of statements are none.
_NAMED = re.compile(
    r"(?:^|\b(?:both|either|neither|nor|not|only|(?:option|choice|answer)s?(?: is)?)\b|\s(?=\())"
    r"[\s:(\[]*(?-i:([A-J]))(?=\s*(?:$|[),;\]]|[.:](?!\w)|(?:and|or|nor|is|only)\b))"
    r"(?!(?<=I)\s*(?:,|and\b|or\b|only\b))",
    re.IGNORECASE,
)


def chosen(answer: str, options: Options) -> str | None:
    """Return the letter that `answer` chooses; None if it chooses none of `options`, or several.

    The text after the letter is graded against the option's if their spelling differs.
    """
    leading = _LEADING.match(answer)
    if leading is None or (place := LETTERS.index(leading[1])) >= len(options):
        return None
    rest, option = answer[leading.end() :], options[place]
    words, others = _words(rest), [rival for rival in options if rival != option]
    if words and words != _words(option) and words in map(_words, others):
        return None
    folded, expected = ([w.casefold() for w in some] for some in (words, _words(option)))
    if folded == expected[: len(folded)] or "".join(folded) == "".join(expected):
        return leading[1]
    unopened = max(0, rest.count("}") - rest.count("{"))  # closes a \text{ before the letter
    rest = rest.rstrip(" $.)")
    rest = rest[: len(rest) - unopened]
    equal = (_grade_extracted(rest, [text], None).correct for text in (option, *others))
    return leading[1] if next(equal) and not any(equal) else None


def names_letter(answer: str, options: Options) -> bool:
    """Return whether `answer` names an option's letter, as `A or B` and `(A) 5` do, not `CO_2`."""
    plain = re.sub("[{}]", "", _IDLE.sub(" ", answer)).strip()
    return bool(set(_NAMED.findall(plain)) & set(LETTERS[: len(options)]))


def _words(text: str) -> list[str]:
    """Return the words to compare, without dollars, braces, style and brackets around them."""
    plain = _IDLE.sub(" ", unicodedata.normalize("NFKC", text)).split()
    spelled = (_BRACES.sub("", word).strip("()[]").rstrip(".,;:") for word in plain)
    return [word for word in spelled if word]


_DIGITS = 30
_DECIMAL_BITS = 10_000
_MARKS = {"list": "{}", "set": "{}", "matrix": "[]", "tuple": "()", "union": "<>"}


def normal_form(answer: str) -> str:
    r"""Return the normal form, to count votes: `1/2` for 0.50, `{1,3}` for 3, 1.

    Grading is not an equivalence relation: 80 equals both "80 cents" and "80 dollars". Normal forms
    omit labels, units and percent signs. An unreadable answer is its text without white space.
    """
    plain = "".join(answer.split())
    if len(answer) > MAX_ANSWER or nesting(answer) > MAX_NESTING:
        return plain[:MAX_ANSWER]
    try:
        return _form(build(canonical(open_box(answer)))) or plain
    except (ValueError, ArithmeticError, RecursionError):  # unreadable: a vote for itself
        return plain


def _form(node: Node) -> str:
    if node.kind == "either":  # the first of several readings
        return _form(node.items[0])
    if node.kind == "leaf":
        return _leaf(node.text)
    parts = [_form(item) for item in node.items]
    if node.kind in ("list", "set", "union"):
        parts = sorted(set(parts))
    if len(parts) == 1 and node.kind in ("list", "set"):
        return parts[0]
    marks = node.bounds if len(node.bounds) == 2 == len(parts) else _MARKS[node.kind]
    return f"{marks[0]}{','.join(parts)}{marks[1]}"


def _leaf(text: str) -> str:
    if words := words_of(text):
        return words
    plain = split_unit(text)[0].rstrip("% ")
    try:
        value = evaluate(plain)
    except ValueError:  # no number, or one too large to write down
        return squeeze(plain)
    if value.exact is not None:
        parts = (value.exact.numerator, value.exact.denominator)
        # Python writes at most 4300 decimal digits; hexadecimal has no limit.
        large = max(part.bit_length() for part in parts) > _DECIMAL_BITS
        return "/".join(map(hex, parts)) if large else str(value.exact)
    if value.has_letters:
        return " ".join(f"{z.real + 0.0:.8g}{z.imag + 0.0:+.8g}i" for z in value.approximate)
    number = digits(value.text)
    return "+i".join(
        "0" if abs(part) < 1e-60 else number.context.nstr(part, _DIGITS)
        for part in (number.real, number.imag)
    )
