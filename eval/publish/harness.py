"""Samples as lm-evaluation-harness logs them (its version 0.4.13, `--log_samples`).

    DIR/MODEL/results_DATE.json, samples_TASK_DATE.jsonl

A task is a benchmark, its metric `exact_match` is our grader's verdict. Of a question with several
samples there is one line, as there: `resps` holds all of them, `exact_match` is their mean.
"""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from eval.publish.evaluated import Evaluated
from prompt_aug.base.files import write_json, write_lines

METRIC = "exact_match"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _generation(checkpoint: Evaluated) -> dict[str, Any]:
    settings = checkpoint.settings
    wanted = {"temperature": "temperature", "top_p": "top_p", "max_gen_toks": "max_tokens"}
    return {name: settings[key] for name, key in wanted.items() if key in settings}


def sample_lines(checkpoint: Evaluated, benchmark: str) -> Iterator[dict[str, Any]]:
    """The lines of samples_TASK.jsonl."""
    generation = _generation(checkpoint)
    for number, (question, samples) in enumerate(checkpoint.samples(benchmark)):
        doc = {"question": question["question"], "answer": question["gold"], "uid": question["uid"]}
        target = question["gold"][0]
        yield {
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


def _config(checkpoint: Evaluated, benchmark: str) -> dict[str, Any]:
    return {
        "task": benchmark,
        "output_type": "generate_until",
        "repeats": checkpoint.benchmarks[benchmark]["settings"]["samples"],
        "generation_kwargs": _generation(checkpoint),
    }


def write(checkpoint: Evaluated, out: Path, date: str) -> Path:
    """Write a checkpoint's files below `out`; `date` as the harness spells it; returns a folder."""
    folder = out / checkpoint.model
    results, counts, hashes = {}, {}, {}
    for name, entry in checkpoint.benchmarks.items():
        lines = list(sample_lines(checkpoint, name))
        write_lines(folder / f"samples_{name}_{date}.jsonl", lines)
        results[name] = {
            "alias": name,
            f"{METRIC},none": entry["accuracy"],
            f"{METRIC}_stderr,none": entry["standard_error"],
        }
        counts[name] = {"original": entry["settings"]["of"], "effective": entry["questions"]}
        parts = (x["doc_hash"] + x["prompt_hash"] + x["target_hash"] for x in lines)
        hashes[name] = _digest("".join(parts))
    record = {
        "results": results,
        "group_subtasks": {name: [] for name in results},
        "configs": {name: _config(checkpoint, name) for name in results},
        "versions": dict.fromkeys(results, checkpoint.record["grader"]),
        "n-shot": dict.fromkeys(results, 0),
        "higher_is_better": {name: {METRIC: True} for name in results},
        "n-samples": counts,
        "config": {"model": "vllm", "model_args": checkpoint.record["model"]},
        "model_source": "vllm",
        "model_name": checkpoint.model,
        "model_name_sanitized": checkpoint.model,
        "task_hashes": hashes,
    }
    write_json(folder / f"results_{date}.json", record)
    return folder
