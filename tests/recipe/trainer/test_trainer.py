"""What the trainer does where dynamic sampling ends a run; everything else runs end to end."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from recipe.errors import ExhaustedError
from recipe.trainer.question_stats import QuestionStats
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


def fetched(batches: int, start: int = 0) -> list[list[str]]:
    """The ids of the groups of each batch, by a trainer that has fetched `start` batches before."""
    questions = [["a", "b"], ["c", "a"]]
    rows = [{"raw_prompt": q, "extra_info": [{"uid": uid} for uid in q]} for q in questions]
    trainer: Any = object.__new__(RecipeTrainer)
    trainer.train_dataloader, trainer.train_dataloader_it = rows, None
    trainer.batches_fetched = start
    off = {"enable": False, "candidates": 1, "target": 0.5, "decay": 0.5}
    trainer.memory = QuestionStats(OmegaConf.create({"history": off, "curriculum": off}))
    if start:
        trainer.train_dataloader_it = iter(rows[start % 2 :])
    return [list(trainer._fetch_one_gen_batch()["uid"]) for _ in range(batches)]


def test_a_group_is_named_after_its_place_in_the_data_order() -> None:
    """Also after a resume; verl's own ids are random, and so would be what depends on them."""
    names = fetched(3)
    assert names[0] == ["000000000-a", "000000001-b"]
    assert names[1] == ["000000002-c", "000000003-a"]
    assert names[2] == ["000000004-a", "000000005-b"]
    assert fetched(2, start=1) == names[1:]
