"""A log that inspect_ai's viewer opens: `inspect view --log-dir DIR` (format of its 0.3 series).

    DIR/DATE_TASK_ID.eval: a zip of header.json, summaries.json and samples/ID_epoch_N.json

One file per checkpoint and benchmark. A sample is an epoch there; its score is C or I.
"""

import hashlib
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eval.publish.evaluated import Evaluated
from prompt_aug.files import replacing

SCORER = "grader"
VERSION = 2


def write(checkpoint: Evaluated, out: Path, date: str) -> list[Path]:
    """Write a file per benchmark; `date` is ISO 8601; returns the files."""
    return [_write(checkpoint, name, out, date) for name in checkpoint.benchmarks]


def _write(checkpoint: Evaluated, name: str, out: Path, date: str) -> Path:
    identity = hashlib.sha256(f"{checkpoint.model}\0{name}\0{date}".encode()).hexdigest()[:22]
    path = out / f"{date.replace(':', '-').replace('+', '-')}_{name}_{identity}.eval"
    ids: list[str] = []
    summaries = []
    with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for question, lines in checkpoint.samples(name):
            uid = f"{question['uid']}-{question['prompt_sha256']}"
            ids.append(uid)
            for line in lines:
                sample = _sample(checkpoint, uid, question, line)
                place = f"samples/{uid}_epoch_{sample['epoch']}.json"
                archive.writestr(place, json.dumps(sample))
                summaries.append(_summary(sample))
        header = _header(checkpoint, name, date, identity, ids)
        begun = {key: header[key] for key in ("version", "eval", "plan")}
        archive.writestr("_journal/start.json", json.dumps(begun))
        archive.writestr("summaries.json", json.dumps(summaries))
        archive.writestr("header.json", json.dumps(header))
    return path


def _sample(
    checkpoint: Evaluated, uid: str, question: Mapping[str, Any], line: Mapping[str, Any]
) -> dict[str, Any]:
    text = line.get("response", "")
    stop = "max_tokens" if line["finish_reason"] == "length" else "stop"
    answer = {"role": "assistant", "content": text, "source": "generate"}
    choice = {"message": answer, "stop_reason": stop}
    score = {"value": "C" if line["correct"] else "I", "answer": line.get("extracted")}
    return {
        "id": uid,
        "epoch": line["sample"] + 1,
        "input": question["prompt"],
        "target": list(question["gold"]),
        "messages": [{"role": "user", "content": question["prompt"], "source": "input"}, answer],
        "output": {"model": checkpoint.model, "choices": [choice], "completion": text},
        "scores": {SCORER: {**score, "explanation": line["status"]}},
        "metadata": {"level": question["level"], "tokens": line["tokens"], "uid": question["uid"]},
        "store": {},
        "events": [],
        "model_usage": {},
        "attachments": {},
    }


def _summary(sample: Mapping[str, Any]) -> dict[str, Any]:
    shown = {key: sample[key] for key in ("id", "epoch", "target", "metadata", "model_usage")}
    return {**shown, "input": sample["input"][:1000], "scores": sample["scores"], "completed": True}


def _header(
    checkpoint: Evaluated, name: str, date: str, identity: str, ids: list[str]
) -> dict[str, Any]:
    entry = checkpoint.benchmarks[name]
    metrics = {"accuracy": entry["accuracy"], "stderr": entry["standard_error"] or 0.0}
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
            "model": f"vllm/{checkpoint.model}",
            "model_generate_config": generation,
            "config": {"epochs": entry["settings"]["samples"]},
            "metadata": {"grader": entry["grader"], "settings": dict(checkpoint.settings)},
        },
        "plan": {"name": "plan", "steps": [], "config": generation},
        "results": {
            "total_samples": entry["samples"],
            "completed_samples": entry["samples"],
            "scores": [
                {
                    "name": SCORER,
                    "scorer": SCORER,
                    "metrics": {k: {"name": k, "value": v} for k, v in metrics.items()},
                }
            ],
        },
        "stats": {"started_at": date, "completed_at": date, "model_usage": {}},
    }
