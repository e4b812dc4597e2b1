"""The run folder: every path in it, and how its files are written.

All names in the run folder are defined in `RunFolder`; training, export, evaluation and report use
it. Files are written atomically (prompt_aug/base/files.py), except that metrics.jsonl is appended
to. This module imports neither torch nor ray, so that commands that only read a run start fast.
"""

import functools
import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prompt_aug.base import files
from prompt_aug.base.errors import UserError
from prompt_aug.typed import read_record, stored
from recipe.machine import environment

MANIFEST = "manifest.json"  # written last: a folder is done if it is there
CHECKPOINT = "global_step_"  # and the step: verl's name of a checkpoint's folder


class _At:
    """Attribute of a folder: the path `name` under its `root`."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, folder: Any, _: type) -> Path:
        return folder.root / self.name


class _Beside(_At):
    """The path `name` beside the `root` of a folder."""

    def __get__(self, folder: Any, _: type) -> Path:
        return folder.root.parent / self.name


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The paths of a run. Nothing is created; `step` is a training step, 0 the start model."""

    root: Path

    config = _At("config.yaml")  # the resolved configuration
    prompts = _At("prompts.yaml")  # templates, style and format setting of all prompts of the run
    script = _At("script.txt")  # what became of a launch script's settings
    environment = _At("environment.json")  # versions, platform, commit
    model = _At("model.json")  # what loads of the start model (recipe.machine.model_files)
    metrics = _At("metrics.jsonl")  # a line per training step
    metrics_before = _At("metrics.before.jsonl")  # the lines of starts that saved nothing
    data_manifest = _At(f"data/{MANIFEST}")  # names the dropped questions
    checkpoints = _At("checkpoints")  # as verl writes them
    exports = _At("hf")  # exported for Hugging Face
    export_locks = _At("hf/.locks")
    evaluation = _At("eval")  # samples, grades and scores of the exported steps
    logs = _At("logs")
    log = _At("logs/train.log")  # output of the run's processes
    start = _At("logs/start.jsonl")  # the stages of the last start
    saves = _At("logs/saves.json")  # seconds of the latest saves (recipe.run.stop)
    end = _At("logs/end.json")  # exit code and message of the last start
    error = _At("logs/error.txt")  # the traceback that ended it
    report = _At("report")  # index.html, summary.json, pictures
    tensorboard = _At("tensorboard")  # the metrics again, for TensorBoard
    wandb_run = _At(".wandb_run_id")  # the run's id in wandb
    stop_request = _At(".stop")  # asks the trainer to save and end (recipe.run.stop)

    @property
    def begun(self) -> bool:
        """Steps are done or a checkpoint is saved, so only the same experiment may continue."""
        return self.metrics.exists() or bool(numbered(self.checkpoints, CHECKPOINT))

    def data(self, split: str) -> Path:
        """The checked questions of a split, "train" or "test"."""
        return self.root / "data" / f"{split}.parquet"

    def rollouts(self, step: int) -> Path:
        """The rollouts of a step, one per line."""
        return self.root / "rollouts" / f"step_{step}.jsonl"

    def rollout_steps(self) -> dict[int, Path]:
        """The recorded steps, in order."""
        return numbered(self.root / "rollouts", "step_", ".jsonl")

    def tensors(self, step: int) -> Path:
        return self.root / "tensors" / f"step_{step}.npz"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"{CHECKPOINT}{step}"

    def exported(self, step: int) -> Path:
        """The Hugging Face folder of a step; done if its manifest.json is there."""
        return self.exports / f"step_{step}"

    def manifest(self, step: int) -> Path:
        return self.exported(step) / MANIFEST

    def export_lock(self, step: int) -> Path:
        """Held by the process that exports the step."""
        return self.export_locks / f"step_{step}"


@dataclass(frozen=True, slots=True)
class EvaluationFolder:
    """One checkpoint under one set of settings: ``eval/SETTINGS/CHECKPOINT``."""

    root: Path

    settings = _Beside("settings.json")  # their digest ends the name of the folder above
    prompts = _Beside("prompts.yaml")  # the template of every question
    selection = _Beside("selection.json")  # the selected checkpoint and why (eval.selection)
    scores = _At("scores.json")  # all benchmarks together, made from their entries

    def benchmark(self, name: str) -> "BenchmarkFolder":
        return BenchmarkFolder(self.root / name)

    def benchmarks(self) -> list[str]:
        """The names of the benchmarks that are scored."""
        return sorted(path.parent.name for path in self.root.glob("*/scores.json"))


@dataclass(frozen=True, slots=True)
class BenchmarkFolder:
    """The answers of one checkpoint to one benchmark: ``eval/SETTINGS/CHECKPOINT/BENCHMARK``."""

    root: Path

    questions = _At("questions.jsonl")  # in the order in which they were asked
    grades = _At("grades.jsonl")  # the verdicts, with the grader's version
    scores = _At("scores.json")  # the entry of this benchmark, written last

    def samples(self, worker: str) -> Path:
        """The answers by one worker; append-only."""
        return self.root / f"samples-{worker}.jsonl"

    def sample_files(self) -> list[Path]:
        """The files of all workers, by name."""
        return sorted(self.root.glob("samples-*.jsonl"))


def numbered(folder: Path, before: str, after: str = "") -> dict[int, Path]:
    """Return the entries ``<before>N<after>`` by N, in order; N has no leading zeros."""
    entries = {}
    for path in folder.glob(f"{before}*{after}"):
        number = path.name[len(before) : len(path.name) - len(after)]
        if number.isascii() and number.isdecimal() and str(int(number)) == number:
            entries[int(number)] = path
    return dict(sorted(entries.items()))


def read_config(run: Path) -> dict[str, Any]:
    """Return the content of a run's config.yaml. Raises FileError."""
    path = RunFolder(run).config
    if not path.is_file():
        raise files.MissingFileError(f"{run} is not a run folder: it has no {path.name}")
    return read_record(path)


def select(config: Any, key: str) -> Any:
    """Return the value at the dotted `key` of a config.yaml's content; None if there is none."""
    for name in key.split("."):
        config = config.get(name) if isinstance(config, Mapping) else None
    return config


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write `arrays` as a compressed .npz file, atomically."""
    with files.replacing(path) as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def metrics_line(step: int, metrics: dict[str, Any]) -> dict[str, Any]:
    """Return the line of `step`: only numbers and strings; null for what is not finite."""
    line: dict[str, Any] = {"step": step}
    for key, value in sorted(metrics.items()):
        number = value.item() if isinstance(value, np.generic) else value
        if isinstance(number, int | float | str | bool) and key != "step":
            finite = not isinstance(number, float) or math.isfinite(number)
            line[key] = number if finite else None
    return line


def append_metrics(run_dir: Path, step: int, metrics: dict[str, Any]) -> None:
    """Append `metrics_line` to metrics.jsonl."""
    files.append_lines(RunFolder(run_dir).metrics, [metrics_line(step, metrics)])


def metrics_lines(run_dir: Path) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl as written; a damaged one is left out and named once."""
    return list(
        files.iter_lines(RunFolder(run_dir).metrics, _is_metrics, lambda why: _note(str(why)))
    )


def _is_metrics(line: Any) -> bool:
    """Return True for a line as `metrics_line` makes it."""
    if not isinstance(line, dict) or type(step := line.get("step")) is not int or step < 0:
        return False
    return all(isinstance(value, int | float | str | None) for value in line.values())


@functools.cache  # the file is read at every step
def _note(text: str) -> None:
    print(f"note: {text} Until then it is left out.", file=sys.stderr)


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """Return `metrics_lines` by step: of two lines the later, NaN for null."""
    by_step = {line["step"]: line for line in metrics_lines(run_dir)}
    lines = (by_step[step] for step in sorted(by_step))
    return [{k: math.nan if v is None else v for k, v in line.items()} for line in lines]


def truncate_metrics(run_dir: Path, last_step: int) -> None:
    """Keep the lines up to `last_step`; a run from scratch moves them to metrics.before.jsonl."""
    run = RunFolder(run_dir)
    lines = metrics_lines(run_dir)
    if lines and last_step == 0:
        files.write_lines(run.metrics_before, [*files.read_lines(run.metrics_before), *lines])
        run.metrics.unlink()
    elif lines:
        files.write_lines(run.metrics, (m for m in lines if m["step"] <= last_step))


def record_environment(run_dir: Path) -> list[str]:
    """Add a start to environment.json, in ``resumed`` after the first; return what has changed."""
    path, now = RunFolder(run_dir).environment, environment.describe()
    start: Any = stored(packages=dict[str, Any])
    types = {"packages": dict[str, Any], "resumed": list[start]}
    first = read_record(path, **types) if path.exists() else now
    starts = [first, *first.get("resumed", []), now]
    files.write_json(path, {**first, "resumed": starts[1:]} if path.exists() else now)
    old, new = ({"commit": x.get("commit"), **x.get("packages", {})} for x in starts[-2:])
    return [f"{k} {v} -> {new[k]}" for k, v in old.items() if v != new.get(k, v)]


def start_model(run: Path) -> dict[str, Any]:
    """Return `describe` of a run's start model as it is now. Raises UserError or KeyError."""
    from recipe.machine.model_files import describe  # slow to import

    section = read_config(run)["actor_rollout_ref"]["model"]
    overrides = section.get("override_config") or {}
    return describe(section["path"], overrides.get("model_config", overrides))


def record_model(run: Path, anew: bool = False) -> None:
    """Write model.json, again if the run begins `anew`: it may do so with another model."""
    if anew or not RunFolder(run).model.is_file():
        files.write_json(RunFolder(run).model, start_model(run))


@functools.cache
def recorded_model(run: Path) -> tuple[dict[str, Any] | None, str]:
    """Return model.json; for an older run that of its start model as it is now, and a note."""
    from recipe.machine.model_files import TYPES

    if (path := RunFolder(run).model).is_file():
        return read_record(path, *TYPES, **TYPES), ""
    note = f"note: {run} has not recorded how its start model's files load"
    try:
        return start_model(run), f"{note}: compared with those of now"
    except (UserError, KeyError):
        return None, f"{note}, and they do not: tokenizer and config.json are unproven"
