"""Model texts of a report: all graded samples, compressed, and a few training rollouts.

The page is one file without a server, so its index is small: question, checkpoint, status and
length of each sample. The texts are in blocks of questions, gzip in base64, which the browser
unpacks when a question is opened or responses are searched.

The texts are hostile. Samples stay JSON until the page writes them as text nodes. Rollouts are
shortened here, and escaped by the page's template.
"""

import base64
import gzip
import json
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eval.show.data import CheckpointRow, RunData
from prompt_aug.base.files import iter_lines
from recipe.run.folder import RunFolder

# Limits of a page: above one, checkpoints in between are left out, then answers.
PAGE_SAMPLES = 200_000
PAGE_CHARACTERS = 300_000_000  # before compression; about 110 MB of the page
RESPONSE_CHARACTERS = 20_000
BLOCK_CHARACTERS = 1 << 18  # before compression
MOST_ROLLOUTS = 26
ROLLOUT_CHARACTERS = 4000
SAME_AS_VERDICT = ("correct", "wrong")  # statuses that say no more than right and wrong
FACTS = ("gold", "status", "reward", "format", "length", "truncated", "uid")


# ------------------------------------------------------------------------- samples


@dataclass(frozen=True)
class Archive:
    """`index` is JSON. `blocks` are base64 of gzip of JSON: {question: its prompts and records}."""

    index: dict[str, Any]
    blocks: list[str]


@dataclass
class _Question:
    entry: dict[str, Any]  # of the index; "s" has [checkpoint, number, status, tokens] of a sample
    prompts: dict[str, int] = field(default_factory=dict)
    records: list[list[Any]] = field(default_factory=list)


def archive(runs: Sequence[RunData]) -> Archive:
    """Return the samples of the runs. Notes of a run name what is left out."""
    checkpoints: list[dict[str, Any]] = []
    statuses: dict[str, int] = {}
    questions: dict[tuple[str, str, str], _Question] = {}
    for run in runs:
        answers, part = list[tuple[Any, ...]](), 1 / len(runs)
        for row in _kept(run, part):
            for name in row.benchmarks:
                read = row.scored.samples(name)
                answers += ((len(checkpoints), name, line, x) for line, xs in read for x in xs)
            checkpoints.append({"run": run.name, "step": row.step})
        if len(shown := _fitting(answers, part)) < len(answers):
            run.notes.append(f"the page has {len(shown)} of {len(answers)} answers, evenly spread")
        for checkpoint, name, line, sample in shown:
            # Two runs may ask the same question with different prompts.
            prompt = line["prompt_sha256"] if len(runs) == 1 else ""
            gold, uid = " | ".join(line["gold"]), line["uid"]
            entry = {"b": name, "u": uid, "t": line["question"], "s": [], "g": gold}
            question = questions.setdefault((name, uid, prompt), _Question(entry))
            place = question.prompts.setdefault(line["prompt"], len(question.prompts))
            status = statuses.setdefault(sample["status"], len(statuses))
            question.entry["s"].append([checkpoint, sample["sample"], status, sample["tokens"]])
            text, limit = sample.get("response", ""), RESPONSE_CHARACTERS
            text = text[:limit] + rest(text, limit)
            record = [place, text, sample.get("extracted"), sample["finish_reason"]]
            question.records.append(record)
    blocks: list[str] = []
    block: dict[int, Any] = {}
    size = 0
    for number, question in enumerate(questions.values()):
        question.entry["k"] = len(blocks)
        block[number] = {"p": list(question.prompts), "r": question.records}
        size += sum(len(record[1]) for record in question.records) + 100
        if size > BLOCK_CHARACTERS or number == len(questions) - 1:
            blocks.append(packed(block))
            block, size = {}, 0
    entries = [question.entry for question in questions.values()]
    index = {"checkpoints": checkpoints, "statuses": list(statuses), "questions": entries}
    return Archive(index, blocks)


def packed(value: object) -> str:
    """Return base64 of gzip of JSON, which the page unpacks when it is needed."""
    data = gzip.compress(json.dumps(value).encode(), compresslevel=6, mtime=0)
    return base64.b64encode(data).decode("ascii")


def _kept(run: RunData, most: float) -> list[CheckpointRow]:
    """Return all checkpoints; if they need more than `most` of a page, evenly spaced ones."""

    def part(row: CheckpointRow) -> float:
        folders = map(row.scored.folder.benchmark, row.benchmarks)
        size = sum(file.stat().st_size for folder in folders for file in folder.sample_files())
        count = sum(entry["samples"] for entry in row.benchmarks.values())
        return max(count / PAGE_SAMPLES, size / PAGE_CHARACTERS)

    rows, parts = list(run.rows), [part(row) for row in run.rows]
    if sum(parts) <= most or len(rows) < 3:
        return rows
    count = max(2, min(len(rows), int(most / max(parts))))
    places = sorted({round(i * (len(rows) - 1) / (count - 1)) for i in range(count)})
    kept = [rows[place] for place in places]
    steps = ", ".join(str(row.step) for row in kept)
    run.notes.append(f"samples of {len(rows)} checkpoints would be too many: those of {steps}")
    return kept


def _fitting(answers: list[tuple[Any, ...]], part: float) -> list[tuple[Any, ...]]:
    """Return the answers; if they need more than this part of a page, evenly spread ones."""
    needs = []
    for *_, line, sample in answers:
        size = min(len(sample.get("response", "")), RESPONSE_CHARACTERS)
        size += len(line["prompt"] + (sample.get("extracted") or ""))
        needs.append(max(1 / PAGE_SAMPLES, size / PAGE_CHARACTERS))
    if (total := sum(needs)) <= part:
        return answers
    due, used, kept = 0.0, 0.0, list[tuple[Any, ...]]()
    for answer, need in zip(answers, needs, strict=True):
        due += need * part / total
        if used + need <= due:
            used += need
            kept.append(answer)
    return kept


# ------------------------------------------------------------------------- rollouts


def visible(text: object, limit: int = ROLLOUT_CHARACTERS) -> str:
    r"""Shorten `text` and spell out control and direction characters (``\u202e``).

    A response must not be able to reorder or hide the page around it.
    """

    def spelled(character: str) -> str:
        hidden = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Co")
        return f"\\u{ord(character):04x}" if hidden and character not in "\n\t" else character

    raw = text if isinstance(text, str) else repr(text)
    return "".join(map(spelled, raw[:limit])) + rest(raw, limit)


def rest(text: str, limit: int) -> str:
    return f"\n... and {len(text) - limit} more characters" if len(text) > limit else ""


def rollouts(run: Path) -> list[dict[str, Any]]:
    """Return a right and a wrong rollout per template of the first and the last recorded step."""
    steps, picked = RunFolder(run).rollout_steps(), list[dict[str, Any]]()
    for step in dict.fromkeys((min(steps), max(steps))) if steps else ():
        first: dict[tuple[str, bool], dict[str, Any]] = {}
        for line in iter_lines(steps[step]):
            template = visible(line.get("template", "no template"), 80)
            correct = bool(line.get("accuracy"))
            shown = {"step": step, "template": template, "correct": correct, **_texts(line)}
            first.setdefault((template, correct), shown)
            if len(first) == MOST_ROLLOUTS:
                break
        picked += sorted(first.values(), key=lambda rollout: rollout["template"])
    return picked


def _texts(line: Mapping[str, Any]) -> dict[str, Any]:
    """Return preview, prompt, response and (name, value) of the facts of a rollout."""

    def fact(value: object) -> str:
        if isinstance(value, float):
            return f"{value:g}"
        return visible(" | ".join(map(str, value)) if isinstance(value, list) else str(value), 300)

    response = line.get("response", "")
    return {
        "preview": visible(" ".join(str(response).split()), 100).split("\n")[0],
        "prompt": visible(line.get("prompt", "")),
        "response": visible(response),
        "facts": [
            (name, fact(line[name]))
            for name in FACTS
            if line.get(name) is not None and line[name] not in SAME_AS_VERDICT
        ],
    }
