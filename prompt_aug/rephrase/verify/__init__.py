"""Whether a candidate is the question in other words: accept, doubtful or reject, with reasons."""

from collections.abc import Collection, Sequence

from prompt_aug.rephrase.verify.asked import compare_asked
from prompt_aug.rephrase.verify.bound import compare_bindings
from prompt_aug.rephrase.verify.mathematics import (
    compare_formulas,
    compare_numbers,
    renamed,
    renaming,
)
from prompt_aug.rephrase.verify.meaning import compare_words
from prompt_aug.rephrase.verify.reading import read
from prompt_aug.rephrase.verify.reasons import Check, Reason, Verdict, verdict_of
from prompt_aug.rephrase.verify.surface import copies, leaked_answers, surface
from prompt_aug.rephrase.verify.values import numbers

__all__ = ["FILTERS", "Check", "Reason", "Verdict", "check"]

LONGEST_TEXT = 2000  # characters that a candidate may have beyond three times the question's
FILTERS = (
    "diagram language length chatter leak copy sibling renamed numbers formulas edit contrast "
    "order unit comparison flow people clause asked form overlap solver"
).split()


def check(
    question: str,
    candidate: str,
    siblings: Sequence[str] = (),
    *,
    answers: Collection[str] = (),
) -> Check:
    """The verdict on `candidate` as a rephrasing of `question`, with the reason of each filter.

    `siblings` are the candidates of the same question that are kept before this one; `answers` are
    the question's right answers, which must not stand in the candidate unless they stand in the
    question. "reject": what was seen is a fault. "doubtful": it may be one, and a reader or the
    solver check has to say. "accept": no filter saw anything, which is no proof.

    Similarity of embeddings is no part of this: between an edited and a rephrased question it says
    the wrong thing (an edit of one number is closer than an honest rewording).
    """
    if len(candidate) > LONGEST_TEXT + 3 * len(question):
        reason = Reason("length", "reject", f"{len(candidate)} characters")
        return Check("reject", (reason,))
    own, other = read(question), read(candidate)
    reasons = (
        *surface(question, candidate),
        *copies(question, candidate, siblings),
        *leaked_answers(question, candidate, answers),
        *compare_numbers(numbers(own), numbers(other)),
        *compare_formulas(own, other),
        *compare_words(own, other),
        *compare_bindings(own, other),
        *compare_asked(renamed(own, renaming(own.formulas, other.formulas)), other),
    )
    return Check(verdict_of(reasons), reasons)
