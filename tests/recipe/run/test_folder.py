"""Atomic files, metrics after a kill, the lock of a run folder."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from recipe.errors import InUseError
from recipe.run import folder as run_folder


def test_write_is_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "a.json"
    run_folder.write_json(path, {"x": 1})
    with pytest.raises(TypeError):
        run_folder.write_json(path, {"x": object()})
    assert run_folder.read_json(path) == {"x": 1}
    assert [p.name for p in path.parent.iterdir()] == ["a.json"]


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


def test_a_run_that_starts_anew_keeps_the_lines_of_its_tries(tmp_path: Path) -> None:
    for steps in ((1, 2), (1,)):  # killed twice before the first checkpoint
        for step in steps:
            run_folder.append_metrics(tmp_path, step, {})
        run_folder.truncate_metrics(tmp_path, last_step=0)
        assert run_folder.read_metrics(tmp_path) == []
        run_folder.truncate_metrics(tmp_path, last_step=0)  # nothing to keep: nothing is lost
    before = (tmp_path / "metrics.before.jsonl").read_text()
    assert [json.loads(line)["step"] for line in before.splitlines()] == [1, 2, 1]


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from recipe.run import folder as run_folder\n"
        "held = run_folder.lock(Path(sys.argv[1])); print('held', flush=True); time.sleep(60)"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert other.stdout is not None
    assert other.stdout.readline().strip() == "held"
    with pytest.raises(InUseError, match=f"in use by process {other.pid}"):
        run_folder.lock(tmp_path)
    other.kill()
    other.wait()
    run_folder.lock(tmp_path).close()


def test_the_environment_of_the_first_steps_stays_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for commit in ("a", "b", "c"):
        monkeypatch.setattr(run_folder, "environment", lambda c=commit: {"commit": c})
        run_folder.record_environment(tmp_path)
    record = run_folder.read_json(tmp_path / "environment.json")
    assert record == {"commit": "a", "resumed": [{"commit": "b"}, {"commit": "c"}]}


def test_environment_names_versions_and_commit() -> None:
    environment = run_folder.environment()
    assert environment["packages"]["verl"] == "0.9.1"
    assert environment["packages"]["torch"].startswith("2.")


def test_a_tracker_that_a_full_disk_left_empty_is_mended(tmp_path: Path) -> None:
    tracker = tmp_path / "latest_checkpointed_iteration.txt"
    run_folder.repair_tracker(tmp_path)
    assert not tracker.exists()
    for step, whole in ((2, True), (10, True), (12, False)):
        (tmp_path / f"global_step_{step}").mkdir()
        if whole:
            (tmp_path / f"global_step_{step}" / "data.pt").touch()
    tracker.write_text("2")
    run_folder.repair_tracker(tmp_path)
    assert tracker.read_text() == "2"  # a good one is left alone
    tracker.write_text("")
    run_folder.repair_tracker(tmp_path)
    assert tracker.read_text() == "10"  # by number, not by name; 12 is not whole
    for step in (2, 10):
        (tmp_path / f"global_step_{step}" / "data.pt").unlink()
    tracker.write_text("")
    run_folder.repair_tracker(tmp_path)
    assert not tracker.exists()
