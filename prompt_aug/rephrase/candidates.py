"""Candidates: a model's raw answers, cleaned and checked, each with where it is from."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from prompt_aug.prepare.overlap import OverlapIndex
from prompt_aug.questions import Question, normalise
from prompt_aug.rephrase.verify import Reason, Verdict, check
from prompt_aug.rephrase.verify.reasons import reject, verdict_of

MODELS = ("solver", "judge")
_LABEL = re.compile(
    r"^\W*(?:rephras\w*(?:\s+(?:question|problem|it|version))?|question)\s*:\W{0,2}\s+", re.I
)
_NEXT = re.compile(r"\n\s*(?:Question|Original|Rephras\w*(?: it)?)\s*:", re.I)
_QUOTES = {'"': '"', "“": "”", "«": "»"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A text that may become a rephrasing. `source` says where it is from (key, sample, model)."""

    uid: str
    text: str
    verdict: Verdict
    reasons: tuple[Reason, ...]
    source: dict[str, Any] = field(default_factory=dict)
    reviewer: str | None = None
    path: str = "checks"  # what decided: checks, solver, judge or reviewer

    @property
    def doubted_by_a_model(self) -> bool:
        """True if a solver or a judge gave a reason against it."""
        return any(reason.filter in MODELS for reason in self.reasons)

    def doubted(self, reason: Reason) -> "Candidate":
        """Return the candidate with one more reason, of a solver or a judge."""
        reasons = (*self.reasons, reason)
        return replace(self, reasons=reasons, verdict=verdict_of(reasons), path=reason.filter)


def clean(answer: str) -> str:
    """The rephrased question of an answer: no thoughts, no label, no quotes, no next example."""
    text = answer.rpartition("</think>")[2].strip()
    text = _LABEL.sub("", _NEXT.split(text)[0].strip()).strip()
    if len(text) > 1 and _QUOTES.get(text[0]) == text[-1] and text.count(text[-1]) <= 2:
        text = text[1:-1].strip()
    return text


def check_answers(
    question: Question,
    answers: Iterable[dict[str, Any]],
    benchmarks: OverlapIndex | None = None,
    overlap_limit: float = 0.5,
    allow_extra: bool = False,
) -> list[Candidate]:
    """A candidate for each raw answer, checked against the question and the accepted before it."""
    found: list[Candidate] = []
    accepted: list[str] = []
    for answer in answers:
        text = clean(answer["text"])
        result = check(
            question.text, text, accepted, answers=question.answers, allow_extra=allow_extra
        )
        extra = []
        if answer.get("finish") == "length":
            extra.append(reject("length", "the answer was cut at its limit of tokens"))
        if benchmarks and (match := benchmarks.best(text)) and match.score >= overlap_limit:
            place = f"{match.of} {match.index} ({match.score:.2f})"
            extra.append(reject("overlap", f"a benchmark question: {place}"))
        reasons = (*result.reasons, *extra)
        source = {k: v for k, v in answer.items() if k not in ("text", "uid", "used", "status")}
        candidate = Candidate(
            uid=question.uid,
            text=text,
            verdict=verdict_of(reasons),
            reasons=reasons,
            source=source,
        )
        found.append(candidate)
        if candidate.verdict == "accept":
            accepted.append(text)
    return found


def usable(candidates: Sequence[Candidate], take: Collection[str] = ("accept",)) -> list[Candidate]:
    """Return the candidates whose verdict is in `take`, each text once.

    One that a solver or a judge doubted is taken only if a reviewer accepted it.
    """
    known: dict[str, Candidate] = {}
    for candidate in candidates:
        doubted = candidate.verdict == "doubtful" and candidate.doubted_by_a_model
        if candidate.verdict in take and not doubted:
            known.setdefault(normalise(candidate.text), candidate)
    return list(known.values())


def decide(
    candidates: Sequence[Candidate], decisions: dict[tuple[str, str], tuple[str, str]]
) -> list[Candidate]:
    """The candidates with a reviewer's word in place of the verdict, where there is one.

    `decisions`: (uid, normalised text) -> (verdict, reviewer). A reviewer overrules every filter
    but "diagram": a question without its diagram is never the same.
    """
    decided = []
    for candidate in candidates:
        word = decisions.get((candidate.uid, normalise(candidate.text)))
        broken = any(reason.filter == "diagram" for reason in candidate.reasons)
        if word is not None and not (broken and word[0] == "accept"):
            verdict: Any = word[0]
            candidate = replace(candidate, verdict=verdict, reviewer=word[1], path="reviewer")
        decided.append(candidate)
    return decided
