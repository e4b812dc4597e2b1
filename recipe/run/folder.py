"""The run folder, the contract between the stages: every path in it, and how it is written.

`RunFolder` is the only place that spells a name of the run folder; training, export, evaluation
and report ask it. A file appears whole or not at all (prompt_aug/base/files.py); metrics.jsonl
grows by lines. Imports neither torch nor ray: a command that only reads a run starts at once.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from prompt_aug.base.files import (
    append_lines,
    read_json,
    read_lines,
    replacing,
    write_json,
    write_lines,
)
from recipe.run import environment

MANIFEST = "manifest.json"  # written last: its presence is the only "done" of a folder
CHECKPOINT = "global_step_"  # and the step: verl's name of the folder of a checkpoint


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The paths of a run. Nothing is created; `N` is a training step, 0 the start model.

    config.yaml         the resolved configuration
    prompts.yaml        templates, style and format setting: one record for all prompts of the run
    environment.json    versions, platform, commit
    metrics.jsonl       a line per training step; metrics.before.jsonl: of starts that saved nothing
    data/               {train,test}.parquet and manifest.json, which names the dropped questions
    rollouts/           step_N.jsonl, a line per rollout
    tensors/            step_N.npz
    checkpoints/        global_step_N, as verl writes them
    hf/                 step_N, exported for Hugging Face, each with a manifest.json
    eval/               samples, grades and scores of the exported steps
    logs/               train.log: what the run's processes print; start.jsonl: the stages of the
                        last start; end.json: how it ended; error.txt: the traceback it ended with
    report/             index.html, report.md, summary.json, pictures
    measured.json       what recipe.lab.measure says of the exported steps; seconds.json: its stages
    tensorboard/        the same numbers for TensorBoard; .wandb_run_id names the run in wandb
    .stop               the run is asked to end (recipe.run.stop, these three)
    .stepping           training steps have begun: there is work to save
    .hung               why the watchdog ended the trainer's process
    """

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.yaml"

    @property
    def prompts(self) -> Path:
        return self.root / "prompts.yaml"

    @property
    def environment(self) -> Path:
        return self.root / "environment.json"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def metrics_before(self) -> Path:
        return self.root / "metrics.before.jsonl"

    @property
    def data_manifest(self) -> Path:
        return self.root / "data" / MANIFEST

    def data(self, split: str) -> Path:
        """The checked questions of a split, "train" or "test"."""
        return self.root / "data" / f"{split}.parquet"

    def rollouts(self, step: int) -> Path:
        return self.root / "rollouts" / f"step_{step}.jsonl"

    def rollout_steps(self) -> dict[int, Path]:
        """The recorded steps, in order."""
        return numbered(self.root / "rollouts", "step_", ".jsonl")

    def tensors(self, step: int) -> Path:
        return self.root / "tensors" / f"step_{step}.npz"

    @property
    def checkpoints(self) -> Path:
        return self.root / "checkpoints"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"{CHECKPOINT}{step}"

    @property
    def exports(self) -> Path:
        return self.root / "hf"

    def exported(self, step: int) -> Path:
        """The Hugging Face folder of a step; done when its manifest.json stands."""
        return self.exports / f"step_{step}"

    def manifest(self, step: int) -> Path:
        return self.exported(step) / MANIFEST

    def export_lock(self, step: int) -> Path:
        """Held by the process that exports the step."""
        return self.exports / ".locks" / f"step_{step}"

    @property
    def evaluation(self) -> Path:
        return self.root / "eval"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def log(self) -> Path:
        return self.logs / "train.log"

    @property
    def start(self) -> Path:
        return self.logs / "start.jsonl"

    @property
    def error(self) -> Path:
        return self.logs / "error.txt"

    @property
    def end(self) -> Path:
        return self.logs / "end.json"

    @property
    def report(self) -> Path:
        return self.root / "report"

    @property
    def measured(self) -> Path:
        return self.root / "measured.json"

    @property
    def seconds(self) -> Path:
        return self.root / "seconds.json"

    @property
    def tensorboard(self) -> Path:
        return self.root / "tensorboard"

    @property
    def wandb_run(self) -> Path:
        return self.root / ".wandb_run_id"

    @property
    def stop_request(self) -> Path:
        return self.root / ".stop"

    @property
    def stepping(self) -> Path:
        return self.root / ".stepping"

    @property
    def hung(self) -> Path:
        return self.root / ".hung"


@dataclass(frozen=True, slots=True)
class EvaluationFolder:
    """One checkpoint under one set of settings: ``eval/SETTINGS/CHECKPOINT``.

    ../settings.json               the settings, whose digest ends the name of the folder above
    ../prompts.yaml                the template that every question was asked with
    ../selection.json              which checkpoint was picked, by what (eval.selection)
    scores.json                    all benchmarks together; made from their entries
    BENCHMARK/questions.jsonl      what was asked, in order
    BENCHMARK/samples-WORKER.jsonl append-only, a file per worker
    BENCHMARK/grades.jsonl         the verdicts, with the grader's version
    BENCHMARK/scores.json          the entry of this benchmark, written last
    """

    root: Path

    @property
    def settings(self) -> Path:
        return self.root.parent / "settings.json"

    @property
    def prompts(self) -> Path:
        return self.root.parent / "prompts.yaml"

    @property
    def selection(self) -> Path:
        return self.root.parent / "selection.json"

    @property
    def scores(self) -> Path:
        return self.root / "scores.json"

    def benchmark(self, name: str) -> "BenchmarkFolder":
        return BenchmarkFolder(self.root / name)

    def benchmarks(self) -> list[str]:
        """The names of the benchmarks that are scored."""
        return sorted(path.parent.name for path in self.root.glob("*/scores.json"))


@dataclass(frozen=True, slots=True)
class BenchmarkFolder:
    """The answers of one checkpoint to one benchmark; see `EvaluationFolder`."""

    root: Path

    @property
    def questions(self) -> Path:
        return self.root / "questions.jsonl"

    def samples(self, worker: str) -> Path:
        return self.root / f"samples-{worker}.jsonl"

    def sample_files(self) -> list[Path]:
        """The files of all workers, by name."""
        return sorted(self.root.glob("samples-*.jsonl"))

    @property
    def grades(self) -> Path:
        return self.root / "grades.jsonl"

    @property
    def scores(self) -> Path:
        return self.root / "scores.json"


def numbered(folder: Path, before: str, after: str = "") -> dict[int, Path]:
    """The entries of `folder` named ``<before>N<after>`` by N, in order; other names are left out.

    N is plain digits: ``step_007`` would be written back as ``step_7``, so it is another name.
    """
    found = {}
    for path in folder.glob(f"{before}*{after}"):
        number = path.name[len(before) : len(path.name) - len(after)]
        if number.isascii() and number.isdecimal() and str(int(number)) == number:
            found[int(number)] = path
    return dict(sorted(found.items()))


def select(config: Any, key: str) -> Any:
    """The value at the dotted `key` of what config.yaml holds, None where there is none."""
    for name in key.split("."):
        config = config.get(name) if isinstance(config, Mapping) else None
    return config


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write `arrays` as a compressed .npz file, atomically."""
    with replacing(path) as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def _number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    return value if isinstance(value, int | float | str | bool) else None


def _finite(line: dict[str, Any]) -> dict[str, Any]:
    def finite(value: Any) -> Any:
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {key: finite(value) for key, value in line.items()}


def metrics_line(step: int, metrics: dict[str, Any]) -> dict[str, Any]:
    """The JSON object of `step` for metrics.jsonl; what is not a number or text is left out.

    NaN and infinity, which JSON does not have, become null, and are read back as NaN.
    """
    flat = {k: _number(v) for k, v in sorted(metrics.items())}
    known = {k: v for k, v in flat.items() if v is not None and k != "step"}
    return _finite({"step": step, **known})


def append_metrics(run_dir: Path, step: int, metrics: dict[str, Any]) -> None:
    """Append `metrics_line` to metrics.jsonl."""
    append_lines(RunFolder(run_dir).metrics, [metrics_line(step, metrics)])


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl in the order of steps; a last line cut by a kill is left out.

    Of a step that is there twice the later line counts.
    """
    by_step = {x["step"]: x for x in read_lines(RunFolder(run_dir).metrics) if "step" in x}
    lines = (by_step[step] for step in sorted(by_step))
    return [{k: math.nan if v is None else v for k, v in line.items()} for line in lines]


def truncate_metrics(run_dir: Path, last_step: int) -> None:
    """Keep the lines of metrics.jsonl up to `last_step`, before training is resumed there.

    A run that starts from scratch, because nothing was saved, adds them to metrics.before.jsonl.
    """
    run = RunFolder(run_dir)
    lines = [_finite(line) for line in read_lines(run.metrics)]
    if lines and last_step == 0:
        write_lines(run.metrics_before, [*read_lines(run.metrics_before), *lines])
        run.metrics.unlink()
    elif lines:
        write_lines(run.metrics, (m for m in lines if m["step"] <= last_step))


def record_environment(run_dir: Path) -> None:
    """Write environment.json when training starts; when it is resumed, add to its list ``resumed``.

    What trained the first steps stays on record, whatever version resumes the run later.
    """
    path, now = RunFolder(run_dir).environment, environment.describe()
    if path.exists():
        first = read_json(path)
        now = {**first, "resumed": [*first.get("resumed", []), now]}
    write_json(path, now)
