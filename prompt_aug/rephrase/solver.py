"""The solver check: k answers of a model to every text, graded by the project's grader.

A rephrasing that is harder is what TA-GRPO wants, so few right answers alone say nothing. What says
something is a *new dominant wrong answer*: where the text has become another problem, the model
agrees on the answer of that one. With w the most frequent answer to the candidate, given by a of
its k responses and by b of the k' responses to the question itself, the candidate is doubtful if

    w is wrong,   a >= 3,   a is more than the right answers to it,
    P(at least a of the a + b fall to the candidate | hypergeometric) < 0.05   (Fisher, one-sided)

The question's own most frequent wrong answer is no new one. Agreement with the gold and with the
question's most frequent answer is reported with Wilson's 95 % interval.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from prompt_aug.estimates import wilson
from prompt_aug.grading import grade_answer, grade_many
from prompt_aug.questions import Question
from prompt_aug.rephrase.candidates import Candidate
from prompt_aug.rephrase.choose import Rate
from prompt_aug.rephrase.generate.prompts import Prompt
from prompt_aug.rephrase.generate.store import Request, Sampling, Store, make_request
from prompt_aug.rephrase.verify.reasons import doubt

LEAST, SURE = 3, 0.05
MOST_CLASSES = 8  # different wrong answers compared with one another; the others count alone
SOLVE = Prompt(
    "solve",
    "Box 2 of arXiv 2601.22478v5",
    "{question}\n\nPlease provide step-by-step reasoning, and enclose your final answer in the "
    "box: \\boxed{}.",
)


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers to one text: how many right, and each wrong answer with how often."""

    right: int
    responses: int
    wrong: tuple[tuple[str, int], ...]  # most frequent first

    @property
    def rate(self) -> Rate:
        return self.right, self.responses

    def most_frequent_wrong(self) -> tuple[str, int]:
        """The first of `wrong`, ("", 0) without any."""
        return self.wrong[0] if self.wrong else ("", 0)


def solve_requests(
    question: Question, texts: Sequence[str], sampling: Sampling, samples: int
) -> list[Request]:
    """A request for `samples` answers to each text."""
    return [
        make_request(question.uid, text, prompt=SOLVE, sampling=sampling, samples=samples)
        for text in texts
    ]


def answers_of(question: Question, request: Request, store: Store) -> Answers:
    """The graded answers to one text; responses without an answer are wrong, each by itself."""
    texts = store.responses(request)
    grades = grade_many((text, list(question.answers)) for text in texts)
    classes: list[tuple[str, int]] = []
    for grade in grades:
        if grade.correct or not grade.extracted:
            continue
        place = _place(grade.extracted, [name for name, _ in classes[:MOST_CLASSES]])
        if place is None:
            classes.append((grade.extracted, 1))
        else:
            classes[place] = (classes[place][0], classes[place][1] + 1)
    classes.sort(key=lambda item: -item[1])
    return Answers(sum(g.correct for g in grades), len(grades), tuple(classes))


def _place(answer: str, known: Sequence[str]) -> int | None:
    """The first of the `known` answers that is the same answer."""
    for place, other in enumerate(known):
        if answer == other or _same(answer, other):
            return place
    return None


def _same(answer: str, other: str) -> bool:
    """Whether the grader takes one for the other; an answer that is no gold equals only itself."""
    try:
        return grade_answer(answer, other).correct
    except (TypeError, ValueError):
        return False


def fisher(a: int, k: int, b: int, m: int) -> float:
    """P(X >= a), X the number in the first k of k + m places of a + b things put at random."""
    total, things = k + m, a + b
    ways = math.comb(total, things)
    high = min(k, things)
    return sum(math.comb(k, x) * math.comb(m, things - x) for x in range(a, high + 1)) / ways


def judge(candidate: Candidate, question: Answers, answers: Answers) -> Candidate:
    """The candidate, doubtful where its responses agree on a new wrong answer."""
    name, count = answers.most_frequent_wrong()
    before = next((n for other, n in question.wrong if other == name or _same(name, other)), 0)
    if count < LEAST or count <= answers.right:
        return candidate
    if question.most_frequent_wrong()[1] == before > 0 and before >= question.right:
        return candidate  # it is the question's own most frequent answer
    chance = fisher(count, answers.responses, before, question.responses)
    if chance >= SURE:
        return candidate
    detail = (
        f"{count} of {answers.responses} responses answer {name[:40]!r}, to the question "
        f"{before} of {question.responses} (p = {chance:.3f})"
    )
    return candidate.doubted(doubt("solver", detail))


def agreement(question: Answers, answers: Answers) -> dict[str, object]:
    """Shares of the responses that agree with the gold, and with the question's most frequent
    answer, each as [share, low, high]."""
    name, count = question.most_frequent_wrong()
    same = answers.right
    if count > question.right:
        same = next((n for other, n in answers.wrong if other == name or _same(name, other)), 0)
    total = answers.responses
    shares = {"gold": answers.right, "most_frequent": same}
    return {**{name: _share(agree, total) for name, agree in shares.items()}, "responses": total}


def _share(agree: int, total: int) -> list[float]:
    """[share, low, high]; [0, 0, 1], where nothing is known, without responses."""
    return [agree / total, *wilson(agree / total, total)] if total else [0.0, 0.0, 1.0]
