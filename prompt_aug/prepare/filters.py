"""The checks of `prompt_aug.prepare`, which refuse rows of a data set with a reason."""

import re
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import replace
from typing import Any

from prompt_aug.base.progress import track
from prompt_aug.grading import grade_answer, grade_many
from prompt_aug.prepare.overlap import OVERLAP_LIMIT, OverlapIndex, near_duplicates
from prompt_aug.prepare.pass_rates import Band, outside
from prompt_aug.prepare.sources import (
    JOINED,
    Columns,
    Numbered,
    Refused,
    answers_of,
    question_text,
    to_question,
)
from prompt_aug.questions import QuestionError, normalise

GRADED_AT_ONCE = 512
PROSE_WORDS = 4  # an answer of this many words without a number is prose
_WORD, _COMMAND = re.compile(r"[A-Za-z]{2,}"), re.compile(r"\\[A-Za-z]+")


def read_rows(
    rows: Any, columns: Columns, source: str, renamed: bool = True
) -> tuple[Numbered, Refused]:
    """Return the questions, and the rows without question or answer.

    Unless `renamed`, a verl-style row keeps its data source.
    """
    questions: Numbered = []
    refused: Refused = {}
    for number, row in enumerate(track(rows, "read", "rows")):
        try:
            made = to_question(row, columns, source, "train")
            named = source if renamed else made.source
            questions.append((number, replace(made, split="train", source=named)))
        except QuestionError as error:
            refused[number] = str(error)
    return questions, refused


def join_rephrasings(rows: Any, columns: Columns) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Return (a row per question, with its rephrasings under `JOINED`; their part of the report).

    Rows that share `columns.group` are one question: the row with the lowest `columns.order`, then
    its rephrasings in that order. Left out are padding rows without a text, texts that repeat an
    earlier one, and texts with another answer than the question's.
    """
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row[str(columns.group)], []).append(row)
    dropped: Counter[str] = Counter()
    joined = []
    for group in groups.values():
        ordered = sorted(group, key=lambda row: int(row[str(columns.order)]))
        texts = [(row, question_text(row, columns).strip()) for row in ordered]
        texts = [(row, text) for row, text in texts if text]
        dropped["padding"] += len(ordered) - len(texts)
        if not texts:
            continue
        (first, question), kept = texts[0], []
        seen = {normalise(question)}
        for row, text in texts[1:]:
            if answers_of(row, columns) != answers_of(first, columns):
                dropped["another answer"] += 1
            elif normalise(text) in seen:
                dropped["repeated"] += 1
            else:
                seen.add(normalise(text))
                kept.append(text)
        joined.append({**first, JOINED: kept})
    counts = Counter(len(row[JOINED]) for row in joined)
    return joined, {
        "rows_joined": len(rows),
        "rephrasings_of_a_question": dict(sorted(counts.items())),
        "rows_left_out": dict(dropped),
    }


def repeats(questions: Numbered) -> tuple[dict[int, list[int]], Refused]:
    """Return the rows that repeat an earlier row, by its number, and those that contradict."""
    groups: dict[str, Numbered] = {}
    for number, question in questions:
        groups.setdefault(normalise(question.text), []).append((number, question))
    duplicates: dict[int, list[int]] = {}
    refused: Refused = {}
    for (first, question), *others in groups.values():
        golds, rows = list(question.answers), [number for number, _ in others]
        if not all(
            other.uid == question.uid
            or any(grade_answer(answer, golds).correct for answer in other.answers)
            for _, other in others
        ):
            rows = [first, *rows]
            detail = f"rows {rows} ask the same question with different answers"
            refused |= dict.fromkeys(rows, detail)
        elif others:
            duplicates[first] = rows
    return duplicates, refused


def overlapping(questions: Numbered, index: OverlapIndex, limit: float) -> Refused:
    """Return the questions whose overlap with a benchmark question is at least `limit`."""
    found = (
        (number, index.best(question.text))
        for number, question in track(questions, "benchmark overlap", "questions")
    )
    return {
        number: f"{match.score:.2f} of question {match.index} of {match.of}"
        for number, match in found
        if match and match.score >= limit
    }


def is_prose(gold: str) -> bool:
    """Return True for a sentence instead of a value: "See the proof below"."""
    words = _WORD.findall(_COMMAND.sub(" ", gold))
    return len(words) >= PROSE_WORDS and not re.search(r"[\d=$]", gold)


def ungradable(questions: Numbered, allow_text: bool) -> Refused:
    """Return the questions with an answer that is prose or not graded right against itself."""
    golds = [(number, gold) for number, question in questions for gold in question.answers]
    prose = () if allow_text else (pair for pair in golds if is_prose(pair[1]))
    bad = {number: f"{gold[:80]!r} is prose. Keep it with --allow-text." for number, gold in prose}
    for start in track(range(0, len(golds), GRADED_AT_ONCE), "grade the answers", "batches"):
        part = golds[start : start + GRADED_AT_ONCE]
        grades = grade_many([("\\boxed{" + gold + "}", gold) for _, gold in part])
        for (number, gold), grade in zip(part, grades, strict=True):
            if not grade.correct:
                bad.setdefault(number, f"{gold[:80]!r} graded {grade.status!s} against itself")
    return bad


def prepare(
    rows: Any,
    *,
    columns: Columns,
    source: str,
    benchmarks: Mapping[str, Sequence[str]],
    overlap_limit: float = OVERLAP_LIMIT,
    allow_text: bool = False,
    renamed: bool = True,
    rates: Mapping[str, float] | None = None,
    band: Band = None,
) -> tuple[Numbered, dict[str, Any]]:
    """Return the questions kept, each with its row number, and the report for the manifest."""
    questions, empty = read_rows(rows, columns, source, renamed)
    index = OverlapIndex(benchmarks)
    duplicates, contradictions = repeats(questions)
    repeated = {row for rows in duplicates.values() for row in rows}
    refused = {"empty": empty, "contradiction": contradictions}
    questions = _without(questions, repeated | contradictions.keys())
    refused["benchmark_overlap"] = overlapping(questions, index, overlap_limit)
    questions = _without(questions, refused["benchmark_overlap"])
    refused["ungradable"] = ungradable(questions, allow_text)
    questions = _without(questions, refused["ungradable"])
    near = [
        {"rows": [questions[i][0], questions[j][0]], "likeness": round(score, 3)}
        for i, j, score in near_duplicates([question.text for _, question in questions])
    ]
    if rates is not None:
        refused["pass_rate"] = outside(questions, rates, band)
        questions = [
            (row, replace(question, pass_rate=rates.get(question.uid)))
            for row, question in _without(questions, refused["pass_rate"])
        ]
    counts = {reason: len(found) for reason, found in refused.items()}
    entries = [
        {"row": row, "reason": reason, "detail": detail}
        for reason, found in refused.items()
        for row, detail in found.items()
    ]
    return questions, {
        "rows": len(rows),
        "kept": len(questions),
        "refused": {"empty": len(empty), "duplicate": len(repeated)} | counts,
        "refused_rows": sorted(entries, key=lambda entry: entry["row"]),
        "duplicates_of_row": duplicates,
        "near_duplicates": near,
    }


def _without(questions: Numbered, rows: Container[int]) -> Numbered:
    return [(number, question) for number, question in questions if number not in rows]
