"""Samples as lm-evaluation-harness logs them (its version 0.4.13, `--log_samples`).

    DIR/MODEL/results_DATE.json, samples_TASK_DATE.jsonl

A task is a benchmark, and `exact_match` is our grader's verdict. A question with several samples is
one line: `resps` holds all of them, `exact_match` is their mean.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from eval.publish import Evaluated
from eval.score import Lines
from eval.settings import SAMPLING
from prompt_aug.base.files import write_json, write_lines

METRIC = "exact_match"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def write(checkpoint: Evaluated, out: Path, now: datetime) -> Path:
    """Write a checkpoint's files below `out` and return their folder."""
    date = now.replace(tzinfo=None).isoformat().replace(":", "-")
    folder, model, entries = out / checkpoint.model, checkpoint.model, checkpoint.benchmarks
    keys = {key: key for key in SAMPLING} | {"max_gen_toks": "max_tokens", "until": "stop"}
    generation, hashes = checkpoint.generation(**keys), {}
    for name in entries:
        lines = [
            _line(number, question, samples, generation)
            for number, (question, samples) in enumerate(checkpoint.samples(name))
        ]
        write_lines(folder / f"samples_{name}_{date}.jsonl", lines)
        parts = (x["doc_hash"] + x["prompt_hash"] + x["target_hash"] for x in lines)
        hashes[name] = _digest("".join(parts))

    def each(value: Callable[[str, Mapping[str, Any]], Any]) -> dict[str, Any]:
        return {name: value(name, entry) for name, entry in entries.items()}

    record = {
        "results": each(lambda name, entry: {
            "alias": name, f"{METRIC},none": entry["accuracy"],
            f"{METRIC}_stderr,none": entry["standard_error"],
        }),
        "configs": each(lambda name, entry: {
            "task": name, "output_type": "generate_until", "generation_kwargs": generation,
            "repeats": entry["settings"]["samples"],
        }),
        "n-samples": each(lambda _, entry: {
            "original": entry["settings"]["of"], "effective": entry["questions"],
        }),
        "group_subtasks": each(lambda *_: []),
        "n-shot": each(lambda _, entry: entry["settings"].get("shots", 0)),
        "versions": dict.fromkeys(entries, checkpoint.record["grader"]),
        "higher_is_better": each(lambda *_: {METRIC: True}),
        "config": {"model": "vllm", "model_args": checkpoint.record["model"]},
        "model_source": "vllm", "model_name": model, "model_name_sanitized": model,
        "task_hashes": hashes,
    }  # fmt: skip
    write_json(folder / f"results_{date}.json", record)
    return folder


def _line(
    number: int, question: Mapping[str, Any], samples: Lines, generation: Mapping[str, Any]
) -> dict[str, Any]:
    doc = {"question": question["question"], "answer": question["gold"], "uid": question["uid"]}
    target, prompt = question["gold"][0], question["prompt"]
    return {
        "doc_id": number, "doc": doc, "target": target,
        "arguments": {"gen_args_0": {"arg_0": prompt, "arg_1": generation}},
        "resps": [[sample.get("response", "") for sample in samples]],
        "filtered_resps": [sample.get("extracted") or "" for sample in samples],
        "filter": "none", "metrics": [METRIC],
        "doc_hash": _digest(json.dumps(doc, indent=2, ensure_ascii=False)),
        "prompt_hash": _digest(prompt), "target_hash": _digest(target),
        METRIC: sum(bool(sample["correct"]) for sample in samples) / len(samples),
    }  # fmt: skip
