r"""The one grader: training, validation, evaluation and data checks all call this module.

    response --extract--> answer --exact path (here)--> correct | wrong
                                   `--undecided--> math-verify in a killable process

The exact path decides by spelling, structure, exact rationals and by values that differ; only two
formulas that may be equal and are not spelled alike need a worker. Nothing is scored 0 in silence:
`Grade.status` says why, and its rates are metrics of training and evaluation. The policy for
ambiguous answers is the table in GRADING.md, every row of which is a test.

Safe to call from any thread, from many at once, in Ray actors and after a fork. `grade` of an
undecided pair blocks while a worker computes: in a coroutine use `await asyncio.to_thread(grade,
response, gold)`, or `grade_many`, which uses every worker.
"""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, get_args

from prompt_aug.grading.arithmetic import TooBig
from prompt_aug.grading.equality import compare
from prompt_aug.grading.extract import Extraction, extract, last_boxed
from prompt_aug.grading.normalize import canonical, squeeze
from prompt_aug.grading.pool import GraderError, default_pool
from prompt_aug.grading.prose import after_phrase
from prompt_aug.grading.referee import Status, judge_with_workers
from prompt_aug.grading.structure import build

__all__ = [
    "STATUSES",
    "Extraction",
    "Grade",
    "GraderError",
    "Status",
    "grade",
    "grade_answer",
    "grade_many",
    "shutdown",
]

STATUSES: tuple[Status, ...] = get_args(Status)

MAX_ANSWER = 1000  # characters; the longest of 10081 real golds has 204
MAX_NESTING = 40
_OPEN_BOX = re.compile(r"\\boxed\{(\s*[^\s{}][^\n]*)$")


@dataclass(frozen=True, kw_only=True, slots=True)
class Grade:
    """What the grader found.

    correct:    the prediction equals a gold
    extracted:  the answer found in the response, None where there is none; untrusted text
    status:     correct | wrong | no_answer: nothing answered | unparsable: math-verify cannot
                read the prediction | timeout: comparing took too much CPU | too_long: over
                `MAX_ANSWER` characters, nested too deep, or a number too large to write down |
                error: a worker failed, for example at its memory limit (see `detail`)
    detail:     more on the status, for people
    seconds:    time spent on grading; waiting for a free worker is not part of it
    """

    correct: bool
    extracted: str | None
    status: Status
    detail: str = ""
    seconds: float = 0.0


def grade(
    response: str,
    gold: str | Sequence[str],
    template: Any = None,
    *,
    extraction: Extraction | None = None,
) -> Grade:
    """Grades a whole response; any of several golds may match.

    `template` may carry an `answer_tag` other than "answer". Raises `TypeError` or `ValueError`
    for an unusable gold: that is a fault of the data, not of the response.
    """
    golds = _golds(gold)
    settings = extraction or Extraction()
    if tag := getattr(template, "answer_tag", None):
        settings = replace(settings, answer_tag=tag)
    start = time.perf_counter()
    answer = extract(response, settings)
    if answer is None:
        return Grade(correct=False, extracted=None, status="no_answer", seconds=_since(start))
    return _grade_extracted(answer, golds, start)


def grade_answer(prediction: str, gold: str | Sequence[str]) -> Grade:
    r"""Grades an answer that is already extracted; a `\boxed{...}` in it is opened."""
    golds = _golds(gold)
    start = time.perf_counter()
    return _grade_extracted(_open_box(prediction), golds, start)


def grade_many(
    pairs: Iterable[tuple[str, str | Sequence[str]]],
    template: Any = None,
    *,
    extraction: Extraction | None = None,
    on_grade: Callable[[Grade], object] | None = None,
) -> list[Grade]:
    """Grades (response, gold) pairs on every worker, in order; `on_grade` serves progress bars."""

    def one(pair: tuple[str, str | Sequence[str]]) -> Grade:
        result = grade(pair[0], pair[1], template, extraction=extraction)
        if on_grade is not None:
            on_grade(result)
        return result

    with ThreadPoolExecutor(max_workers=default_pool().settings.workers) as threads:
        return list(threads.map(one, pairs))


def shutdown() -> None:
    """Ends the workers of this process now; the next undecided pair starts new ones."""
    default_pool().close()


def _golds(gold: str | Sequence[str]) -> list[str]:
    golds = [gold] if isinstance(gold, str) else list(gold)
    if not all(isinstance(text, str) for text in golds):
        raise TypeError(f"gold must be text or a list of texts, got {gold!r}; convert it with str")
    if not any(text.strip() for text in golds):
        raise ValueError("gold is empty, so no answer could be right; drop this question")
    both = ((text, _stated(text)) for text in golds if text.strip())
    return list(dict.fromkeys(text for pair in both for text in pair))


def _stated(gold: str) -> str:
    """What a gold in a box, or one that is a whole worked solution, comes to."""
    if (opened := _open_box(gold)) is not gold:
        return opened
    if cut := _OPEN_BOX.search(gold):
        return cut[1]
    return after_phrase(gold) or gold if "nswer" in gold or "####" in gold else gold


def _open_box(text: str) -> str:
    boxed = last_boxed(text) if "box" in text else None
    return boxed if boxed and boxed.strip() else text


def _since(start: float) -> float:
    return time.perf_counter() - start


def _grade_extracted(answer: str, golds: list[str], start: float) -> Grade:
    answer = answer.strip()
    if any(answer == gold.strip() for gold in golds):
        return Grade(correct=True, extracted=answer, status="correct", seconds=_since(start))
    if not answer:
        return Grade(correct=False, extracted=answer, status="no_answer", seconds=_since(start))
    if len(answer) > MAX_ANSWER or _nesting(answer) > MAX_NESTING:
        detail = "characters" if len(answer) > MAX_ANSWER else "nesting"
        return Grade(
            correct=False,
            extracted=answer[:MAX_ANSWER],
            status="too_long",
            detail=detail,
            seconds=_since(start),
        )
    try:
        status, detail, waited = _judge(answer, golds)
    except GraderError:
        raise  # the installation is at fault, and every grade would be wrong
    except Exception as error:  # one answer must not end a training run; the rate shows it
        status, detail, waited = "error", f"internal: {type(error).__name__}: {error}", 0.0
    return Grade(
        correct=status == "correct",
        extracted=answer,
        status=status,
        detail=detail,
        seconds=max(0.0, _since(start) - waited),
    )


def _nesting(text: str) -> int:
    level = deepest = 0
    for char in text:
        if char in "([{":
            level += 1
            deepest = max(deepest, level)
        elif char in ")]}":
            level -= 1
    return deepest


def _judge(answer: str, golds: list[str]) -> tuple[Status, str, float]:
    """(status, detail, seconds spent waiting for a worker)."""
    written = canonical(answer)
    pred = build(written)
    pairs = [(canonical(gold), gold) for gold in golds]
    nodes = [(build(text), raw) for text, raw in pairs]
    try:
        if any(squeeze(text) == squeeze(written) for text, _ in pairs):
            return "correct", "", 0.0
        undecided = []
        for node, raw in nodes:
            verdict = compare(node, pred, None)
            if verdict:
                return "correct", "", 0.0
            if verdict is None:
                undecided.append((node, raw))
    except TooBig as error:
        return "too_long", f"a number too large to write down ({error})", 0.0
    if not undecided:
        return "wrong", "", 0.0
    return judge_with_workers(answer, pred, undecided)
