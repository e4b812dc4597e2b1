"""Candidates: raw responses of a model, cleaned and checked, each with its source."""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from prompt_aug.prepare.overlap import OVERLAP_LIMIT, OverlapIndex
from prompt_aug.questions import Question, normalise
from prompt_aug.rephrase.verify import Reason, Verdict, check
from prompt_aug.rephrase.verify.reasons import reject, verdict_of

MODELS = ("solver", "judge")
NOT_OF_SOURCE = ("text", "uid", "used", "status")  # of a response
_LABEL = (
    r"(?i)^\W*(?:rephras\w*(?:\s+(?:question|problem|it|version))?|question)\s*:"
    r"[^\w\s$\\(]{0,2}\s+"  # not the dollar of a formula
)
_NEXT = re.compile(r"\n\s*(?:Question|Original|Rephras\w*(?: it)?)\s*:", re.I)
_QUOTES = {'"': '"', "“": "”", "«": "»"}
Response = dict[str, Any]  # as the store keeps it
Decisions = Mapping[tuple[str, str], tuple[Verdict, str]]  # (uid, text) -> (verdict, reviewer)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A text that may become a rephrasing. `source` has key, sample and model."""

    uid: str
    text: str
    verdict: Verdict
    reasons: tuple[Reason, ...]
    source: dict[str, Any] = field(default_factory=dict)
    reviewer: str | None = None
    path: str = "checks"  # what decided: checks, solver, judge or reviewer

    @property
    def doubted_by_a_model(self) -> bool:
        return any(reason.filter in MODELS for reason in self.reasons)

    def doubted(self, reason: Reason) -> "Candidate":
        reasons = (*self.reasons, reason)
        return replace(self, reasons=reasons, verdict=verdict_of(reasons), path=reason.filter)


def clean(response: str) -> str:
    """Return the question of a response, without thoughts, label, quotes or next example."""
    text = response.rpartition("</think>")[2].strip()
    text = re.sub(_LABEL, "", _NEXT.split(text)[0].strip()).strip()
    if len(text) > 1 and _QUOTES.get(text[0]) == text[-1] and text.count(text[-1]) <= 2:
        text = text[1:-1].strip()
    return text


def check_answers(
    question: Question, responses: Iterable[Response], benchmarks: OverlapIndex, allow_extra: bool
) -> list[Candidate]:
    """Return a candidate for each response, checked against the question and those before it."""
    found: list[Candidate] = []
    for response in responses:
        text, more = clean(response["text"]), {"allow_extra": allow_extra}
        accepted = [c.text for c in found if c.verdict == "accept"]
        reasons = check(question.text, text, accepted, answers=question.answers, **more).reasons
        if (finish := response.get("finish", "stop")) != "stop":
            reasons += (reject("length", f"cut off: finish_reason {finish}"),)
        if (match := benchmarks.best(text)) and match.score >= OVERLAP_LIMIT:
            detail = f"a benchmark question: {match.of} {match.index} ({match.score:.2f})"
            reasons += (reject("overlap", detail),)
        source = {k: v for k, v in response.items() if k not in NOT_OF_SOURCE}
        found.append(Candidate(question.uid, text, verdict_of(reasons), reasons, source))
    return found


def usable(candidates: Sequence[Candidate], take: Collection[str] = ("accept",)) -> list[Candidate]:
    """Return candidates with a verdict in `take` that no model doubted, each text once."""
    known: dict[str, Candidate] = {}
    for candidate in candidates:
        doubted = candidate.verdict == "doubtful" and candidate.doubted_by_a_model
        if candidate.verdict in take and not doubted:
            known.setdefault(normalise(candidate.text), candidate)
    return list(known.values())


def decided(candidate: Candidate, decisions: Decisions) -> Candidate:
    """Apply a reviewer's verdict, which overrides every filter except "diagram"."""
    verdict, reviewer = decisions.get((candidate.uid, normalise(candidate.text)), (None, ""))
    broken = any(reason.filter == "diagram" for reason in candidate.reasons)
    if verdict == "reject" or (verdict == "accept" and not broken):
        return replace(candidate, verdict=verdict, reviewer=reviewer, path="reviewer")
    return candidate
