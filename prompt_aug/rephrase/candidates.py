r"""Candidates: raw responses of a model or the toy world's rules; checked, then chosen.

The choice is greedy: the next candidate is the one with the largest distance to the nearest text
before it, which is 1 - 2 L / (m + n), L the longest common subsequence of the tokens.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from prompt_aug.grading import grade_answer, grade_many
from prompt_aug.prepare.filters import OVERLAP_LIMIT, OverlapIndex
from prompt_aug.questions import Question, normalise
from prompt_aug.rephrase.checks import (
    ASKS,
    Check,
    Reason,
    Verdict,
    check_text,
    doubt,
    likeness,
    reject,
    sibling_copies,
    tokens,
)
from prompt_aug.rephrase.reading import read

NOT_OF_SOURCE = ("text", "uid", "used")  # of a response
_THOUGHTS = r"(?s)\A(?:.*(?:</think>|\[/THINK\]|◁/think▷)|\s*analysis.*assistantfinal)"
_LABEL = (
    r"(?i)^\W*(?:(?:rephras|reword|rewrit|paraphras)\w*(?:\s+(?:question|problem|it|version))?"
    r"|question)\s*[*_]{0,2}:"
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
    path: str = "checks"  # what decided: checks or solver


def clean(response: str) -> str:
    """Return the question of a response, without thoughts, label, quotes or next example."""
    text = re.sub(_THOUGHTS, "", response).strip()
    before = _NEXT.split(text)[0]  # without a request, it is the first part of the question
    text = re.sub(_LABEL, "", (before if ASKS.search(before) else text).strip()).strip()
    if len(text) > 1 and _QUOTES.get(text[0]) == text[-1] and text.count(text[-1]) <= 2:
        text = text[1:-1].strip()
    return text


def check_answers(
    question: Question, responses: Iterable[Response], benchmarks: OverlapIndex
) -> list[Candidate]:
    """Return a candidate for each response, checked against the question and those before it."""
    checked: list[Candidate] = []
    for response in responses:
        text = clean(response["text"])
        accepted = [c.text for c in checked if c.verdict == "accept"]
        reasons = check_text(question.text, text, accepted, answers=question.answers).reasons
        if (finish := response.get("finish", "stop")) != "stop":
            reasons += (reject("length", f"cut off: finish_reason {finish}"),)
        if (match := benchmarks.best(text)) and match.score >= OVERLAP_LIMIT:
            detail = f"a benchmark question: {match.of} {match.index} ({match.score:.2f})"
            reasons += (reject("overlap", detail),)
        source = {k: v for k, v in response.items() if k not in NOT_OF_SOURCE}
        checked.append(Candidate(question.uid, text, Check(reasons).verdict, reasons, source))
    return checked


def accepted(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Return the accepted candidates, each text once."""
    distinct: dict[str, Candidate] = {}
    for candidate in candidates:
        if candidate.verdict == "accept":
            distinct.setdefault(normalise(candidate.text), candidate)
    return list(distinct.values())


_RULES = yaml.safe_load(Path(__file__).with_name("rules.yaml").read_text(encoding="utf-8"))


def rule_responses(question: str, count: int) -> list[Response]:
    """Return up to `count` texts by the forms of rules.yaml, in the form of a model's responses."""
    question = question.strip()
    texts = [
        form.format(**match.groupdict())
        for rule in _RULES
        for pattern in rule["questions"]
        if (match := re.fullmatch(pattern, question))
        for form in rule["forms"]
    ]
    texts = [text for text in dict.fromkeys(texts) if text != question]
    return [{"text": text, "model": "rules", "sample": i} for i, text in enumerate(texts[:count])]


def distance(first: str, second: str) -> float:
    """Return 1 - `likeness` of the tokens of two texts, in [0, 1]."""
    return 1 - likeness(tokens(read(first)), tokens(read(second)))


def choose(question: str, candidates: Sequence[str], count: int) -> list[int]:
    """Return the places of the `count` best candidates, by rank."""
    ranked: list[int] = []
    while len(ranked) < min(count, len(candidates)):
        before = [candidates[i] for i in ranked]
        worth = {
            place: min(distance(text, earlier) for earlier in (question, *before))
            for place, text in enumerate(candidates)
            if place not in ranked
        }
        ranked.append(max(worth, key=worth.__getitem__))
    return ranked


# ------------------------------------------------------------------------- verdicts of the solver
# m of k right answers of a solver accept a candidate, because another problem rarely has the same
# answer. m of k equal wrong answers make it doubtful, unless the question gets that answer, too.
# Otherwise the verdict of the checks stays. Agreement therefore favors easy questions.

MOST_CLASSES = 8  # different wrong answers compared with one another; the others are ignored


class Answers(NamedTuple):
    """Responses to one text: how many right, and each wrong answer with how often."""

    right: int
    responses: int
    wrong: tuple[tuple[str, int], ...]  # most frequent first


def answers_of(question: Question, responses: Sequence[Response]) -> Answers:
    """Grade the distinct responses to one text. One without an answer is wrong and in no class."""
    texts = dict.fromkeys(response["text"] for response in responses)
    grades = grade_many((text, question.answers) for text in texts)
    classes: dict[str, int] = {}
    for answer in (g.extracted for g in grades if not g.correct and g.extracted):
        name = next((equal for equal in classes if _same(equal, answer)), answer)
        if name in classes or len(classes) < MOST_CLASSES:
            classes[name] = classes.get(name, 0) + 1
    wrong = sorted(classes.items(), key=lambda item: -item[1])
    return Answers(sum(g.correct for g in grades), len(grades), tuple(wrong))


def _same(answer: str, gold: str) -> bool:
    return answer == gold or grade_answer(answer, gold).correct


def solved(
    candidate: Candidate, own: Answers, answers: Answers, agree: int, siblings: Sequence[str] = ()
) -> Candidate:
    """Apply the answers to a candidate that the checks did not reject; `siblings` are accepted."""
    shown = {"right": answers.right, "responses": answers.responses, "wrong": answers.wrong[:2]}
    candidate = replace(candidate, source=candidate.source | {"solver": shown})
    if answers.right >= agree:
        if candidate.verdict == "accept":
            return candidate
        if copied := tuple(sibling_copies(candidate.text, siblings)):
            reasons = (*candidate.reasons, *copied)
            return replace(candidate, verdict="reject", reasons=reasons, path="solver")
        return replace(candidate, verdict="accept", path="solver")
    name, count = answers.wrong[0] if answers.wrong else ("", 0)
    usual = own.wrong[0][0] if own.wrong and own.wrong[0][1] >= own.right else None
    if count >= max(agree, 2) and not (usual is not None and _same(usual, name)):
        detail = f"{count} of {answers.responses} responses answer {name[:40]!r}"
        reasons = (*candidate.reasons, doubt("solver", detail))
        return replace(candidate, reasons=reasons, verdict="doubtful", path="solver")
    return candidate
