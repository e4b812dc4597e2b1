"""One wandb run for all starts of a training; variables and code of the workers."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipe.run import environment, host

NAMES = ("WANDB_RUN_ID", "WANDB_RESUME")


def started(path: Path, monkeypatch: pytest.MonkeyPatch, **set_by_user: str) -> dict[str, str]:
    """The variables that a start gives to its actors."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in set_by_user.items():
        monkeypatch.setenv(name, value)
    environment.keep_wandb_run(path)
    handed = environment.inherited()
    for name in NAMES:
        os.environ.pop(name, None)
    return {name: handed[name] for name in NAMES}


def test_every_start_of_a_run_resumes_its_wandb_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = started(tmp_path / "a", monkeypatch)
    assert first["WANDB_RESUME"] == "allow" and len(first["WANDB_RUN_ID"]) == 8
    assert started(tmp_path / "a", monkeypatch) == first
    assert started(tmp_path / "b", monkeypatch) != first
    assert started(tmp_path / "a", monkeypatch, WANDB_RUN_ID="mine")["WANDB_RUN_ID"] == "mine"


def test_actors_inherit_the_run_and_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {environment.RUN_DIR: "runs/a", environment.RUN_ID: "1", environment.DEADLINE: "9"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert given.items() <= environment.inherited().items()


def test_workers_run_the_code_of_this_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of another one, as in a git worktree with the environment of the main checkout."""
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "__init__.py").touch()
    (tmp_path / "mine.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    for _ in range(2):
        environment.set_defaults(cpu=True)
        assert os.environ["PYTHONPATH"] == f"{host.ROOT}{os.pathsep}{tmp_path}"
    program = "import recipe.plugin, mine; print(recipe.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path.parent, capture_output=True, text=True
    )
    assert done.stdout == f"{host.ROOT}/recipe/__init__.py\n", done.stderr
    assert environment.inherited()["PYTHONPATH"] == os.environ["PYTHONPATH"]
