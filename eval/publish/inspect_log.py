"""Logs for inspect_ai's viewer: `inspect view --log-dir DIR` (format of its 0.3 series).

    DIR/DATE_TASK_ID.eval: a zip of header.json, summaries.json and samples/ID_epoch_N.json

One file per checkpoint and benchmark. A sample is an epoch with the score C or I. The input is the
question, because the viewer lists a line of it; the prompt that was sent is the first message.
Start and end are the time of the export: without them the viewer shows a duration of NaN.
"""

import hashlib
import json
import zipfile
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from eval.publish import Evaluated
from eval.samples import TOO_LONG, as_asked
from prompt_aug.base.files import replacing

SCORER = "grader"
STOPS = {"length": "max_tokens", TOO_LONG: "model_length"}  # everything else is "stop"


def write(checkpoint: Evaluated, out: Path, now: datetime) -> list[Path]:
    date, model = now.isoformat(timespec="seconds"), f"vllm/{checkpoint.model}"
    paths = []
    for name in checkpoint.benchmarks:
        identity = hashlib.sha256(f"{checkpoint.model}\0{name}\0{date}".encode()).hexdigest()[:22]
        path = out / f"{date.replace(':', '-').replace('+', '-')}_{name}_{identity}.eval"
        ids: list[str] = []
        summaries, usage = [], Counter[str]()
        with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for question, lines in checkpoint.samples(name):
                ids.append(f"{question['uid']}-{question['prompt_sha256']}")
                for line in lines:
                    sample = _sample(model, ids[-1], as_asked(question, line["sample"]), line)
                    place = f"samples/{ids[-1]}_epoch_{sample['epoch']}.json"
                    archive.writestr(place, json.dumps(sample))
                    usage.update(sample["output"]["usage"])
                    keys = ("id", "epoch", "target", "metadata", "model_usage", "scores")
                    summary = {key: sample[key] for key in keys}
                    summaries.append(
                        {**summary, "input": sample["input"][:1000], "completed": True}
                    )
            header = _header(checkpoint, name, date, model, identity, ids)
            stats = {"started_at": date, "completed_at": date, "model_usage": {model: dict(usage)}}
            begun = {key: header[key] for key in ("version", "eval", "plan")}
            archive.writestr("_journal/start.json", json.dumps(begun))
            archive.writestr("summaries.json", json.dumps(summaries))
            archive.writestr("header.json", json.dumps({**header, "stats": stats}))
        paths.append(path)
    return paths


def _sample(
    model: str, uid: str, question: Mapping[str, Any], line: Mapping[str, Any]
) -> dict[str, Any]:
    text, written = line.get("response", ""), line["tokens"] or 0
    read = question["prompt_tokens"] if question["asked"] else 0  # too long: not asked
    usage = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
    answer = {"role": "assistant", "content": text, "source": "generate", "model": model}
    choice = {"message": answer, "stop_reason": STOPS.get(line["finish_reason"], "stop")}
    score = {"value": "C" if line["correct"] else "I", "answer": line.get("extracted")}
    shown = {"tokens": line["tokens"], "finish_reason": line["finish_reason"]}
    return {
        "id": uid, "epoch": line["sample"] + 1, "input": question["question"],
        "target": list(question["gold"]), "store": {}, "events": [], "attachments": {},
        "messages": [{"role": "user", "content": question["prompt"], "source": "input"}, answer],
        "output": {"model": model, "choices": [choice], "completion": text, "usage": usage},
        "scores": {SCORER: {**score, "explanation": line["status"]}}, "model_usage": {model: usage},
        "metadata": {**{key: question[key] for key in ("uid", "level", "template")}, **shown},
    }  # fmt: skip


def _header(
    checkpoint: Evaluated, name: str, date: str, model: str, identity: str, ids: list[str]
) -> dict[str, Any]:
    entry = checkpoint.benchmarks[name]
    values = {"accuracy": entry["accuracy"], "stderr": entry["standard_error"]}
    values |= {f"pass@{k}": value for k, value in entry["pass_at_k"].items() if k != "1"}
    metrics = {k: {"name": k, "value": v} for k, v in values.items() if v is not None}
    keys = ("temperature", "top_p", "top_k", "max_tokens", "seed")
    generation = checkpoint.generation(**{key: key for key in keys}, stop_seqs="stop")
    extra = {"grader": entry["grader"], "questions_of": entry["settings"]["of"]}
    return {
        "version": 2, "status": "success",
        "eval": {
            "eval_id": identity, "run_id": identity, "task_id": identity, "created": date,
            "task": name, "task_version": 0, "model": model, "model_generate_config": generation,
            "dataset": {"name": name, "samples": len(ids), "sample_ids": ids},
            "config": {"epochs": entry["settings"]["samples"]},
            "metadata": {**checkpoint.record["settings"], **extra},
        },
        "plan": {"name": "plan", "steps": [], "config": generation},
        "results": {
            "total_samples": entry["samples"], "completed_samples": entry["samples"],
            "scores": [{"name": SCORER, "scorer": SCORER, "metrics": metrics}],
        },
    }  # fmt: skip
