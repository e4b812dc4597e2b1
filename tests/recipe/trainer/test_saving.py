"""What the trainer saves where a run ends before its last step; the rest runs end to end."""

import errno
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from prompt_aug.base.files import read_json
from recipe.errors import ExhaustedError, HungError, LostEngineError, RolloutError
from recipe.run import checkpoints
from recipe.run import folder as run_folder
from recipe.run.stop import Limit, StoppedError, Watchdog
from recipe.trainer.replay_buffer import BoundedReplayBuffer
from recipe.trainer.saving import SavingTrainer
from recipe.trainer.trainer import RecipeTrainer

TOTAL = 20


class Loader:
    """A data loader that has handed out `position` batches."""

    position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}


class Trainer(SavingTrainer):
    """verl's seams as notes of what was called, in order."""

    def __init__(self, run_dir: Path, step: int, deadline: float | None = None) -> None:
        # Not verl's __init__, which starts half a cluster.
        self.run_dir, self.saves = run_dir, run_dir / "checkpoints"
        self.saves.mkdir(exist_ok=True)
        self.global_steps, self.steps_per_epoch, self.total_training_steps = step, 4, TOTAL
        trainer = {"default_local_dir": str(self.saves), "resume_mode": "auto"}
        keep = {"keep_every": None, "keep_best": None}
        self.config = OmegaConf.create({"trainer": trainer, "recipe": keep})
        self.limit, self.line, self.keep_last = Limit(run_dir, deadline), {}, None
        self.watchdog = Watchdog(60)
        self.train_dataloader, self.fetched = Loader(), 0
        self.done: list[Any] = []
        note = self.done.append
        self.logger = type("Log", (), {"log": lambda _, data, step: note(f"log {step}")})()
        self.checkpoint_manager = type(
            "Manager", (), {"abort_replicas": lambda _, reject_request: note("abort")}
        )()

    def own_state(self) -> dict[str, Any]:
        return {"fetched": self.fetched}

    def load_own_state(self, state: dict[str, Any]) -> None:
        self.fetched = state["fetched"]

    def on_sample_end(self) -> None:
        self.done.append("engine sleeps")

    def _compute_metrics(self, batch: Any, metrics: dict, timing_raw: dict, **key: Any) -> None:
        assert "step" in timing_raw
        run_folder.append_metrics(self.run_dir, self.global_steps, metrics)
        self.done.append(f"line {key['global_steps']} of epoch {key['epoch']}")


@pytest.fixture(autouse=True)
def verl(monkeypatch: pytest.MonkeyPatch) -> None:
    """verl's own save: what its trainer would write."""

    def save(self: Any) -> None:
        folder = checkpoints.step_folder(self.saves, self.global_steps)
        torch.save(self.train_dataloader.state_dict(), folder / "data.pt")
        (self.saves / checkpoints.TRACKER).write_text(str(self.global_steps))
        self.done.append(f"save {self.global_steps}")

    def load(self: Any) -> None:
        self.global_steps = checkpoints.tracked_step(self.saves) or 0

    monkeypatch.setattr(PPOTrainerSync, "_save_checkpoint", save)
    monkeypatch.setattr(PPOTrainerSync, "_load_checkpoint", load)


def verl_step(monkeypatch: pytest.MonkeyPatch, raises: type[Exception] | None = None) -> None:
    """verl's own step: fetches a batch, then waits for its rollouts and trains."""

    def step(self: Any, metrics: dict, timing_raw: dict) -> str:
        self.train_dataloader.position += 1
        self.fetched += 1
        if raises:
            raise raises("why")
        self.check_stop()
        metrics["critic/score/mean"] = 0.5
        return "batch"

    monkeypatch.setattr(PPOTrainerSync, "step", step)


def saved(trainer: Trainer, step: int) -> tuple[int, int]:
    """(batches by the data loader, batches by our own state) in a checkpoint."""
    folder = checkpoints.step_folder(trainer.saves, step)
    state = read_json(folder / checkpoints.STATE)
    return torch.load(folder / "data.pt")["position"], state["fetched"]


@pytest.mark.parametrize(
    ("step", "tracked", "done"),
    [
        (10, 5, ["engine sleeps", "save 9"]),
        (10, 9, []),  # nothing is saved twice
        (1, None, []),  # nor before the first step
    ],
)
def test_exhausted_sampling_keeps_the_step_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: int, tracked: int | None, done: list
) -> None:
    verl_step(monkeypatch, ExhaustedError)
    trainer = Trainer(tmp_path, step)
    if tracked:
        (trainer.saves / checkpoints.TRACKER).write_text(str(tracked))
    (trainer.saves / "global_step_9").mkdir()  # a folder that the tracker does not name
    with pytest.raises(ExhaustedError, match="why"):
        trainer.step({}, {})
    assert trainer.done == done


def test_a_signal_while_rollouts_are_made_saves_the_step_before_with_its_questions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    verl_step(monkeypatch)
    trainer = Trainer(tmp_path, step=3)
    trainer.step({}, {})
    trainer.global_steps = 4
    monkeypatch.setattr(trainer.limit, "after_step", lambda: None)  # it comes during the step
    (run_folder.RunFolder(tmp_path).stop_request).write_text("")
    with pytest.raises(StoppedError, match="a signal"):
        trainer.step({}, {})
    assert trainer.done == ["abort", "engine sleeps", "save 3"]
    assert saved(trainer, 3) == (1, 1)  # the batch of step 4, fetched already, comes again
    assert trainer.train_dataloader.position == 2


@pytest.mark.parametrize(
    ("error", "done"),
    [
        (HungError, ["save 3"]),
        (LostEngineError, ["save 3"]),
        (RolloutError, ["engine sleeps", "save 3"]),  # an idle engine gives its memory back
    ],
)
def test_only_a_living_engine_is_asked_for_anything(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: type[Exception], done: list[str]
) -> None:
    verl_step(monkeypatch, error)
    trainer = Trainer(tmp_path, step=4)
    with pytest.raises(error):
        trainer.step({}, {})
    assert trainer.done == done and saved(trainer, 3) == (0, 0)


@pytest.mark.parametrize(
    ("error", "done"),
    [(LostEngineError, ["save 1"]), (RolloutError, ["engine sleeps", "save 1"]), (KeyError, [])],
)
def test_a_validation_that_fails_costs_no_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: type[Exception], done: list[str]
) -> None:
    def validate(self: Any) -> dict[str, float]:
        raise error("why")

    monkeypatch.setattr(PPOTrainerSync, "_validate", validate)
    verl_step(monkeypatch)
    trainer = Trainer(tmp_path, step=0)
    with pytest.raises(error):
        trainer._validate()  # before the first step: nothing to save
    assert trainer.done == []
    trainer.global_steps = 1
    trainer.step({}, {})
    with pytest.raises(error):
        trainer._validate()
    assert trainer.done == done
    if done:  # with its line, which verl writes after the validation
        assert saved(trainer, 1) == (1, 1)
        Trainer(tmp_path, step=0)._load_checkpoint()
        assert [m["step"] for m in run_folder.read_metrics(tmp_path)] == [1]


def test_a_signal_during_an_update_saves_this_step_and_its_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    verl_step(monkeypatch)
    trainer = Trainer(tmp_path, step=5)
    seen = iter([None, "the time is over"])
    monkeypatch.setattr(trainer.limit, "after_step", lambda: next(seen))
    with pytest.raises(StoppedError, match="the time is over"):
        trainer.step({}, {})
    assert trainer.done == ["save 5", "line 5 of epoch 1", "log 5"]
    assert saved(trainer, 5) == (1, 1)


def test_a_signal_during_a_validation_begins_no_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    verl_step(monkeypatch)
    trainer = Trainer(tmp_path, step=5)
    (run_folder.RunFolder(tmp_path).stop_request).write_text("")
    with pytest.raises(StoppedError):
        trainer.step({}, {})
    assert trainer.done == ["engine sleeps", "save 4"] and trainer.fetched == 0


def test_the_last_step_is_never_cut_short(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    verl_step(monkeypatch)
    trainer = Trainer(tmp_path, step=TOTAL)
    seen = iter([None, "the time is over"])
    monkeypatch.setattr(trainer.limit, "after_step", lambda: next(seen))
    assert trainer.step({}, {}) == "batch" and trainer.done == []


def test_a_line_that_a_kill_lost_after_its_checkpoint_comes_back_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    verl_step(monkeypatch)
    trainer = Trainer(tmp_path, step=2)
    run_folder.append_metrics(tmp_path, 1, {"critic/score/mean": 0.25})
    trainer.step({}, {})
    trainer._save_checkpoint()  # and a SIGKILL before verl gets to the metrics
    for _ in range(2):
        again = Trainer(tmp_path, step=0)
        again._load_checkpoint()
        assert (again.global_steps, again.fetched) == (2, 1)
        assert run_folder.read_metrics(tmp_path) == [
            {"step": 1, "critic/score/mean": 0.25},
            {"step": 2, "critic/score/mean": 0.5, "restored": True},
        ]


def test_lines_after_the_checkpoint_go_and_those_before_stay(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, step=2)
    trainer.line = {"step": 2, "a": 0.0}
    trainer._save_checkpoint()
    for step in (1, 2, 3):
        run_folder.append_metrics(tmp_path, step, {"a": float(step)})
    Trainer(tmp_path, step=0)._load_checkpoint()
    assert run_folder.read_metrics(tmp_path) == [{"step": 1, "a": 1.0}, {"step": 2, "a": 2.0}]


def test_checkpoints_go_after_the_tracker_names_the_next(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, step=0)
    trainer.keep_last, trainer.config.recipe.keep_best = 1, "val/t/accuracy"
    for step, score in ((1, 0.1), (2, 0.9), (3, 0.3), (4, 0.9)):
        run_folder.append_metrics(tmp_path, step, {"val/t/accuracy": score})
        trainer.global_steps = step
        trainer._save_checkpoint()
    assert checkpoints.saved_steps(trainer.saves) == [2, 4]


def test_nothing_is_deleted_where_no_validation_has_the_key_of_the_best(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else the best one would go in silence. Steps before the first validation are none."""
    trainer = Trainer(tmp_path, step=0)
    trainer.keep_last, trainer.config.recipe.keep_best = 1, "val/other/accuracy"
    for step, line in ((1, {}), (2, {}), (3, {"val/t/accuracy": 0.5}), (4, {}), (5, {})):
        trainer.global_steps = step
        trainer._save_checkpoint()
        run_folder.append_metrics(tmp_path, step, line)  # verl saves before it validates
    assert checkpoints.saved_steps(trainer.saves) == [3, 4, 5]
    assert capsys.readouterr().out.count("recipe.keep_best=val/other/accuracy: metrics.jsonl") == 1


def test_a_full_disk_is_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(tmp_path, step=1)
    trainer._save_checkpoint()
    monkeypatch.setattr(checkpoints, "missing_room", lambda folder: 1000)
    trainer.global_steps = 2
    with pytest.raises(OSError, match="1000 bytes too few") as caught:
        trainer._save_checkpoint()
    assert caught.value.errno == errno.ENOSPC
    assert checkpoints.saved_steps(trainer.saves) == [1]


def test_the_trainer_is_asked_at_every_look_for_rollouts_and_not_in_a_validation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[str] = []
    groups: list[tuple[str, int, int]] = []
    buffer: Any = object.__new__(BoundedReplayBuffer)
    buffer.on_look = groups.append
    buffer.finished_keys = {"train": {"a", "b"}, "val": {"a"}}
    buffer.failure_keys = {"train": {"c"}, "val": set()}
    buffer.on_poll = lambda: looks.append("look")
    parent = BoundedReplayBuffer.__mro__[1]
    monkeypatch.setattr(parent, "_wait_for_next_poll", lambda self, partition, last: last)
    assert buffer._wait_for_next_poll("train", 1.0) == 1.0
    buffer._wait_for_next_poll("val", 1.0)
    assert looks == ["look"]
    assert groups == [("train", 2, 1), ("val", 1, 0)]
    assert issubclass(RecipeTrainer, SavingTrainer)
