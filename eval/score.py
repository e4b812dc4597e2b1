"""Grades samples and writes scores: the scores, their settings and their denominators.

`python -m eval.score FOLDER` grades again what is on disk, after the grader has changed: no model
and no engine is needed.
"""

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from eval import intervals, metrics
from eval.command import existing, run_command
from eval.errors import EvaluationError
from eval.samples import TOO_LONG, Sample, SampleFiles, SampleKey
from prompt_aug.base.commands import make_parser
from prompt_aug.base.estimates import FloatArray, powers
from prompt_aug.base.files import iter_lines, read_json, read_lines, write_json, write_lines
from prompt_aug.base.progress import Progress
from prompt_aug.extraction import BESIDE, extraction, verdicts
from prompt_aug.grading import VERSION, grade_many, normal_form
from prompt_aug.prompts import Prompts
from prompt_aug.templates import Template
from recipe.run import environment
from recipe.run.folder import BenchmarkFolder, EvaluationFolder

Lines = list[dict[str, Any]]
UNASKED = {"tokens": 0, "finish_reason": TOO_LONG, "correct": False, "status": TOO_LONG}


def question_key(question: Mapping[str, Any], sample: int) -> SampleKey:
    return question["uid"], question["prompt_sha256"], sample


def grade_samples(
    questions: Sequence[Mapping[str, Any]],
    samples: Mapping[SampleKey, Sample],
    count: int,
    template: Template,
    title: str = "grade",
    setting: str = "default",
) -> Lines:
    """Grade the first `count` samples of each question, as in training: the text after the prefill.

    `setting` names the extraction; each line also has the verdicts of `BESIDE`.
    """
    wanted: dict[SampleKey, Mapping[str, Any]] = {
        question_key(question, sample): question
        for question in questions
        for sample in range(count if question["asked"] else 0)
    }
    if lost := [key for key in wanted if key not in samples]:
        raise EvaluationError(f"{title}: {len(lost)} samples are missing: run eval.sweep again")
    with Progress(title, len(wanted), "samples") as bar:
        asked = [(q["gold"], q["question"], q.get("options", ())) for q in wanted.values()]
        grades = grade_many(
            [(samples[key]["response"], *rest) for key, rest in zip(wanted, asked, strict=True)],
            template,
            extraction=extraction(setting),
            on_grade=lambda _: bar.update(),
        )
    return [
        {
            "uid": uid,
            "prompt_sha256": prompt,
            "sample": sample,
            "correct": bool(grade.correct),
            "extracted": grade.extracted,
            "form": None if grade.extracted is None else normal_form(grade.extracted),
            "status": str(grade.status),
            "under": verdicts(setting, grade, samples[uid, prompt, sample], question, template),
        }
        for ((uid, prompt, sample), question), grade in zip(wanted.items(), grades, strict=True)
    ]


def join(
    questions: Sequence[Mapping[str, Any]],
    samples: Mapping[SampleKey, Sample],
    grades: Sequence[Mapping[str, Any]],
    count: int,
) -> list[Lines]:
    """For each question its `count` samples with their verdicts, in order."""
    graded = {(g["uid"], g["prompt_sha256"], g["sample"]): g for g in grades}
    table = []
    for question in questions:
        row: Lines = []
        for sample in range(count):
            key = question_key(question, sample)
            if not question["asked"]:
                row.append({**UNASKED, "sample": sample})
            elif key not in samples or key not in graded:
                raise EvaluationError(
                    f"sample {sample} of question {key[0]} is missing or not graded: run "
                    "eval.sweep again"
                )
            else:
                row.append({**samples[key], **graded[key]})
        table.append(row)
    return table


def read_scored(
    folder: BenchmarkFolder, entry: Mapping[str, Any]
) -> list[tuple[dict[str, Any], Lines]]:
    """Each question of a benchmark with its graded samples; `entry` is that of scores.json."""
    questions = read_lines(folder.questions)
    samples = SampleFiles(folder, entry["model"]).load()
    grades = read_lines(folder.grades)[1:]
    table = join(questions, samples, grades, entry["settings"]["samples"])
    return list(zip(questions, table, strict=True))


def score(table: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """The scores of one benchmark. Rates are shares of all samples, in [0, 1]."""
    correct = np.array([[float(sample["correct"]) for sample in row] for row in table])
    answers = [[sample.get("form") for sample in row] for row in table]
    lines = [sample for row in table for sample in row]
    statuses, total = Counter(line["status"] for line in lines), len(lines)
    return {
        **estimate(metrics.accuracy(correct)),
        "samples": total,
        "accuracy_under": {
            name: sum(line.get("under", {}).get(name, False) for line in lines) / total
            for name in BESIDE
        },
        "interval": list(intervals.accuracy_interval(correct)),
        "pass_at_k": _by_text(metrics.pass_at_powers(correct)),
        "pass_all_k": _by_text(metrics.all_at_powers(correct)),
        "no_signal_k": _by_text(metrics.no_signal_at_powers(correct)),
        "majority_at_k": {
            str(k): intervals.majority(answers, correct, k) for k in powers(len(table[0]))
        },
        "status_rates": {name: count / total for name, count in sorted(statuses.items())},
        "truncation_rate": sum(line["finish_reason"] == "length" for line in lines) / total,
        "mean_tokens": sum(line["tokens"] for line in lines) / total,
        "question_means": correct.mean(axis=1).tolist(),
    }


def _by_text(values: Mapping[int, float]) -> dict[str, float]:
    return {str(k): value for k, value in values.items()}


def estimate(value: metrics.Estimate) -> dict[str, Any]:
    """An estimate as JSON."""
    return {
        "accuracy": value.accuracy,
        "standard_error": value.standard_error,
        "questions": value.questions,
    }


def averages(parts: Mapping[str, FloatArray]) -> dict[str, Any]:
    """The two averages of the field: over all questions, and over benchmarks."""
    arrays = list(parts.values())
    return {
        "benchmarks": sorted(parts),
        "per_question": estimate(metrics.mean_over_questions(arrays)),
        "per_benchmark": estimate(
            metrics.mean_over_benchmarks([metrics.accuracy(array) for array in arrays])
        ),
    }


def score_benchmark(
    folder: BenchmarkFolder, identity: Mapping[str, Any], template: Template, **record: Any
) -> dict[str, Any]:
    """Grade what is on disk for one benchmark and write grades.jsonl, then scores.json.

    `identity` is the model's; `record` is put into the entry: settings (with `samples`), path.
    """
    questions = read_lines(folder.questions)
    samples = SampleFiles(folder, identity).load()
    record["settings"] = {"extraction": "default", **record["settings"]}
    count, setting = int(record["settings"]["samples"]), record["settings"]["extraction"]
    title = f"grade {folder.root.name}"
    grades = grade_samples(questions, samples, count, template, title, setting)
    write_lines(folder.grades, [{"grader": VERSION, "model": dict(identity)}, *grades])
    scores = score(join(questions, samples, grades, count))
    entry = {**record, "grader": VERSION, "model": dict(identity), **scores}
    write_json(folder.scores, entry)
    return entry


def combine(
    folder: EvaluationFolder, step: int | None, model: str, identity: Mapping[str, Any]
) -> dict[str, Any]:
    """Write scores.json of a checkpoint from the entries of its benchmarks, and return it.

    Entries of other weights than `identity` are left out. Workers finish benchmarks of one
    checkpoint at the same time, so what was read is compared with what is there until both agree.
    """
    while True:
        entries = _entries(folder, identity)
        require_one_grader({f"{folder.root.name}/{n}": e["grader"] for n, e in entries.items()})
        means = {name: np.array(e["question_means"])[:, None] for name, e in entries.items()}
        record = {
            "step": step,
            "model": model,
            "identity": dict(identity),
            "settings": read_json(folder.settings),
            "grader": VERSION,
            "benchmarks": entries,
            "average": averages(means),
            "environment": environment.describe(),
        }
        write_json(folder.scores, record)
        if _entries(folder, identity) == entries:
            return record


def _entries(folder: EvaluationFolder, identity: Mapping[str, Any]) -> dict[str, Any]:
    found = {name: read_json(folder.benchmark(name).scores) for name in folder.benchmarks()}
    return {name: entry for name, entry in found.items() if entry["model"] == dict(identity)}


def require_one_grader(versions: Mapping[str, str]) -> None:
    """Refuse to put scores of different graders side by side; `versions` by what has them."""
    if len(set(versions.values())) > 1:
        listed = ", ".join(f"{name}: {version[:8]}" for name, version in sorted(versions.items()))
        raise EvaluationError(
            f"graded by different versions of the grader ({listed}): `python -m eval.score FOLDER` "
            "grades all of a folder again, without an engine"
        )


def regrade(folder: EvaluationFolder) -> dict[str, Any]:
    """Grade the stored samples of one checkpoint again and rewrite its scores."""
    bank = Prompts.read(folder.prompts).bank
    before = read_json(folder.scores)
    for name, entry in _entries(folder, before["identity"]).items():
        kept = {key: entry[key] for key in ("settings", "path")}
        files = folder.benchmark(name)
        template = bank[next(iter_lines(files.questions))["template"]]
        score_benchmark(files, entry["model"], template, **kept)
    return combine(folder, before["step"], before["model"], before["identity"])


def _regrade_all(options: argparse.Namespace) -> None:
    # Of a checkpoint, beside whose folder the settings stand; not those of single benchmarks.
    found = [
        folder
        for path in sorted(options.folder.rglob("scores.json"))
        if (folder := EvaluationFolder(path.parent)).settings.exists()
    ]
    if not found:
        raise EvaluationError(f"no scores.json under {options.folder}: run eval.sweep first")
    for folder in found:
        average = regrade(folder)["average"]["per_question"]
        print(f"{folder.root}: accuracy {average['accuracy']:.4f}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = make_parser("python -m eval.score", __doc__, example="python -m eval.score runs/toy")
    parser.add_argument("folder", type=existing, help="a run, its eval/, or any folder inside it")
    return run_command(parser, arguments, _regrade_all, "what was graded is saved")


if __name__ == "__main__":
    import sys

    sys.exit(main())
