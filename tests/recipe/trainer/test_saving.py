"""What the trainer saves if a run ends before its last step, and what it deletes and restores."""

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_trainer import FakeTrainer
from ray.exceptions import RayError
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from prompt_aug.base.files import read_json
from recipe.run import checkpoints
from recipe.run import folder as run_folder
from recipe.run.stop import StoppedError, StopRequest
from recipe.trainer.liveness import Liveness
from recipe.trainer.replay_buffer import BoundedReplayBuffer

TOTAL = 20
SLEEPS = "engine sleeps"


class Trainer(FakeTrainer):
    """Records the calls of verl's methods, in order."""

    def __init__(self, run_dir: Path, step: int = 0) -> None:
        super().__init__(run_dir, step, total=TOTAL)
        self.done: list[Any] = []
        self.checkpoint_manager = SimpleNamespace(
            abort_replicas=lambda reject_request: self.done.append("abort")
        )

    def finish(self) -> None:
        """Step and validation, as verl's fit does."""
        metrics: dict[str, Any] = {}
        self.step(metrics, {})
        metrics |= self._validate()
        self.end_step(metrics)
        self.global_steps += 1


@pytest.fixture(autouse=True)
def verl(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that verl's trainer writes, its step, and its hooks."""

    def step(self: Any, metrics: dict, timing_raw: dict) -> str:
        self.train_dataloader.position += 1
        self.fetched += 1
        self.while_waiting("train", 0, 0)
        metrics["critic/score/mean"] = 0.5
        return "batch"

    def validate(self: Any) -> dict[str, float]:
        self.while_waiting("val", 0, 0)
        self.done.append("validation")
        return {"val/t/accuracy": 0.5}

    def save(self: Any) -> None:
        folder = checkpoints.step_folder(self.saves, self.global_steps)
        torch.save(self.train_dataloader.state_dict(), folder / "data.pt")
        (self.saves / checkpoints.TRACKER).write_text(str(self.global_steps))
        self.done.append(f"save {self.global_steps}")

    def load(self: Any) -> None:
        self.global_steps = checkpoints.tracked_step(self.saves) or 0

    monkeypatch.setattr(PPOTrainerSync, "on_sample_end", lambda self: self.done.append(SLEEPS))
    for name, made in (("step", step), ("_validate", validate)):
        monkeypatch.setattr(PPOTrainerSync, name, made)
    monkeypatch.setattr(PPOTrainerSync, "_save_checkpoint", save)
    monkeypatch.setattr(PPOTrainerSync, "_load_checkpoint", load)


def saved(trainer: Trainer, step: int) -> tuple[int, int]:
    """(batches by the data loader, batches by our own state) in a checkpoint."""
    folder = checkpoints.step_folder(trainer.saves, step)
    state = read_json(folder / checkpoints.STATE)
    return torch.load(folder / "data.pt")["position"], state["fetched"]


def steps(trainer: Trainer) -> list[int]:
    return [line["step"] for line in run_folder.read_metrics(trainer.run_dir)]


@pytest.mark.parametrize(
    ("moment", "done"),
    [
        ("step", [SLEEPS, "save 3"]),  # the validation is skipped
        ("validation", ["abort", SLEEPS, "save 3"]),  # and cut short
        ("end", ["validation", SLEEPS, "save 3"]),
        ("saved", ["validation"]),  # verl has saved this step
        ("last step", []),  # which ends as usual
    ],
)
def test_a_signal_saves_the_step_under_way_and_ends_before_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, moment: str, done: list[str]
) -> None:
    trainer = Trainer(tmp_path, step=TOTAL if moment == "last step" else 3)
    at_end = moment in ("end", "saved")
    hooked = "end_step" if at_end else "_validate" if moment == "validation" else "step"
    owner = Trainer if at_end else PPOTrainerSync
    original = getattr(owner, hooked)

    def signaled(self: Any, *arguments: Any) -> Any:
        StopRequest.create(tmp_path)
        if moment == "saved":
            (self.saves / checkpoints.TRACKER).write_text("3")
        return original(self, *arguments)

    monkeypatch.setattr(owner, hooked, signaled)
    trainer.finish()
    assert trainer.done == done and steps(trainer) == [trainer.global_steps - 1]
    if "save 3" in done:
        assert saved(trainer, 3) == (1, 1)
    if moment != "last step":
        with pytest.raises(StoppedError, match="a signal"):
            trainer.finish()
        assert trainer.fetched == 1


def test_a_step_that_would_end_too_late_is_not_saved(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, step=3)
    trainer.finish()
    run_folder.RunFolder(tmp_path).stop_request.write_text(str(time.time() - 1))  # the deadline
    with pytest.raises(StoppedError, match="the step under way would end too late"):
        trainer.finish()
    assert trainer.done == ["validation"] and steps(trainer) == [3]


def test_before_the_deadline_the_last_step_that_fits_is_saved(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, step=3)
    trainer.limit.deadline = trainer.limit.clock() + 100
    trainer.finish()
    trainer.limit.steps.append(90)  # the next may take 1.2 times 90 s
    trainer.finish()
    assert trainer.done == ["validation", "validation", SLEEPS, "save 4"]
    with pytest.raises(StoppedError, match="s are left of the job's time"):
        trainer.finish()
    assert saved(trainer, 4) == (2, 2)


def test_a_signal_in_the_validation_before_the_first_step_ends_the_run(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path)
    StopRequest.create(tmp_path)
    with pytest.raises(StoppedError):
        trainer._validate()


def test_the_watchdog_starts_when_the_engine_has_its_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The limit for a step does not apply to the start of the engines."""
    monkeypatch.setattr(PPOTrainerSync, "on_init_end", lambda self: None)
    trainer, started = Trainer(tmp_path), threading.Event()
    trainer.watchdog.guard = lambda *_: started.set()
    trainer.watchdog.since = 0.0
    trainer.on_init_end()
    assert trainer.watchdog.since > 0 and started.wait(20)


def test_a_line_lost_to_a_kill_after_its_checkpoint_is_restored_once(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, step=2)
    run_folder.append_metrics(tmp_path, 1, {"critic/score/mean": 0.25})
    trainer.step({}, {})
    trainer._save_checkpoint()  # a SIGKILL before verl writes the metrics
    for count in (1, 0):
        assert len(checkpoints.restore_line(tmp_path, trainer.saves)) == count
        again = Trainer(tmp_path, step=0)
        again._load_checkpoint()
        assert (again.global_steps, again.fetched) == (2, 1)
        assert run_folder.read_metrics(tmp_path) == [
            {"step": 1, "critic/score/mean": 0.25},
            {"step": 2, "critic/score/mean": 0.5, "restored": True},
        ]


def test_lines_after_the_checkpoint_and_surplus_checkpoints_are_removed(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, step=2)
    trainer.line = {"step": 2, "a": 0.0}
    checkpoints.step_folder(trainer.saves, 1).mkdir()
    trainer._save_checkpoint()  # a kill before it deletes the first
    for step in (1, 2, 3):
        run_folder.append_metrics(tmp_path, step, {"a": float(step)})
    again = Trainer(tmp_path, step=0)
    again.keep_last = 1
    again._load_checkpoint()
    assert run_folder.read_metrics(tmp_path) == [{"step": 1, "a": 1.0}, {"step": 2, "a": 2.0}]
    assert checkpoints.saved_steps(trainer.saves) == [2]


def test_the_best_and_the_last_checkpoint_are_kept(tmp_path: Path) -> None:
    trainer, key = Trainer(tmp_path, step=0), "val/t/accuracy"
    trainer.keep_last, trainer.config.recipe.keep_best = 1, key
    for step, accuracy in enumerate((0.1, 0.9, 0.3, 0.9), start=1):
        trainer.global_steps = step
        run_folder.append_metrics(tmp_path, step, {key: accuracy})
        trainer._save_checkpoint()
    assert checkpoints.saved_steps(trainer.saves) == [2, 4]


def test_every_poll_reports_the_partition_and_its_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    polls: list[tuple[str, int, int]] = []
    buffer: Any = object.__new__(BoundedReplayBuffer)
    buffer.on_poll = lambda *work: polls.append(work)
    buffer.finished_keys = {"train": {"a", "b"}, "val": {"a"}}
    buffer.failure_keys = {"train": {"c"}, "val": set()}
    parent = BoundedReplayBuffer.__mro__[1]
    monkeypatch.setattr(parent, "_wait_for_next_poll", lambda self, partition, last: last)
    assert buffer._wait_for_next_poll("train", 1.0) == 1.0
    buffer._wait_for_next_poll("val", 1.0)
    assert polls == [("train", 2, 1), ("val", 1, 0)]


def test_a_dead_actor_is_named_and_a_new_one_is_accepted() -> None:
    answers = [{"queue", "worker_0"}, {"queue", "worker_0", "worker_1"}, None, {"queue"}]

    def named() -> set[str]:
        if (answer := answers.pop(0)) is None:
            raise RayError("the head has died")
        return answer

    alive = Liveness(named)
    assert [alive.gone() for _ in range(4)] == [[], [], [], ["worker_0", "worker_1"]]
