"""All graded samples of a report, for the page to browse: a small index, and compressed blocks.

The page holds everything and asks no server, so what it opens with must be small: the index says of
each sample its question, checkpoint, status and length. Texts lie in blocks of questions, gzip in
base64, which the browser unpacks when a question is opened or responses are searched. The texts are
hostile; they stay JSON until the page writes them as text nodes.
"""

import base64
import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from eval.report.data import CheckpointRow, RunData
from eval.score import read_scored
from recipe.run.folder import EvaluationFolder

MOST = 200_000  # samples of a page; beyond, checkpoints in between are left out
TEXT_LIMIT = 20_000  # characters of a response
BLOCK_BYTES = 1 << 18  # of JSON, before compression


@dataclass(frozen=True, kw_only=True, slots=True)
class Archive:
    """`index` is JSON; `blocks` are base64 of gzip of JSON: {question: its prompts and records}."""

    index: dict[str, Any]
    blocks: list[str]


@dataclass(slots=True)
class _Question:
    entry: dict[str, Any]
    prompts: dict[str, int] = field(default_factory=dict)
    samples: list[tuple[int, int, str, int]] = field(default_factory=list)
    records: list[list[Any]] = field(default_factory=list)


def archive(runs: Sequence[RunData]) -> Archive:
    """Everything that the runs' reports are made from; notes of a run say what is left out."""
    checkpoints: list[dict[str, Any]] = []
    questions: dict[tuple[str, str, str], _Question] = {}
    for run in runs:
        for row in _chosen(run, MOST // len(runs)):
            for name, question, line in _lines(run, row):
                key = name, question["uid"], question["prompt_sha256"] if len(runs) == 1 else ""
                known = questions.setdefault(key, _Question(_entry(name, question)))
                _add(known, len(checkpoints), question["prompt"], line)
            checkpoints.append({"run": run.name, "step": row.step})
    return _packed(list(questions.values()), checkpoints)


def _chosen(run: RunData, most: int) -> list[CheckpointRow]:
    """The checkpoints whose samples are kept: all, or the first, the last and some between."""
    rows = list(run.rows)
    sizes = [sum(entry["samples"] for entry in row.benchmarks.values()) for row in rows]
    if sum(sizes) <= most:
        return rows
    count = max(2, min(len(rows), most // max(sizes)))
    places = sorted({round(i * (len(rows) - 1) / (count - 1)) for i in range(count)})
    kept = [rows[place] for place in places]
    steps = ", ".join(str(row.step) for row in kept)
    run.notes.append(f"samples of {len(rows)} checkpoints would be too many: those of {steps}")
    return kept


def _lines(run: RunData, row: CheckpointRow) -> Iterator[tuple[str, Any, list[dict[str, Any]]]]:
    """(benchmark, question, its graded samples) of a checkpoint."""
    for name, entry in row.benchmarks.items():
        files = EvaluationFolder(run.evaluated[row.step]).benchmark(name)
        for question, line in read_scored(files, entry):
            yield name, question, line


def _entry(benchmark: str, question: dict[str, Any]) -> dict[str, Any]:
    return {
        "b": benchmark,
        "u": question["uid"],
        "t": question["question"],
        "g": " | ".join(question["gold"]),
        "l": question["level"],
    }


def _add(known: _Question, checkpoint: int, prompt: str, line: Sequence[dict[str, Any]]) -> None:
    place = known.prompts.setdefault(prompt, len(known.prompts))
    for sample in line:
        text = sample.get("response", "")
        if (cut := len(text) - TEXT_LIMIT) > 0:
            text = f"{text[:TEXT_LIMIT]}\n... and {cut} more characters"
        known.samples.append((checkpoint, sample["sample"], sample["status"], sample["tokens"]))
        known.records.append([place, text, sample.get("extracted"), sample["finish_reason"]])


def _packed(questions: list[_Question], checkpoints: list[dict[str, Any]]) -> Archive:
    statuses = sorted({status for q in questions for _, _, status, _ in q.samples})
    code = {status: i for i, status in enumerate(statuses)}
    blocks: list[str] = []
    block: dict[int, Any] = {}
    size = 0
    for number, question in enumerate(questions):
        question.entry["k"] = len(blocks)
        block[number] = {"p": list(question.prompts), "r": question.records}
        size += sum(len(record[1]) for record in question.records) + 100
        if size > BLOCK_BYTES or number == len(questions) - 1:
            blocks.append(_compressed(block))
            block, size = {}, 0
    flat = [sample for question in questions for sample in question.samples]
    index = {
        "checkpoints": checkpoints,
        "statuses": statuses,
        "questions": [question.entry for question in questions],
        "count": [len(question.samples) for question in questions],
        "c": [c for c, _, _, _ in flat],
        "n": [n for _, n, _, _ in flat],
        "s": [code[status] for _, _, status, _ in flat],
        "t": [tokens for _, _, _, tokens in flat],
    }
    return Archive(index=index, blocks=blocks)


def _compressed(value: Any) -> str:
    packed = gzip.compress(json.dumps(value).encode(), compresslevel=6, mtime=0)
    return base64.b64encode(packed).decode("ascii")
