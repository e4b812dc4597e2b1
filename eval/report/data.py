"""What the report says, read from a run folder: scores by step, training curves, the summary.

Nothing here is drawn or formatted. What a run lacks becomes a note, never a zero.
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from eval import metrics
from eval.errors import EvaluationError
from eval.intervals import Difference, paired
from eval.metrics import Estimate
from eval.score import require_one_grader
from eval.settings import differences
from prompt_aug.base.files import read_json, read_lines
from prompt_aug.questions import VALIDATION
from recipe.run.folder import EvaluationFolder, RunFolder, numbered, read_metrics, select

Series = tuple[list[float], list[float]]


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointRow:
    """One evaluated checkpoint: `total` over all questions, `gain` over the start, paired."""

    step: int
    benchmarks: Mapping[str, Mapping[str, Any]]
    total: metrics.Estimate
    gain: metrics.Estimate | None
    paired: Difference | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class RunData:
    """All that a report needs. `metrics` has one record per training step, in order."""

    name: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    rows: Sequence[CheckpointRow]
    eval_settings: Mapping[str, Any]
    evaluated: Mapping[int, Path]
    date: str | None = None
    levels: Mapping[tuple[int, str, int], Estimate] = field(default_factory=dict)
    selection: Mapping[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def series(self, key: str) -> Series:
        """(steps, values) where `key` is there and finite."""
        points = [
            (float(line["step"]), float(line[key]))
            for line in self.metrics
            if isinstance(line.get(key), int | float) and math.isfinite(line[key])
        ]
        return [step for step, _ in points], [value for _, value in points]

    def last(self, key: str) -> float | None:
        """The latest value of `key`, None where it was never written."""
        values = self.series(key)[1]
        return values[-1] if values else None

    @property
    def result(self) -> CheckpointRow:
        """The checkpoint that stands for the run: the one picked, or the last.

        Only where `rows` has any.
        """
        step = self.selection.get("step", self.rows[-1].step)
        return next(row for row in self.rows if row.step == step)

    @property
    def model(self) -> str | None:
        """The start model, as the configuration names it."""
        return select(self.config, "actor_rollout_ref.model.path")

    def keys(self, prefix: str) -> list[str]:
        """The metric keys that start with `prefix`, sorted."""
        return sorted({key for line in self.metrics for key in line if key.startswith(prefix)})


def collect(run: Path, settings: str | None = None) -> RunData:
    """Read a run folder. Scores or metrics that are missing become notes; both: an error."""
    if not run.is_dir():
        raise EvaluationError(f"run folder {run} does not exist")
    notes: list[str] = []
    folder = RunFolder(run)
    config = read_config(folder, notes)
    environment = _optional_json(folder.environment, notes)
    lines = read_metrics(run)
    if not lines:
        notes.append("metrics.jsonl has no training step: there are no training curves")
    evaluated = choose_evaluation(folder.evaluation, settings, notes)
    scores = {step: read_json(EvaluationFolder(p).scores) for step, p in evaluated.items()}
    require_one_grader({f"step_{step}": record["grader"] for step, record in scores.items()})
    if not scores:
        notes.append(f"no checkpoint is evaluated yet: run `python -m eval.sweep {run}`")
    if not scores and not lines:
        raise EvaluationError(
            f"{run} has neither metrics.jsonl nor eval/SETTINGS/step_N/scores.json: nothing to "
            "report; train first, then `python -m eval.sweep`"
        )
    selection = _selection(evaluated, scores)
    return RunData(
        name=run.resolve().name,
        config=config,
        environment=environment,
        metrics=lines,
        rows=checkpoint_rows(scores, notes, selection),
        selection=selection,
        eval_settings=scores[max(scores)]["settings"] if scores else {},
        evaluated=evaluated,
        date=_date(folder.metrics),
        levels=_levels(evaluated, scores),
        notes=notes,
    )


def read_config(folder: RunFolder, notes: list[str]) -> dict[str, Any]:
    """The run's config.yaml; {} and a note where it is missing."""
    return yaml.safe_load(_optional_text(folder.config, notes)) or {}


def _selection(
    evaluated: Mapping[int, Path], scores: Mapping[int, Mapping[str, Any]]
) -> dict[str, Any]:
    """What eval.selection has picked, {} where it has not; refused where scores have changed."""
    path = EvaluationFolder(evaluated[max(evaluated)]).selection if evaluated else None
    if path is None or not path.exists():
        return {}
    record = dict(read_json(path))
    name = record["benchmark"]
    now = {str(s): r["benchmarks"].get(name, {}).get("accuracy") for s, r in scores.items()}
    if now != record["scores"]:
        raise EvaluationError(
            f"{path} was picked by other scores than there are now: run "
            f"`python -m eval.selection` again, or delete it"
        )
    return record


def checkpoint_rows(
    scores: Mapping[int, Mapping[str, Any]],
    notes: list[str],
    selection: Mapping[str, Any] | None = None,
) -> list[CheckpointRow]:
    """One row per step, over the benchmarks that every step has, so that rows compare.

    The questions that a checkpoint was picked by are not a benchmark, unless there is no other.
    """
    if not scores:
        return []
    names = _common_benchmarks(scores, notes)
    if (selection or {}).get("kind") == VALIDATION and len(names) > 1:
        names = [name for name in names if name != (selection or {})["benchmark"]]
    first = min(scores)
    if first != 0:
        notes.append("the start model (step 0) is not evaluated: there is no gain over it")
    rows = []
    for step in sorted(scores):
        benchmarks = {name: scores[step]["benchmarks"][name] for name in names}
        gain = difference = None
        if first == 0 and step > 0:
            sides = _paired_means(scores[0]["benchmarks"], benchmarks, notes)
            gain = metrics.paired_difference(*sides) if sides else None
            difference = paired(*sides) if sides else None
        parts = [np.array(entry["question_means"])[:, None] for entry in benchmarks.values()]
        total = metrics.mean_over_questions(parts)
        rows.append(
            CheckpointRow(
                step=step, benchmarks=benchmarks, total=total, gain=gain, paired=difference
            )
        )
    return rows


def summary(data: RunData) -> dict[str, Any]:
    """The numbers of summary.json; null where the run does not say.

    accuracy is the mean over all questions of all benchmarks; standard_error is clustered by
    question; gain is over the start model, paired by question. wall_seconds is the training's own
    time: without teaching or loading a start model before it, export and evaluation.
    """
    start = next((row for row in data.rows if row.step == 0), None)
    seed = (data.config.get("recipe") or {}).get("seed")
    optimizer_steps = data.last("train/optimizer_steps")
    return {
        "start_accuracy": start.total.accuracy if start else None,
        "start_standard_error": start.total.standard_error if start else None,
        "checkpoints": [_summary_row(row) for row in data.rows if row.step > 0],
        "optimizer_steps": None if optimizer_steps is None else int(optimizer_steps),
        "training_steps": int(data.metrics[-1]["step"]) if data.metrics else None,
        "seed": seed,
        "wall_seconds": data.last("train/wall_seconds"),
        "evaluation": dict(data.eval_settings),
        "selection": dict(data.selection) or None,
        "notes": list(data.notes),
    }


def _summary_row(row: CheckpointRow) -> dict[str, Any]:
    return {
        "step": row.step,
        "accuracy": row.total.accuracy,
        "standard_error": row.total.standard_error,
        "questions": row.total.questions,
        "gain": row.gain.accuracy if row.gain else None,
        "gain_standard_error": row.gain.standard_error if row.gain else None,
        "gain_interval": [row.paired.low, row.paired.high] if row.paired else None,
        "gain_p_value": row.paired.p_value if row.paired else None,
        "benchmarks": {
            name: {key: entry[key] for key in ("accuracy", "standard_error", "questions")}
            for name, entry in row.benchmarks.items()
        },
    }


def _paired_means(
    start: Mapping[str, Any], now: Mapping[str, Any], notes: list[str]
) -> tuple[dict[str, float], dict[str, float]] | None:
    """The share of right samples by question, before and after; None where they differ."""
    for name, entry in now.items():
        if differences(start[name]["settings"], entry["settings"]):
            _note_once(notes, f"{name} was asked differently of the start model: no gain is given")
            return None
    before, after = (
        {
            f"{name} {index}": mean
            for name in now
            for index, mean in enumerate(side[name]["question_means"])
        }
        for side in (start, now)
    )
    return before, after


def _common_benchmarks(scores: Mapping[int, Mapping[str, Any]], notes: list[str]) -> list[str]:
    sets = [set(record["benchmarks"]) for record in scores.values()]
    common = set.intersection(*sets)
    partial = sorted(set.union(*sets) - common)
    if partial:
        notes.append(f"left out, because not every checkpoint has them: {', '.join(partial)}")
    if not common:
        raise EvaluationError("the checkpoints have no benchmark in common: evaluate them again")
    latest = scores[max(scores)]["benchmarks"]
    return [name for name in latest if name in common]


def _date(path: Path) -> str | None:
    """When the last training step was written, in UTC."""
    if not path.exists():
        return None
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(path.stat().st_mtime))


def _levels(
    evaluated: Mapping[int, Path], scores: Mapping[int, Mapping[str, Any]]
) -> dict[tuple[int, str, int], Estimate]:
    """Accuracy by (step, benchmark, level), where the questions have levels."""
    found = {}
    for step, path in evaluated.items():
        for name, entry in scores[step]["benchmarks"].items():
            means: dict[int, list[float]] = {}
            questions = read_lines(EvaluationFolder(path).benchmark(name).questions)
            for question, mean in zip(questions, entry["question_means"], strict=True):
                if question["level"] is not None:
                    means.setdefault(question["level"], []).append(mean)
            for level, values in means.items():
                found[step, name, level] = metrics.accuracy(np.array(values)[:, None])
    return found


def evaluations(root: Path) -> dict[str, dict[int, Path]]:
    """For each set of settings the checkpoint folders that are scored, by step."""
    found = {
        folder.name: {
            step: path
            for step, path in numbered(folder, "step_").items()
            if EvaluationFolder(path).scores.exists()
        }
        for folder in sorted(root.glob("*/"))
    }
    return {name: steps for name, steps in found.items() if steps}


def choose_evaluation(root: Path, asked: str | None, notes: list[str]) -> dict[int, Path]:
    """The checkpoint folders of the settings `asked`; None: those of most steps, then the newest.

    The others are named in a note: scores of different settings do not stand in one table.
    """
    found = evaluations(root)
    if asked is not None and asked not in found:
        raise EvaluationError(f"no scores of the settings {asked!r} in {root}: {sorted(found)}")
    if not found:
        return {}

    def rank(name: str) -> tuple[int, float]:
        scores = [EvaluationFolder(path).scores for path in found[name].values()]
        return len(scores), max(path.stat().st_mtime for path in scores)

    chosen = asked or max(found, key=rank)
    others = sorted(set(found) - {chosen})
    if others:
        notes.append(
            f"this report is of the settings {chosen}; others (--settings): {', '.join(others)}"
        )
    return found[chosen]


def _optional_text(path: Path, notes: list[str]) -> str:
    if not path.exists():
        notes.append(f"{path.name} is missing")
        return ""
    return path.read_text(encoding="utf-8")


def _optional_json(path: Path, notes: list[str]) -> dict[str, Any]:
    if not path.exists():
        notes.append(f"{path.name} is missing")
        return {}
    return dict(read_json(path))


def _note_once(notes: list[str], note: str) -> None:
    if note not in notes:
        notes.append(note)
