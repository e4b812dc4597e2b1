"""The table of runs: which folders are runs, and what is said of each."""

import os
import time
from pathlib import Path

import pytest

from prompt_aug.base.files import lock, write_json
from recipe import runs
from recipe.run.folder import RunFolder, append_metrics


def make(path: Path, steps: int = 4, done: int = 0) -> RunFolder:
    run = RunFolder(path)
    run.data("train").parent.mkdir(parents=True)
    run.config.write_text(f"trainer: {{total_training_steps: {steps}}}\n")
    for step in range(1, done + 1):
        held_out = {"val/toy/accuracy": 0.9, "val/toy/accuracy_se": 0.1} if step == 2 else {}
        append_metrics(path, step, {"train/accuracy": step / 10, **held_out})
    return run


def rows(folder: Path) -> dict[str, dict[str, str]]:
    """The cells of each run by the header of their column."""
    listed = {str(p.relative_to(folder)): runs.row(p, p.name) for p in runs.find(folder)}
    return {name: dict(zip(runs.HEADER, cells, strict=True)) for name, cells in listed.items()}


def test_the_states(tmp_path: Path) -> None:
    make(tmp_path / "ready")
    for name, code, steps in (
        ("done", 0, 4),
        ("interrupted", 130, 3),
        ("time", 75, 3),
        ("failed", 1, 3),
    ):
        run = make(tmp_path / name, done=steps)
        write_json(run.end, {"code": code, "message": ""})
    run = make(tmp_path / "killed", done=2)
    run.logs.mkdir()
    run.start.write_text("")
    make(tmp_path / "older", done=2)  # made before logs/ was
    busy = make(tmp_path / "busy", done=4)
    write_json(busy.end, {"code": 1, "message": ""})
    with lock(busy.root):
        states = {name: row["state"] for name, row in rows(tmp_path).items()}
        assert states.pop("busy") == "running"
    assert states == {
        **{"ready": "ready", "done": "done", "interrupted": "stopped", "time": "stopped"},
        **{"failed": "failed", "killed": "killed", "older": "stopped"},
    }
    assert rows(tmp_path)["busy"]["state"] == "failed"  # the lock is given free


def test_the_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make(tmp_path / "a", done=3)
    hour_ago = time.time() - 3600
    os.utime(run.metrics, (hour_ago, hour_ago))
    blob = run.exported(3) / "model"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(os.urandom(20_000_000))
    (blob.parent / "again").hardlink_to(blob)  # on the disk once
    cells = ("a", "3/4", "1 h 00 min", "stopped", "0.900", "0.300", "0.02 GB")
    assert tuple(rows(tmp_path)["a"].values()) == cells
    assert runs.main([str(tmp_path)]) == 0
    assert " ".join(capsys.readouterr().out.splitlines()[1].split()) == " ".join(cells)
    assert runs.main([str(run.data("train").parent)]) == 1  # there is no run


def test_a_torn_configuration_costs_its_own_numbers_only(tmp_path: Path) -> None:
    make(tmp_path / "a", done=1).config.write_bytes(b"trainer: {total\xff")
    assert rows(tmp_path)["a"]["step"] == "1/?"
