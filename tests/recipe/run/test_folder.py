"""Paths of a run, its metrics after a kill, the record of the environment."""

import json
import math
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from prompt_aug.base.files import read_json
from recipe.run import environment
from recipe.run import folder as run_folder
from recipe.run.folder import EvaluationFolder, RunFolder


def steps_in(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_metrics_lines_survive_a_kill_and_a_resume(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        metrics = {"b": np.float32(0.5), "a": 1, "skip": [1], "none": None, "step": 9}
        run_folder.append_metrics(tmp_path, step, metrics)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "b": 0.')  # killed while writing
    lines = run_folder.read_metrics(tmp_path)
    assert lines == [{"step": s, "a": 1, "b": 0.5} for s in (1, 2, 3)]
    run_folder.truncate_metrics(tmp_path, last_step=2)
    assert steps_in(tmp_path / "metrics.jsonl") == [1, 2]


def test_a_metric_that_is_not_finite_stays_on_record_in_standard_json(tmp_path: Path) -> None:
    values = {"a": float("nan"), "b": np.float32("inf"), "c": 1.5}
    run_folder.append_metrics(tmp_path, 1, values)
    text = (tmp_path / "metrics.jsonl").read_text()
    assert text == '{"step": 1, "a": null, "b": null, "c": 1.5}\n'
    (line,) = run_folder.read_metrics(tmp_path)
    assert math.isnan(line["a"]) and math.isnan(line["b"])
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "a": NaN}\n')  # of an older version
    run_folder.truncate_metrics(tmp_path, last_step=1)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "a": null}\n'


def test_a_run_that_starts_from_scratch_keeps_the_lines_of_its_tries(tmp_path: Path) -> None:
    for steps in ((1, 2), (1,)):  # killed twice before the first checkpoint
        for step in steps:
            run_folder.append_metrics(tmp_path, step, {})
        for _ in range(2):  # the second time there is nothing to move, and nothing is lost
            run_folder.truncate_metrics(tmp_path, last_step=0)
            assert run_folder.read_metrics(tmp_path) == []
    assert steps_in(tmp_path / "metrics.before.jsonl") == [1, 2, 1]


def test_the_environment_of_the_first_steps_stays_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for commit in ("a", "b", "c"):
        monkeypatch.setattr(environment, "describe", lambda c=commit: {"commit": c})
        run_folder.record_environment(tmp_path)
    record = read_json(tmp_path / "environment.json")
    assert record == {"commit": "a", "resumed": [{"commit": "b"}, {"commit": "c"}]}


def test_environment_names_versions_and_commit() -> None:
    recorded = environment.describe()
    assert recorded["packages"]["verl"] == "0.9.1"
    assert shlex.split(recorded["command"]) == sys.orig_argv  # of which recipe.fork reads it


RUN, SCORED = RunFolder(Path("/run")), EvaluationFolder(Path("/run/eval/s/step_3"))


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        # Files of runs and evaluations that exist: a new name would lose them.
        *((RUN.config, "config.yaml"), (RUN.metrics, "metrics.jsonl")),
        *((RUN.data("train"), "data/train.parquet"), (RUN.data_manifest, "data/manifest.json")),
        *((RUN.rollouts(3), "rollouts/step_3.jsonl"), (RUN.exported(3), "hf/step_3")),
        *((RUN.checkpoint(3), "checkpoints/global_step_3"), (RUN.log, "logs/train.log")),
        *((RUN.stop_request, ".stop"), (SCORED.settings, "eval/s/settings.json")),
        (SCORED.benchmark("b").samples("w"), "eval/s/step_3/b/samples-w.jsonl"),
    ],
)  # fmt: skip
def test_paths_by_hand(path: Path, expected: str) -> None:
    assert path == Path("/run") / expected


def test_numbered_entries_come_by_number_and_others_are_skipped(tmp_path: Path) -> None:
    for name in ("step_10", "step_9", "step_007", "step_", "step_1.tmp", "step_x", "step_²", "a9"):
        (tmp_path / name).touch()
    entries = run_folder.numbered(tmp_path, "step_")
    assert list(entries.items()) == [(n, tmp_path / f"step_{n}") for n in (9, 10)]
    (tmp_path / "rollouts").mkdir()
    for step in (10, 2):
        RunFolder(tmp_path).rollouts(step).touch()
    assert list(RunFolder(tmp_path).rollout_steps()) == [2, 10]
    assert run_folder.numbered(tmp_path / "none", "step_") == {}


@pytest.mark.parametrize(
    ("module", "slow"),
    [
        ("recipe.run.folder", {"torch", "ray", "verl", "vllm", "transformers"}),
        ("recipe.doctor", {"omegaconf", "numpy"}),  # which may be broken
    ],
)
def test_a_command_that_must_start_fast_or_anywhere_imports_little(
    module: str, slow: set[str]
) -> None:
    program = f"import sys, {module}\nprint(sorted({slow} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
