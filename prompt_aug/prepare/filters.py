"""The checks of `prompt_aug.prepare`, which refuse rows of a data set with a reason."""

import dataclasses
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from prompt_aug.base.progress import track
from prompt_aug.grading import grade_answer, grade_many
from prompt_aug.prepare.overlap import OVERLAP_LIMIT, OverlapIndex, near_duplicates
from prompt_aug.prepare.sources import (
    JOINED,
    Columns,
    answers_of,
    kept_levels,
    question_text,
    to_question,
)
from prompt_aug.questions import Question, QuestionError, from_row, normalise

GRADED_AT_ONCE = 512
PROSE_WORDS = 4  # an answer of this many words without a number is prose
_WORD, _COMMAND = re.compile(r"[A-Za-z]{2,}"), re.compile(r"\\[A-Za-z]+")
REASONS = ("empty", "duplicate", "contradiction", "benchmark_overlap", "ungradable")
Numbered = list[tuple[int, Question]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Refused:
    """Row `row` of the source, left out for `reason`; `detail` explains."""

    row: int
    reason: str
    detail: str


def read_rows(
    rows: Any, columns: Columns, source: str, split: str, renamed: bool = True
) -> tuple[Numbered, list[Refused]]:
    """Return the questions of the requested levels, and the rows without question or answer.

    A verl-style row keeps all its fields, and unless `renamed` its data source.
    """
    questions: Numbered = []
    refused = []
    for number, row in kept_levels(track(rows, "read", "rows"), columns):
        try:
            made = to_question(row, columns, source, split)
            if columns.whole_rows and row.get("data_source"):
                made = from_row(row)
                name = source if renamed else made.source
                made = dataclasses.replace(made, split=split, source=name)
            questions.append((number, made))
        except QuestionError as error:
            refused.append(Refused(row=number, reason="empty", detail=str(error)))
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
        "rephrasings_of_the_paper": columns.rephrasings,
        "rows_left_out": dict(dropped),
    }


def refuse_repeats(questions: Numbered) -> tuple[Numbered, dict[int, list[int]], list[Refused]]:
    """Return (kept, rows that repeat a kept row, rows with contradicting answers)."""
    groups: dict[str, Numbered] = {}
    for number, question in questions:
        groups.setdefault(normalise(question.text), []).append((number, question))
    kept, duplicates, refused = [], {}, []
    for (first, question), *others in groups.values():
        golds = list(question.answers)
        if all(
            other.uid == question.uid
            or any(grade_answer(answer, golds).correct for answer in other.answers)
            for _, other in others
        ):
            kept.append((first, question))
            if others:
                duplicates[first] = [number for number, _ in others]
            continue
        rows = [first, *(number for number, _ in others)]
        detail = f"rows {rows} ask the same question with different answers"
        refused += [Refused(row=row, reason="contradiction", detail=detail) for row in rows]
    return kept, duplicates, refused


def refuse_overlap(
    questions: Numbered, index: OverlapIndex, limit: float
) -> tuple[Numbered, list[Refused]]:
    """Refuse questions whose overlap with a benchmark question is at least `limit`."""
    kept, refused = [], []
    for number, question in track(questions, "benchmark overlap", "questions"):
        match = index.best(question.text)
        if match is None or match.score < limit:
            kept.append((number, question))
            continue
        detail = f"{match.score:.2f} of question {match.index} of {match.of}"
        refused.append(Refused(row=number, reason="benchmark_overlap", detail=detail))
    return kept, refused


def is_prose(gold: str) -> bool:
    """Return True for a sentence instead of a value: "See the proof below"."""
    words = _WORD.findall(_COMMAND.sub(" ", gold))
    return len(words) >= PROSE_WORDS and not re.search(r"[\d=$]", gold)


def refuse_ungradable(
    questions: Numbered, allow_text: bool = False
) -> tuple[Numbered, list[Refused]]:
    """Refuse questions with an answer that is not graded right against itself, or is prose."""
    golds = [(number, gold) for number, question in questions for gold in question.answers]
    prose = () if allow_text else (pair for pair in golds if is_prose(pair[1]))
    bad = {number: f"{gold[:80]!r} is prose. Keep it with --allow-text." for number, gold in prose}
    for start in track(range(0, len(golds), GRADED_AT_ONCE), "grade the answers", "batches"):
        part = golds[start : start + GRADED_AT_ONCE]
        grades = grade_many([("\\boxed{" + gold + "}", gold) for _, gold in part])
        for (number, gold), grade in zip(part, grades, strict=True):
            if not grade.correct:
                bad.setdefault(number, f"{gold[:80]!r} graded {grade.status!s} against itself")
    kept = [(number, question) for number, question in questions if number not in bad]
    return kept, [Refused(row=row, reason="ungradable", detail=bad[row]) for row in sorted(bad)]


def prepare(
    rows: Any,
    *,
    columns: Columns,
    source: str,
    split: str = "train",
    benchmarks: Mapping[str, Sequence[str]],
    overlap_limit: float = OVERLAP_LIMIT,
    allow_text: bool = False,
    renamed: bool = True,
) -> tuple[Numbered, dict[str, Any]]:
    """Return the questions kept, each with its row number, and the report for the manifest."""
    questions, refused = read_rows(rows, columns, source, split, renamed)
    read = len(questions) + len(refused)
    questions, duplicates, contradictions = refuse_repeats(questions)
    questions, overlaps = refuse_overlap(questions, OverlapIndex(benchmarks), overlap_limit)
    questions, ungradable = refuse_ungradable(questions, allow_text)
    refused += [*contradictions, *overlaps, *ungradable]
    near = [
        {"rows": [questions[i][0], questions[j][0]], "likeness": round(score, 3)}
        for i, j, score in near_duplicates([question.text for _, question in questions])
    ]
    counts = Counter(entry.reason for entry in refused)
    counts["duplicate"] = sum(map(len, duplicates.values()))
    report = {
        "rows": len(rows),
        "rows_of_wanted_levels": read,
        "kept": len(questions),
        "refused": {reason: counts[reason] for reason in REASONS},
        "refused_rows": [dataclasses.asdict(r) for r in sorted(refused, key=lambda r: r.row)],
        "duplicates_of_row": duplicates,
        "near_duplicates": near,
    }
    return questions, report


def add_refused(report: Mapping[str, Any], reason: str, more: Sequence[Refused]) -> dict[str, Any]:
    """Return the report of `prepare` with rows that a later check refused."""
    rows = [*report["refused_rows"], *map(dataclasses.asdict, more)]
    return {
        **report,
        "kept": report["kept"] - len(more),
        "refused": {**report["refused"], reason: len(more)},
        "refused_rows": sorted(rows, key=lambda row: row["row"]),
    }
