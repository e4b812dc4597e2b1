"""Verdicts of models on candidates: answers of a solver, and judgments of a judge.

m of k right answers of a solver accept a candidate, because another problem rarely has the same
answer. m of k equal wrong answers make it doubtful, unless the question gets that answer, too.
Otherwise the verdict of the checks stays. Agreement therefore favors easy questions.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from prompt_aug.grading import grade_answer, grade_many
from prompt_aug.questions import Question
from prompt_aug.rephrase.candidates import Candidate
from prompt_aug.rephrase.checks import doubt

MOST_CLASSES = 8  # different wrong answers compared with one another; the others are ignored
FIELDS = ("same_unknown", "same_conditions", "same_answer")
_OBJECT = re.compile(r"\{[^{}]*\}", re.DOTALL)


class Answers(NamedTuple):
    """Responses to one text: how many right, and each wrong answer with how often."""

    right: int
    responses: int
    wrong: tuple[tuple[str, int], ...]  # most frequent first


def answers_of(question: Question, responses: Sequence[str]) -> Answers:
    """Grade the responses to one text. One without an answer is wrong and in no class."""
    grades = grade_many((text, list(question.answers)) for text in responses)
    classes: dict[str, int] = {}
    for answer in (g.extracted for g in grades if not g.correct and g.extracted):
        name = next((equal for equal in classes if _same(equal, answer)), answer)
        if name in classes or len(classes) < MOST_CLASSES:
            classes[name] = classes.get(name, 0) + 1
    wrong = sorted(classes.items(), key=lambda item: -item[1])
    return Answers(sum(g.correct for g in grades), len(grades), tuple(wrong))


def _same(answer: str, gold: str) -> bool:
    try:
        return answer == gold or grade_answer(answer, gold).correct
    except (TypeError, ValueError):
        return False


def solved(candidate: Candidate, own: Answers, answers: Answers, agree: int) -> Candidate:
    """Apply the answers to a candidate that the checks did not reject."""
    shown = {"right": answers.right, "responses": answers.responses, "wrong": answers.wrong[:2]}
    candidate = replace(candidate, source=candidate.source | {"solver": shown})
    if answers.right >= agree:
        path = "checks" if candidate.verdict == "accept" else "solver"
        return replace(candidate, verdict="accept", path=path)
    name, count = answers.wrong[0] if answers.wrong else ("", 0)
    usual = own.wrong[0][0] if own.wrong and own.wrong[0][1] >= own.right else None
    if count >= max(agree, 2) and not (usual is not None and _same(usual, name)):
        detail = f"{count} of {answers.responses} responses answer {name[:40]!r}"
        return candidate.doubted(doubt("solver", detail))
    return candidate


def judged(candidate: Candidate, response: str) -> Candidate:
    """Apply a judge's response to a doubtful candidate."""
    judgment = read_judgment(response)
    if judgment is None:
        return candidate.doubted(doubt("judge", f"no verdict in {response.strip()[:80]!r}"))
    candidate = replace(candidate, source=candidate.source | {"judge": judgment})
    if denied := [name for name in FIELDS if not judgment[name]]:
        detail = f"not {', '.join(denied)}: {judgment['difference']}"
        return candidate.doubted(doubt("judge", detail[:300]))
    return replace(candidate, verdict="accept", path="judge")


def read_judgment(response: str) -> dict[str, Any] | None:
    """Return the fields of the last JSON object that has them all as booleans."""
    for text in reversed(_OBJECT.findall(response.rpartition("</think>")[2])):
        try:
            judgment = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if all(isinstance(judgment.get(name), bool) for name in FIELDS):
            return {n: judgment[n] for n in FIELDS} | {
                "difference": str(judgment.get("difference", ""))
            }
    return None
