"""Cheap checks of a candidate rephrasing: accept, doubtful or reject, with reasons."""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from prompt_aug.rephrase.verify.edit import added_quantity, compare_words
from prompt_aug.rephrase.verify.formulas import compare_formulas
from prompt_aug.rephrase.verify.reasons import Reason, Verdict, doubt, reject, verdict_of
from prompt_aug.rephrase.verify.surface import copies, leaked_answers, surface
from prompt_aug.rephrase.verify.text import read
from prompt_aug.rephrase.verify.values import compare_numbers

__all__ = ["Check", "Reason", "Verdict", "check"]

LONGEST_TEXT = 2000  # characters that a candidate may have beyond three times the question's


@dataclass(frozen=True, slots=True)
class Check:
    """Verdict on a candidate: that of its worst reason, or "accept" without reasons."""

    verdict: Verdict
    reasons: tuple[Reason, ...] = ()


def check(
    question: str,
    candidate: str,
    siblings: Sequence[str] = (),
    *,
    answers: Collection[str] = (),
    allow_extra: bool = False,
) -> Check:
    """Compare `candidate` with `question` and return the verdict with all reasons.

    `siblings` are accepted candidates of the question; `answers` are its right answers, which a
    candidate must not add. With `allow_extra` an added sentence with a quantity is doubtful instead
    of rejected.
    """
    if len(candidate) > LONGEST_TEXT + 3 * len(question):
        return Check("reject", (reject("length", f"{len(candidate)} characters"),))
    filters: dict[str, Callable[[], Iterable[Reason]]] = {
        "surface": lambda: surface(question, candidate),
        "copies": lambda: copies(question, candidate, siblings),
        "leak": lambda: leaked_answers(question, candidate, answers),
        "numbers": lambda: compare_numbers(read(question), read(candidate)),
        "extra": lambda: added_quantity(read(question), read(candidate), allow_extra),
        "formulas": lambda: compare_formulas(read(question), read(candidate)),
        "edit": lambda: compare_words(read(question), read(candidate)),
    }
    reasons = list[Reason]()
    for name, run in filters.items():
        try:
            reasons += run()
        except Exception as error:  # a defect here must not end a paid run
            reasons.append(doubt("error", f"{name} raised {type(error).__name__}: {error}"[:200]))
    return Check(verdict_of(tuple(reasons)), tuple(reasons))
