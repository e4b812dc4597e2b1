"""What the trainer saves if a run ends before its last step, and what it deletes and restores."""

import errno
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fake_trainer import FakeTrainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from prompt_aug.base.files import read_json
from recipe.errors import ExhaustedError, HungError, LostEngineError, RolloutError
from recipe.run import checkpoints, rollbacks
from recipe.run import folder as run_folder
from recipe.run.stop import StoppedError
from recipe.trainer.guard import CollapseError, RollbackError
from recipe.trainer.replay_buffer import BoundedReplayBuffer

TOTAL = 20


class Trainer(FakeTrainer):
    """Records the calls of verl's methods, in order."""

    def __init__(self, run_dir: Path, step: int = 0) -> None:
        super().__init__(run_dir, step, total=TOTAL)
        self.done: list[Any] = []
        record = self.done.append
        self.logger = SimpleNamespace(log=lambda data, step: record(f"log {step}"))
        self.checkpoint_manager = SimpleNamespace(
            abort_replicas=lambda reject_request: record("abort")
        )

    def on_sample_end(self) -> None:
        self.done.append("engine sleeps")

    def _compute_metrics(self, batch: Any, metrics: dict, timing_raw: dict, **key: Any) -> None:
        assert "step" in timing_raw
        run_folder.append_metrics(self.run_dir, self.global_steps, metrics)
        self.done.append(f"line {key['global_steps']} of epoch {key['epoch']}")


@pytest.fixture(autouse=True)
def verl(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that verl's trainer writes, and its step."""

    def save(self: Any) -> None:
        folder = checkpoints.step_folder(self.saves, self.global_steps)
        torch.save(self.train_dataloader.state_dict(), folder / "data.pt")
        (self.saves / checkpoints.TRACKER).write_text(str(self.global_steps))
        self.done.append(f"save {self.global_steps}")

    def load(self: Any) -> None:
        self.global_steps = checkpoints.tracked_step(self.saves) or 0

    monkeypatch.setattr(PPOTrainerSync, "_save_checkpoint", save)
    monkeypatch.setattr(PPOTrainerSync, "_load_checkpoint", load)
    verl_step(monkeypatch)


def verl_step(monkeypatch: pytest.MonkeyPatch, raises: type[Exception] | None = None) -> None:
    """verl's step: fetches a batch, waits for its rollouts, trains."""

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
    ("error", "step", "tracked", "done"),
    [
        (ExhaustedError, 10, 5, ["engine sleeps", "save 9"]),
        (ExhaustedError, 10, 9, []),  # already saved
        (ExhaustedError, 1, None, []),  # before the first step
        (HungError, 2, None, ["save 1"]),  # only an engine that responds is called
        (LostEngineError, 2, None, ["save 1"]),
        (RolloutError, 2, None, ["engine sleeps", "save 1"]),  # an idle one releases its memory
        (KeyError, 2, None, []),
    ],
)
def test_an_error_in_a_step_saves_the_step_before(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    error: type[Exception],
    step: int,
    tracked: int | None,
    done: list[str],
) -> None:
    verl_step(monkeypatch, error)
    trainer = Trainer(tmp_path, step)
    if tracked:
        (trainer.saves / checkpoints.TRACKER).write_text(str(tracked))
    (trainer.saves / "global_step_9").mkdir()  # a folder that the tracker does not name
    with pytest.raises(error, match="why"):
        trainer.step({}, {})
    assert trainer.done == done
    if done:
        fetched = 1 if error is ExhaustedError else 0
        assert saved(trainer, step - 1) == (fetched, fetched)


def test_a_signal_during_rollouts_saves_the_step_before_with_its_questions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trainer = Trainer(tmp_path, step=3)
    trainer.step({}, {})
    trainer.global_steps = 4
    monkeypatch.setattr(trainer.limit, "after_step", lambda: None)  # it comes during the step
    (run_folder.RunFolder(tmp_path).stop_request).write_text("")
    with pytest.raises(StoppedError, match="a signal"):
        trainer.step({}, {})
    assert trainer.done == ["abort", "engine sleeps", "save 3"]
    assert saved(trainer, 3) == (1, 1)  # the batch of step 4 is fetched again after a resume
    assert trainer.train_dataloader.position == 2


@pytest.mark.parametrize(
    ("error", "done"),
    [
        *((HungError, ["save 1"]), (LostEngineError, ["save 1"])),
        *((RolloutError, ["engine sleeps", "save 1"]), (KeyError, [])),
    ],
)
def test_an_error_in_a_validation_saves_the_step_before_it_with_its_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: type[Exception], done: list[str]
) -> None:
    def validate(self: Any) -> dict[str, float]:
        raise error("why")

    monkeypatch.setattr(PPOTrainerSync, "_validate", validate)
    trainer = Trainer(tmp_path, step=0)
    with pytest.raises(error):
        trainer._validate()  # before the first step there is nothing to save
    assert trainer.done == []
    trainer.global_steps = 1
    trainer.step({}, {})
    with pytest.raises(error):
        trainer._validate()
    assert trainer.done == done
    if done:
        assert saved(trainer, 1) == (1, 1)
        checkpoints.restore_line(tmp_path, trainer.saves)
        assert [m["step"] for m in run_folder.read_metrics(tmp_path)] == [1]


@pytest.mark.parametrize(
    ("step", "done"),
    [
        (5, ["save 5", "line 5 of epoch 1", "log 5"]),
        (TOTAL, []),  # the last step ends as usual
    ],
)
def test_a_signal_during_an_update_saves_this_step_and_its_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, step: int, done: list[str]
) -> None:
    trainer = Trainer(tmp_path, step)
    reasons = iter([None, "the time is over"])
    monkeypatch.setattr(trainer.limit, "after_step", lambda: next(reasons))
    if step == TOTAL:
        assert trainer.step({}, {}) == "batch"
    else:
        with pytest.raises(StoppedError, match="the time is over"):
            trainer.step({}, {})
        assert saved(trainer, step) == (1, 1)
    assert trainer.done == done


def verl_validate(monkeypatch: pytest.MonkeyPatch, run_dir: Path, signal: bool = False) -> None:
    """verl's validation: waits for rollouts; a signal may come meanwhile."""

    def validate(self: Any) -> dict[str, float]:
        if signal:
            run_folder.RunFolder(run_dir).stop_request.write_text("")
        self.check_stop()
        self.done.append("validation")
        return {"val/t/accuracy": 0.5}

    monkeypatch.setattr(PPOTrainerSync, "_validate", validate)
    monkeypatch.setattr(
        PPOTrainerSync, "on_step_end", lambda self: self.done.append("engine has weights")
    )


def test_a_signal_during_a_validation_saves_the_step_before_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    verl_validate(monkeypatch, tmp_path, signal=True)
    trainer = Trainer(tmp_path, step=3)
    trainer.step({}, {})
    with pytest.raises(StoppedError, match="the validation under way"):
        trainer._validate()
    assert trainer.done == ["abort", "engine sleeps", "save 3"]
    assert saved(trainer, 3) == (1, 1)
    checkpoints.restore_line(tmp_path, trainer.saves)
    assert [m["step"] for m in run_folder.read_metrics(tmp_path)] == [3]


@pytest.mark.parametrize(
    ("left", "validations", "done"),
    [
        (None, [], ["validation"]),
        (1000, [100.0], ["validation"]),
        (1000, [], ["engine sleeps", "save 3", "engine has weights", "validation"]),  # unknown
        (1000, [900.0], ["engine sleeps", "save 3"]),  # may take 1.2 times 900 s
    ],
)
def test_a_step_is_saved_before_a_validation_that_the_job_may_cut_off(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    left: int | None,
    validations: list[float],
    done: list[str],
) -> None:
    verl_validate(monkeypatch, tmp_path)
    trainer = Trainer(tmp_path, step=3)
    trainer.limit.deadline = left and trainer.limit.clock() + left
    trainer.limit.validations.extend(validations)
    trainer.step({}, {})
    if done[-1] == "validation":
        trainer._validate()
        assert len(trainer.limit.validations) == len(validations) + 1
    else:
        with pytest.raises(StoppedError, match="a validation with a checkpoint may take"):
            trainer._validate()
    assert trainer.done == done


def test_no_weights_are_sent_to_a_dead_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    verl_validate(monkeypatch, tmp_path)
    trainer = Trainer(tmp_path, step=3)
    trainer.on_step_end()
    trainer.check_progress(1)
    trainer.watchdog.overdue("engine 0")  # called by the watchdog's thread
    with pytest.raises(LostEngineError, match="engine 0 ended in the middle of a step"):
        trainer.check_progress(2)  # while it waits for rollouts
    with pytest.raises(LostEngineError, match="engine 0"):
        trainer.on_step_end()
    assert trainer.done == ["engine has weights", "save 3"]


def test_the_watchdog_starts_once_with_the_first_validation_or_step(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("on_train_begin", "on_validate_begin"):
        monkeypatch.setattr(PPOTrainerSync, name, lambda self: None)
    for first in ("on_train_begin", "on_validate_begin"):
        trainer, started = Trainer(tmp_path), list[Path]()
        trainer.watchdog.guard = lambda run, gone, started=started: started.append(run)
        for hook in (first, "on_train_begin", "on_validate_begin"):
            trainer.watchdog.since = 0.0
            getattr(trainer, hook)()
            assert trainer.watchdog.since > 0
        while not started:
            time.sleep(0.01)
        assert started == [tmp_path]


def test_a_signal_during_a_validation_begins_no_step(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, step=5)
    (run_folder.RunFolder(tmp_path).stop_request).write_text("")
    with pytest.raises(StoppedError):
        trainer.step({}, {})
    assert trainer.done == ["engine sleeps", "save 4"] and trainer.fetched == 0


def test_a_line_lost_to_a_kill_after_its_checkpoint_is_restored_once(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, step=2)
    run_folder.append_metrics(tmp_path, 1, {"critic/score/mean": 0.25})
    trainer.step({}, {})
    trainer._save_checkpoint()  # a SIGKILL before verl writes the metrics
    for told in (1, 0):
        assert len(checkpoints.restore_line(tmp_path, trainer.saves)) == told
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


@pytest.mark.parametrize(
    ("key", "lines", "kept"),
    [
        ("val/t/accuracy", [{"val/t/accuracy": x} for x in (0.1, 0.9, 0.3, 0.9)], [2, 4]),
        # Until the first validation only the last checkpoint is kept. The validation lacks the
        # key: nothing is deleted from then on, or the best checkpoint would be lost.
        ("val/other/accuracy", [{}, {}, {"val/t/accuracy": 0.5}, {}, {}], [3, 4, 5]),
    ],
)
def test_the_best_and_the_last_checkpoint_are_kept(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    key: str,
    lines: list[dict[str, float]],
    kept: list[int],
) -> None:
    trainer = Trainer(tmp_path, step=0)
    trainer.keep_last, trainer.config.recipe.keep_best = 1, key
    for step, line in enumerate(lines, start=1):
        trainer.global_steps = step
        if len(lines) == 4:  # validated before the save
            run_folder.append_metrics(tmp_path, step, line)
        trainer._save_checkpoint()
        if len(lines) == 5:
            run_folder.append_metrics(tmp_path, step, line)
    assert checkpoints.saved_steps(trainer.saves) == kept
    assert capsys.readouterr().out.count(f"recipe.keep_best={key}") == (len(lines) == 5)


@pytest.mark.parametrize(
    ("action", "tracked", "ends", "done", "after"),
    [
        ("off", None, None, [], None),
        ("warn", None, None, [], None),
        ("save", 1, None, ["engine sleeps", "save 3", "engine has weights"], None),
        ("save", 3, None, [], None),  # saved already, and the engine has its weights
        ("stop", 1, CollapseError, ["engine sleeps", "save 3"], None),
        ("rollback", 1, RollbackError, [], (3, 1)),
        ("rollback", 3, RollbackError, [], (3, 1)),  # the best saved step before the alarm
        ("rollback", None, CollapseError, ["engine sleeps", "save 3"], None),  # nothing is saved
        ("rollback, used up", 1, CollapseError, ["engine sleeps", "save 3"], None),
    ],
)
def test_at_an_alarm(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    action: str,
    tracked: int | None,
    ends: type[Exception] | None,
    done: list[str],
    after: tuple[int, int] | None,
) -> None:
    """At step 3; the fourth step is asked for."""
    monkeypatch.setattr(Trainer, "on_step_end", lambda self: self.done.append("engine has weights"))
    monkeypatch.setattr(checkpoints, "damage", lambda folder: None)
    trainer = Trainer(tmp_path, step=3)
    rollback = {"lr_factor": 0.5, "kl_loss_coef": None, "times": 0 if "used" in action else 1}
    settings = {"window": 1, "factor": 2.0, "accuracy_drop": 0.1, "rollback": rollback}
    trainer.config.recipe.run_dir = str(tmp_path)
    trainer.config.recipe.guard = {**settings, "action": action.partition(",")[0]}
    trainer.config.actor_rollout_ref = {"actor": {"optim": {"lr": 1e-4}}}
    for step in range(1, tracked + 1) if tracked else []:
        checkpoints.step_folder(trainer.saves, step).mkdir()
        (trainer.saves / checkpoints.TRACKER).write_text(str(step))
    for step, accuracy in ((1, 0.6), (2, 0.5)):
        line = {"val/t/accuracy": accuracy, "actor/grad_norm": 1.0}
        run_folder.append_metrics(tmp_path, step, line)
    metrics = {"actor/grad_norm": 3.0, "val/t/accuracy": 0.7}
    trainer.guard(metrics)
    assert metrics.get("guard/breach") == (None if action == "off" else 1)
    trainer.global_steps = 4
    if ends is None:
        assert trainer.step({}, {}) == "batch" and trainer.global_steps == 4
    else:
        with pytest.raises(ends, match=r"actor/grad_norm=3 .*from 1 before"):
            trainer.step({}, {})
    assert trainer.done == done
    found = [(record["step"], record["to"]) for record in rollbacks.records(tmp_path)]
    assert found == ([] if after is None else [after])


def test_a_series_of_alarms_saves_once(tmp_path: Path) -> None:
    trainer = Trainer(tmp_path, step=0)
    settings = {"action": "save", "window": 1, "factor": 2.0, "accuracy_drop": 0.1}
    trainer.config.recipe.guard = settings
    trainer.config.actor_rollout_ref = {"actor": {"optim": {"lr": 1e-4}}}
    alarms = []
    for step, norm in enumerate([1, 3, 9, 1, 30], start=1):
        trainer.global_steps, trainer.save_alarm = step, False
        metrics = {"actor/grad_norm": float(norm)}
        trainer.guard(metrics)
        run_folder.append_metrics(tmp_path, step, metrics)
        alarms.append((metrics["guard/breach"], trainer.save_alarm))
    assert alarms == [(0, False), (1, True), (1, False), (0, False), (1, True)]


def test_a_full_disk_is_reported_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(tmp_path, step=1)
    trainer._save_checkpoint()
    monkeypatch.setattr(checkpoints, "missing_room", lambda folder: 1000)
    trainer.global_steps = 2
    with pytest.raises(OSError, match="1000 bytes") as caught:
        trainer._save_checkpoint()
    assert caught.value.errno == errno.ENOSPC
    assert checkpoints.saved_steps(trainer.saves) == [1]


def test_every_poll_reports_progress_and_may_end_the_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    polls: list[str] = []
    progress: list[tuple[str, int, int]] = []
    buffer: Any = object.__new__(BoundedReplayBuffer)
    buffer.on_progress, buffer.on_poll = progress.append, lambda: polls.append("poll")
    buffer.finished_keys = {"train": {"a", "b"}, "val": {"a"}}
    buffer.failure_keys = {"train": {"c"}, "val": set()}
    parent = BoundedReplayBuffer.__mro__[1]
    monkeypatch.setattr(parent, "_wait_for_next_poll", lambda self, partition, last: last)
    assert buffer._wait_for_next_poll("train", 1.0) == 1.0
    buffer._wait_for_next_poll("val", 1.0)
    assert (polls, progress) == (["poll"] * 2, [("train", 2, 1), ("val", 1, 0)])
