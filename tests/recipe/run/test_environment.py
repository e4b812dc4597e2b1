"""One wandb run for all starts of a training."""

import os
from pathlib import Path

import pytest

from recipe.run import environment

NAMES = ("WANDB_RUN_ID", "WANDB_RESUME")


def started(path: Path, monkeypatch: pytest.MonkeyPatch, **set_by_user: str) -> dict[str, str]:
    """What a start hands to its actors; the id of the run in wandb stands in `path`."""
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)
    for name, value in set_by_user.items():
        monkeypatch.setenv(name, value)
    environment.keep_wandb_run(path)
    handed = environment.inherited()
    for name in NAMES:
        os.environ.pop(name, None)
    return {name: handed[name] for name in NAMES}


def test_every_start_of_a_run_goes_on_in_its_wandb_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = started(tmp_path / "a", monkeypatch)
    assert first["WANDB_RESUME"] == "allow" and len(first["WANDB_RUN_ID"]) == 8
    assert started(tmp_path / "a", monkeypatch) == first
    assert started(tmp_path / "b", monkeypatch) != first
    assert started(tmp_path / "a", monkeypatch, WANDB_RUN_ID="mine")["WANDB_RUN_ID"] == "mine"
