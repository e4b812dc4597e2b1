"""A log that inspect_ai's viewer opens: `inspect view --log-dir DIR` (format of its 0.3 series).

    DIR/DATE_TASK_ID.eval: a zip of header.json, summaries.json and samples/ID_epoch_N.json

One file per checkpoint and benchmark. A sample is an epoch there; its score is C or I. The input
is the question, as the viewer's list shows a line of it; the prompt that was sent, which begins
alike for all questions, is the first message. No times are stored with samples: start and end are
that of the export, as without them the viewer shows a duration of NaN.
"""

import hashlib
import json
import zipfile
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eval.publish.evaluated import Evaluated
from eval.samples import TOO_LONG
from prompt_aug.base.files import replacing

SCORER = "grader"
VERSION = 2
STOPS = {"length": "max_tokens", TOO_LONG: "model_length"}  # everything else is "stop"


def write(checkpoint: Evaluated, out: Path, date: str) -> list[Path]:
    """Write a file per benchmark; `date` is ISO 8601; returns the files."""
    return [_write(checkpoint, name, out, date) for name in checkpoint.benchmarks]


def _write(checkpoint: Evaluated, name: str, out: Path, date: str) -> Path:
    identity = hashlib.sha256(f"{checkpoint.model}\0{name}\0{date}".encode()).hexdigest()[:22]
    path = out / f"{date.replace(':', '-').replace('+', '-')}_{name}_{identity}.eval"
    ids: list[str] = []
    summaries, usage = [], Counter[str]()
    with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for question, lines in checkpoint.samples(name):
            uid = f"{question['uid']}-{question['prompt_sha256']}"
            ids.append(uid)
            for line in lines:
                sample = _sample(checkpoint, uid, question, line)
                place = f"samples/{uid}_epoch_{sample['epoch']}.json"
                archive.writestr(place, json.dumps(sample))
                summaries.append(_summary(sample))
                usage.update(sample["output"]["usage"])
        header = _header(checkpoint, name, date, identity, ids)
        header["stats"] = {
            "started_at": date,
            "completed_at": date,
            "model_usage": {_model(checkpoint): dict(usage)},
        }
        begun = {key: header[key] for key in ("version", "eval", "plan")}
        archive.writestr("_journal/start.json", json.dumps(begun))
        archive.writestr("summaries.json", json.dumps(summaries))
        archive.writestr("header.json", json.dumps(header))
    return path


def _model(checkpoint: Evaluated) -> str:
    """As inspect_ai names a model: what serves it, then its name."""
    return f"vllm/{checkpoint.model}"


def _usage(question: Mapping[str, Any], line: Mapping[str, Any]) -> dict[str, int]:
    """Tokens of one sample; a question that is too long was not asked and cost none."""
    read = question["prompt_tokens"] if question["asked"] else 0
    written = line["tokens"]
    return {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}


def _sample(
    checkpoint: Evaluated, uid: str, question: Mapping[str, Any], line: Mapping[str, Any]
) -> dict[str, Any]:
    text, model, usage = line.get("response", ""), _model(checkpoint), _usage(question, line)
    stop = STOPS.get(line["finish_reason"], "stop")
    answer = {"role": "assistant", "content": text, "source": "generate", "model": model}
    choice = {"message": answer, "stop_reason": stop}
    score = {"value": "C" if line["correct"] else "I", "answer": line.get("extracted")}
    shown = {"tokens": line["tokens"], "finish_reason": line["finish_reason"]}
    return {
        "id": uid,
        "epoch": line["sample"] + 1,
        "input": question["question"],
        "target": list(question["gold"]),
        "messages": [{"role": "user", "content": question["prompt"], "source": "input"}, answer],
        "output": {"model": model, "choices": [choice], "completion": text, "usage": usage},
        "scores": {SCORER: {**score, "explanation": line["status"]}},
        "metadata": {**{key: question[key] for key in ("uid", "level", "template")}, **shown},
        "store": {},
        "events": [],
        "model_usage": {model: usage},
        "attachments": {},
    }


def _summary(sample: Mapping[str, Any]) -> dict[str, Any]:
    shown = {key: sample[key] for key in ("id", "epoch", "target", "metadata", "model_usage")}
    return {**shown, "input": sample["input"][:1000], "scores": sample["scores"], "completed": True}


def _metrics(entry: Mapping[str, Any]) -> dict[str, float]:
    """What the viewer shows above the samples; one question has no standard error."""
    passed = {f"pass@{k}": value for k, value in entry["pass_at_k"].items() if k != "1"}
    error = entry["standard_error"]
    return {"accuracy": entry["accuracy"], **({} if error is None else {"stderr": error}), **passed}


def _header(
    checkpoint: Evaluated, name: str, date: str, identity: str, ids: list[str]
) -> dict[str, Any]:
    entry = checkpoint.benchmarks[name]
    metrics = {key: {"name": key, "value": value} for key, value in _metrics(entry).items()}
    wanted = ("temperature", "top_p", "max_tokens", "seed")
    generation = {key: checkpoint.settings[key] for key in wanted if key in checkpoint.settings}
    return {
        "version": VERSION,
        "status": "success",
        "eval": {
            "eval_id": identity,
            "run_id": identity,
            "created": date,
            "task": name,
            "task_id": identity,
            "task_version": 0,
            "dataset": {"name": name, "samples": len(ids), "sample_ids": ids},
            "model": _model(checkpoint),
            "model_generate_config": generation,
            "config": {"epochs": entry["settings"]["samples"]},
            "metadata": {
                **checkpoint.settings,
                "grader": entry["grader"],
                "questions_of": entry["settings"]["of"],
            },
        },
        "plan": {"name": "plan", "steps": [], "config": generation},
        "results": {
            "total_samples": entry["samples"],
            "completed_samples": entry["samples"],
            "scores": [{"name": SCORER, "scorer": SCORER, "metrics": metrics}],
        },
    }
