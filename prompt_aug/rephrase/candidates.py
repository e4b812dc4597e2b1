"""Candidates: raw responses of a model or a file, cleaned and checked, each with its source."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prompt_aug.base.files import iter_lines
from prompt_aug.prepare.overlap import OVERLAP_LIMIT, OverlapIndex
from prompt_aug.questions import Question, normalise, read_parquet
from prompt_aug.rephrase.generate.prompts import RephraseError
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


@dataclass(frozen=True, slots=True)
class Candidate:
    """A text that may become a rephrasing. `source` has key, sample and model."""

    uid: str
    text: str
    verdict: Verdict
    reasons: tuple[Reason, ...]
    source: dict[str, Any] = field(default_factory=dict)
    path: str = "checks"  # what decided: checks, solver or judge

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


def read_candidates(path: Path, questions: Sequence[Question]) -> dict[str, list[Response]]:
    """Return the candidates of --from by uid, in the form of a model's responses."""
    if not path.is_file():
        raise RephraseError(f"--from={path}: no such file")
    if path.suffix == ".parquet":
        rows = read_parquet(path)
        lines = [{"question": q.text, "rephrasings": q.rephrasings} for q in rows]
    else:
        lines = list(iter_lines(path))
    uids = {normalise(question.text): question.uid for question in questions}
    found: dict[str, list[Response]] = {question.uid: [] for question in questions}
    unknown = 0
    for number, line in enumerate(lines, start=1):
        texts = line.get("rephrasings", [line.get("text")])
        if not isinstance(texts, list | tuple) or not all(isinstance(t, str) for t in texts):
            why = "needs uid or question, and text or rephrasings"
            raise RephraseError(f"--from={path}, object {number}: {why}")
        uid = str(line.get("uid") or uids.get(normalise(str(line.get("question")))))
        for text in texts if uid in found else ():
            found[uid].append({"text": text, "model": path.name, "sample": len(found[uid])})
        unknown += uid not in found
    print(f"--from: {sum(map(len, found.values()))} candidates; {unknown} lines of other questions")
    if not any(found.values()):
        raise RephraseError(f"--from={path}: no candidate of a question of QUESTIONS")
    return found
