"""Samples as lm-evaluation-harness logs them (its version 0.4.13, `--log_samples`).

    DIR/MODEL/results_DATE.json, samples_TASK_DATE.jsonl

A task is a benchmark, and `exact_match` is our grader's verdict. A question with several samples is
one line: `resps` holds all of them, `exact_match` is their mean.
"""

import hashlib
import json
from datetime import datetime
from pathlib import Path
from typing import Any

from eval.publish import Evaluated
from prompt_aug.files import write_json, write_lines

METRIC = "exact_match"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _lines(checkpoint: Evaluated, benchmark: str, generation: dict[str, Any]) -> list[dict]:
    lines = []
    for number, (question, samples) in enumerate(checkpoint.samples(benchmark)):
        doc = {"question": question["question"], "answer": question["gold"], "uid": question["uid"]}
        target = question["gold"][0]
        lines.append(
            {
                "doc_id": number,
                "doc": doc,
                "target": target,
                "arguments": {"gen_args_0": {"arg_0": question["prompt"], "arg_1": generation}},
                "resps": [[sample.get("response", "") for sample in samples]],
                "filtered_resps": [sample.get("extracted") or "" for sample in samples],
                "filter": "none",
                "metrics": [METRIC],
                "doc_hash": _digest(json.dumps(doc, indent=2, ensure_ascii=False)),
                "prompt_hash": _digest(question["prompt"]),
                "target_hash": _digest(target),
                METRIC: sum(bool(sample["correct"]) for sample in samples) / len(samples),
            }
        )
    return lines


def write(checkpoint: Evaluated, out: Path, now: datetime) -> Path:
    """Write a checkpoint's files below `out` and return their folder."""
    date = now.replace(tzinfo=None).isoformat().replace(":", "-")
    folder, entries = out / checkpoint.model, checkpoint.benchmarks
    keys = {"temperature": "temperature", "top_p": "top_p", "max_gen_toks": "max_tokens"}
    generation, hashes = checkpoint.generation(**keys), {}
    for name in entries:
        lines = _lines(checkpoint, name, generation)
        write_lines(folder / f"samples_{name}_{date}.jsonl", lines)
        parts = (x["doc_hash"] + x["prompt_hash"] + x["target_hash"] for x in lines)
        hashes[name] = _digest("".join(parts))
    record = {
        "results": {
            name: {
                "alias": name,
                f"{METRIC},none": entry["accuracy"],
                f"{METRIC}_stderr,none": entry["standard_error"],
            }
            for name, entry in entries.items()
        },
        "group_subtasks": {name: [] for name in entries},
        "configs": {
            name: {
                "task": name,
                "output_type": "generate_until",
                "repeats": entry["settings"]["samples"],
                "generation_kwargs": generation,
            }
            for name, entry in entries.items()
        },
        "versions": dict.fromkeys(entries, checkpoint.record["grader"]),
        "n-shot": dict.fromkeys(entries, 0),
        "higher_is_better": {name: {METRIC: True} for name in entries},
        "n-samples": {
            name: {"original": entry["settings"]["of"], "effective": entry["questions"]}
            for name, entry in entries.items()
        },
        "config": {"model": "vllm", "model_args": checkpoint.record["model"]},
        "model_source": "vllm",
        "model_name": checkpoint.model,
        "model_name_sanitized": checkpoint.model,
        "task_hashes": hashes,
    }
    write_json(folder / f"results_{date}.json", record)
    return folder
