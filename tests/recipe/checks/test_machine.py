"""The room for a first checkpoint."""

from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from recipe.checks.machine import check_first_checkpoint
from recipe.errors import ConfigError
from recipe.run.checkpoints import TRACKER

# 12 bytes for each of the 1,543,714,304 parameters of tests/recipe/plan: 18.5 GB.
MODEL = "Qwen/Qwen2.5-Math-1.5B"


def config(run: Path, model: str | None = MODEL, save_freq: int = 10) -> DictConfig:
    trainer = {"save_freq": save_freq, "default_local_dir": str(run / "checkpoints")}
    recipe = {"run_dir": str(run), "model_path": model}
    return OmegaConf.create({"recipe": recipe, "trainer": trainer})


def disk(monkeypatch: pytest.MonkeyPatch, free: float) -> None:
    usage = type("Usage", (), {"free": free})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)


def test_a_disk_too_small_for_one_checkpoint_is_refused_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "not made yet" / "run"
    disk(monkeypatch, 18.4e9)
    with pytest.raises(ConfigError, match=r"Qwen2.5-Math-1.5B takes 19 GB, .* has 18 GB free"):
        check_first_checkpoint(config(run))
    disk(monkeypatch, 18.6e9)
    check_first_checkpoint(config(run))


def test_what_saves_nothing_has_saved_or_is_not_known_is_let_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk(monkeypatch, 1e9)
    for let_through in (
        config(tmp_path, save_freq=-1),
        config(tmp_path, model=None),
        config(tmp_path, model="someone/a-model"),
    ):
        check_first_checkpoint(let_through)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / TRACKER).write_text("10")
    check_first_checkpoint(config(tmp_path))
