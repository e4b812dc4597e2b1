"""Data sets that keep the rephrasings of a question as rows of their own: to one row a question."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from prompt_aug.prepare.sources import JOINED, Columns, answers_of, question_text
from prompt_aug.questions import normalise


def join(rows: Any, columns: Columns) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """(a row for each question, with its rephrasings under `JOINED`; the report's part on them).

    Rows that share `columns.group` are one question: the one of the lowest `columns.order`; the
    texts of the others follow in that order. Left out are padding rows without a text, texts that
    repeat one before them, and texts whose answer is not the question's.
    """
    groups: dict[Any, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(row[str(columns.group)], []).append(row)
    dropped: Counter[str] = Counter()
    made = (_one(group, columns, dropped) for group in groups.values())
    joined = [row for row in made if row is not None]
    counts = Counter(len(row[JOINED]) for row in joined)
    return joined, {
        "rows_joined": len(rows),
        "rephrasings_of_a_question": dict(sorted(counts.items())),
        "rephrasings_of_the_paper": columns.rephrasings,
        "rows_left_out": dict(dropped),
    }


def _one(
    group: Sequence[Mapping[str, Any]], columns: Columns, dropped: Counter[str]
) -> dict[str, Any] | None:
    ordered = sorted(group, key=lambda row: int(row[str(columns.order)]))
    said = [row for row in ordered if question_text(row, columns).strip()]
    dropped["padding"] += len(ordered) - len(said)
    if not said:
        return None
    first, texts, seen = said[0], [], {normalise(question_text(said[0], columns))}
    for row in said[1:]:
        text = question_text(row, columns).strip()
        if answers_of(row, columns) != answers_of(first, columns):
            dropped["another answer"] += 1
        elif normalise(text) in seen:
            dropped["repeated"] += 1
        else:
            seen.add(normalise(text))
            texts.append(text)
    return {**first, JOINED: texts}
