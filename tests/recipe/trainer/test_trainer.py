"""What the trainer does where dynamic sampling ends a run; everything else runs end to end."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from recipe.errors import ExhaustedError
from recipe.trainer.trainer import RecipeTrainer


def stopped(
    monkeypatch: pytest.MonkeyPatch, folder: Path, step: int, saved: int | None
) -> list[str]:
    """What a trainer does, in order, when `step` cannot fill its batch and `saved` is on disk."""
    done: list[str] = []

    def exhausted(*_: Any) -> None:
        raise ExhaustedError("spent")

    monkeypatch.setattr(PPOTrainerSync, "step", exhausted)
    trainer: Any = object.__new__(RecipeTrainer)  # verl's __init__ starts half a cluster
    trainer.global_steps = step
    trainer.config = OmegaConf.create({"trainer": {"default_local_dir": str(folder)}})
    trainer.on_sample_end = lambda: done.append("engine gives its memory back")
    trainer._save_checkpoint = lambda: done.append(f"save {trainer.global_steps}")
    if saved is not None:
        (folder / "latest_checkpointed_iteration.txt").write_text(str(saved))
        # A folder without the tracker's word is one that a kill has cut.
        (folder / "global_step_9").mkdir()
    with pytest.raises(ExhaustedError, match="spent"):
        trainer.step({}, {})
    return done


def test_the_last_finished_step_is_saved_before_the_run_ends(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wanted = ["engine gives its memory back", "save 9"]
    assert stopped(monkeypatch, tmp_path, step=10, saved=5) == wanted


@pytest.mark.parametrize(("step", "saved"), [(10, 9), (1, None)])
def test_nothing_is_saved_twice_nor_before_the_first_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: int, saved: int | None
) -> None:
    assert stopped(monkeypatch, tmp_path, step=step, saved=saved) == []
