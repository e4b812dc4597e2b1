"""Model texts of a report: all graded samples, compressed.

The page is one file without a server, so its index is small: question, checkpoint, status and
length of each sample. The texts of a question are a block, gzip in base64, which the browser
unpacks when the question is opened or responses are searched.

The texts are hostile. They stay JSON until the page writes them as text nodes.
"""

import base64
import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from eval.report.data import CheckpointRow, RunData

PAGE_SAMPLES = 200_000  # of a page; with more, checkpoints in between are left out
RESPONSE_CHARACTERS = 20_000


@dataclass(frozen=True)
class Archive:
    """`index` is JSON. `blocks` has the `packed` prompts and records of each question."""

    index: dict[str, Any]
    blocks: list[str]


@dataclass
class _Question:
    entry: dict[str, Any]  # of the index; "s" has [checkpoint, number, status, tokens] of a sample
    prompts: dict[str, int] = field(default_factory=dict)
    records: list[list[Any]] = field(default_factory=list)


def archive(runs: Sequence[RunData]) -> Archive:
    """Return all samples of the runs. A note of a run names the checkpoints that are left out."""
    checkpoints: list[dict[str, Any]] = []
    statuses: dict[str, int] = {}
    found: dict[tuple[str, str, str], _Question] = {}
    for run in runs:
        for row in _kept(run, PAGE_SAMPLES // len(runs)):
            shown = ((name, *x) for name in row.benchmarks for x in row.scored.samples(name))
            for name, question, samples in shown:
                # Two runs may ask the same question with different prompts.
                prompt = question["prompt_sha256"] if len(runs) == 1 else ""
                gold, uid = " | ".join(question["gold"]), question["uid"]
                entry = {"b": name, "u": uid, "t": question["question"], "s": [], "g": gold}
                known = found.setdefault((name, uid, prompt), _Question(entry))
                for sample in samples:
                    text = question["prompt"]
                    place = known.prompts.setdefault(text, len(known.prompts))
                    status = statuses.setdefault(sample["status"], len(statuses))
                    facts = [len(checkpoints), sample["sample"], status, sample["tokens"]]
                    known.entry["s"].append(facts)
                    text = shortened(sample.get("response", ""))
                    record = [place, text, sample.get("extracted"), sample["finish_reason"]]
                    known.records.append(record)
            checkpoints.append({"run": run.name, "step": row.step})
    blocks = [packed({"p": list(q.prompts), "r": q.records}) for q in found.values()]
    entries = [question.entry for question in found.values()]
    index = {"checkpoints": checkpoints, "statuses": list(statuses), "questions": entries}
    return Archive(index, blocks)


def shortened(text: str) -> str:
    most = RESPONSE_CHARACTERS
    return (
        text if len(text) <= most else f"{text[:most]}\n... and {len(text) - most} more characters"
    )


def packed(value: object) -> str:
    """Return base64 of gzip of JSON, which the page unpacks when it is needed."""
    data = gzip.compress(json.dumps(value).encode(), compresslevel=6, mtime=0)
    return base64.b64encode(data).decode("ascii")


def _kept(run: RunData, most: int) -> list[CheckpointRow]:
    """Return all checkpoints; with more than `most` samples, evenly spaced ones and both ends."""
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
