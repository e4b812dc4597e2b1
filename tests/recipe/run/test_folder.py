"""Metrics after a kill, the record of the environment, the tracker of checkpoints."""

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


def test_of_a_step_that_is_there_twice_the_later_line_counts(tmp_path: Path) -> None:
    for step, value in ((1, 0.1), (2, 0.2), (3, 0.3), (2, 9.0)):
        run_folder.append_metrics(tmp_path, step, {"b": value})
    found = [(line["step"], line["b"]) for line in run_folder.read_metrics(tmp_path)]
    assert found == [(1, 0.1), (2, 9.0), (3, 0.3)]


def test_metrics_lines_survive_a_cut_and_a_resume(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        run_folder.append_metrics(
            tmp_path, step, {"b": np.float32(0.5), "a": 1, "skip": [1], "none": None}
        )
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "b": 0.')  # killed while writing
    lines = run_folder.read_metrics(tmp_path)
    assert lines == [{"step": s, "a": 1, "b": 0.5} for s in (1, 2, 3)]
    run_folder.truncate_metrics(tmp_path, last_step=2)
    text = (tmp_path / "metrics.jsonl").read_text()
    assert [json.loads(line)["step"] for line in text.splitlines()] == [1, 2]


def test_a_metric_that_is_no_number_stays_on_record_in_standard_json(tmp_path: Path) -> None:
    values = {"a": float("nan"), "b": np.float32("inf"), "c": 1.5}
    run_folder.append_metrics(tmp_path, 1, values)
    text = (tmp_path / "metrics.jsonl").read_text()
    assert text == '{"step": 1, "a": null, "b": null, "c": 1.5}\n'
    (line,) = run_folder.read_metrics(tmp_path)
    assert math.isnan(line["a"])
    assert math.isnan(line["b"])
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "a": NaN}\n')  # as it was written once
    run_folder.truncate_metrics(tmp_path, last_step=1)
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 1, "a": null}\n'


def test_a_run_that_starts_anew_keeps_the_lines_of_its_tries(tmp_path: Path) -> None:
    for steps in ((1, 2), (1,)):  # killed twice before the first checkpoint
        for step in steps:
            run_folder.append_metrics(tmp_path, step, {})
        run_folder.truncate_metrics(tmp_path, last_step=0)
        assert run_folder.read_metrics(tmp_path) == []
        run_folder.truncate_metrics(tmp_path, last_step=0)  # nothing to keep: nothing is lost
    before = (tmp_path / "metrics.before.jsonl").read_text()
    assert [json.loads(line)["step"] for line in before.splitlines()] == [1, 2, 1]


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
    assert recorded["packages"]["torch"].startswith("2.")
    assert shlex.split(recorded["command"]) == sys.orig_argv


def test_every_path_of_a_run_by_hand(tmp_path: Path) -> None:
    folder = run_folder.RunFolder(tmp_path)
    assert {
        str(path.relative_to(tmp_path))
        for path in (
            folder.config, folder.prompts, folder.environment, folder.metrics,
            folder.data("train"), folder.data_manifest, folder.rollouts(3), folder.tensors(3),
            folder.checkpoint(3), folder.exported(3), folder.manifest(3), folder.evaluation,
            folder.report, folder.metrics_before, folder.tensorboard, folder.wandb_run,
            folder.stop_request, folder.stepping, folder.hung, folder.log, folder.start,
            folder.end, folder.error, folder.measured, folder.seconds, folder.export_lock(3),
        )
    } == {
        "config.yaml", "prompts.yaml", "environment.json", "metrics.jsonl",
        "data/train.parquet", "data/manifest.json", "rollouts/step_3.jsonl", "tensors/step_3.npz",
        "checkpoints/global_step_3", "hf/step_3", "hf/step_3/manifest.json", "eval", "report",
        "metrics.before.jsonl", "tensorboard", ".wandb_run_id", ".stop", ".stepping", ".hung",
        "logs/train.log", "logs/start.jsonl", "logs/end.json", "logs/error.txt",
        "measured.json", "seconds.json", "hf/.locks/step_3",
    }  # fmt: skip


def test_numbered_entries_come_by_number_and_others_do_not(tmp_path: Path) -> None:
    for name in ("step_10", "step_9", "step_007", "step_", "step_1.tmp", "step_x", "step_²", "a9"):
        (tmp_path / name).touch()
    found = run_folder.numbered(tmp_path, "step_")
    assert list(found) == [9, 10]
    assert found[9] == tmp_path / "step_9"
    (tmp_path / "rollouts").mkdir()
    for step in (10, 2):
        run_folder.RunFolder(tmp_path).rollouts(step).touch()
    assert list(run_folder.RunFolder(tmp_path).rollout_steps()) == [2, 10]
    assert run_folder.numbered(tmp_path / "none", "step_") == {}


def test_a_dotted_key_of_a_configuration() -> None:
    config = {"a": {"b": {"c": 1}, "d": None}}
    assert run_folder.select(config, "a.b.c") == 1
    assert run_folder.select(config, "a.b") == {"c": 1}
    for missing in ("a.x", "a.d.e", "a.b.c.d", "x"):
        assert run_folder.select(config, missing) is None


def test_reading_a_run_imports_no_torch_and_no_ray() -> None:
    program = (
        "import sys, recipe.run.folder\n"
        "print(sorted({'torch', 'ray', 'verl', 'vllm', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
