"""The room for a first checkpoint."""

from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf
from recipe.checks import machine
from recipe.preflight.dry_run import checkpoints
from recipe.checks.machine import check_first_checkpoint, check_machine

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


def test_a_plan_says_when_all_checkpoints_would_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three checkpoints of 18.5 GB."""
    planned = config(tmp_path)
    keep = {"max_actor_ckpt_to_keep": None}
    kept = {"keep_every": None, "keep_best": None}
    model = {"model": {"path": MODEL}}
    more = {"trainer": keep, "recipe": kept, "actor_rollout_ref": model}
    planned = OmegaConf.merge(planned, more)
    disk(monkeypatch, 55e9)
    assert checkpoints(planned, 30).endswith(
        "at most 55.6 GB in all: MORE THAN THE 55 GB FREE THERE"
    )
    disk(monkeypatch, 56e9)
    assert checkpoints(planned, 30).endswith("at most 55.6 GB in all")


def test_a_run_for_gpus_is_planned_where_there_are_none_and_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(machine, "gpu_count", lambda: 0)
    disk(monkeypatch, 1e12)
    gpus = {"device": "cuda", "n_gpus_per_node": 8, "logger": ["console"]}
    run = OmegaConf.merge(config(tmp_path), {"trainer": gpus, "recipe": {"min_free_gib": 1}})
    with pytest.raises(ConfigError, match="no GPU that CUDA can use"):
        check_machine(run)
    check_machine(run, here=False)
    assert "not on this machine: trainer.device=cuda" in capsys.readouterr().err
    disk(monkeypatch, 1e9)
    with pytest.raises(ConfigError, match="GiB free for the run folder"):
        check_machine(run, here=False)


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
