"""What the trainer saves if a run ends before its last step, and what it deletes and restores.

verl's steps and files are fakes; saving, retention, metrics, the choice of a checkpoint and its
loading are real.
"""

import json
import os
import random
import signal
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from ray.exceptions import RayError
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.utils.tracking import Tracking

from prompt_aug.base.files import read_json
from recipe.errors import DivergedError
from recipe.run import checkpoints
from recipe.run import folder as run_folder
from recipe.run.stop import Limit, StoppedError, StopRequest, Watchdog
from recipe.trainer.liveness import Liveness
from recipe.trainer.replay_buffer import BoundedReplayBuffer
from recipe.trainer.saving import SavingTrainer

TOTAL = 20
SLEEPS = "engine sleeps"


class Loader:
    """A data loader that has returned `position` batches."""

    position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}


class Trainer(SavingTrainer, PPOTrainerSync):
    """A run in `run_dir` after `step` steps, without verl's __init__, which would start a cluster.

    Its own state is the number of fetched batches; it trains a weight that is the number of its
    steps, and records the calls of verl's methods in order.
    """

    keep_last: int | None = None
    weight = 0

    def __init__(self, run_dir: Path, step: int = 0, *, total: int = TOTAL) -> None:
        self.run_dir, self.saves = run_dir, run_dir / "checkpoints"
        self.saves.mkdir(exist_ok=True)
        self.global_steps, self.steps_per_epoch, self.total_training_steps = step, 4, total
        trainer = {"default_local_dir": str(self.saves), "resume_mode": "auto", "logger": []}
        keep = {"keep_every": None, "keep_best": None}
        self.config = OmegaConf.create({"trainer": trainer, "recipe": keep})
        self.limit, self.line, self.watchdog = Limit(run_dir, None), {}, Watchdog(60)
        self.train_dataloader, self.fetched = Loader(), 0
        self.done: list[Any] = []
        self.checkpoint_manager = SimpleNamespace(
            abort_replicas=lambda reject_request: self.done.append("abort")
        )

    def own_state(self) -> dict[str, Any]:
        return {"fetched": self.fetched, "batches_fetched": self.fetched}

    def load_own_state(self, state: dict[str, Any]) -> None:
        self.fetched = state["fetched"]

    def finish(self) -> None:
        """Step and validation, as verl's fit does."""
        metrics: dict[str, Any] = {}
        self.step(metrics, {})
        metrics |= self._validate()
        self.end_step(metrics)
        self.global_steps += 1


@pytest.fixture(autouse=True)
def verl(monkeypatch: pytest.MonkeyPatch) -> None:
    """verl's step and hooks, and the files of its trainer and of its FSDP engine of two ranks."""

    def step(self: Any, metrics: dict, timing_raw: dict) -> str:
        self.train_dataloader.position += 1
        self.fetched += 1
        self.weight += 1
        self.while_waiting("train", 0, 0)
        metrics["weight"] = self.weight
        return "batch"

    def validate(self: Any) -> dict[str, float]:
        self.while_waiting("val", 0, 0)
        self.done.append("validation")
        return {"val/t/accuracy": 0.5}

    def save(self: Any) -> None:
        folder = checkpoints.step_folder(self.saves, self.global_steps)
        (folder / "actor").mkdir(parents=True, exist_ok=True)
        for rank in (0, 1):
            for kind in ("model", "optim", "extra_state"):
                state = {"w": torch.full((30_000,), float(self.weight))}
                torch.save(state, folder / "actor" / f"{kind}_world_size_2_rank_{rank}.pt")
        (folder / "actor" / "fsdp_config.json").write_text(json.dumps({"world_size": 2}))
        torch.save(self.train_dataloader.state_dict(), folder / "data.pt")
        with (self.saves / checkpoints.TRACKER).open("w") as file:
            time.sleep(0.003)  # empty for a while, as on a network file system
            file.write(str(self.global_steps))
        self.done.append(f"save {self.global_steps}")

    def load(self: Any) -> None:
        self.global_steps = checkpoints.tracked_step(self.saves) or 0
        if not self.global_steps:
            return
        folder = checkpoints.step_folder(self.saves, self.global_steps)
        shards = [torch.load(p)["w"] for p in sorted((folder / "actor").glob("*.pt"))]
        assert len({float(w.max()) for w in shards} | {float(w.min()) for w in shards}) == 1
        self.weight = int(shards[0][0])
        self.train_dataloader.position = torch.load(folder / "data.pt")["position"]

    monkeypatch.setattr(PPOTrainerSync, "on_sample_end", lambda self: self.done.append(SLEEPS))
    own = {"step": step, "_validate": validate, "_save_checkpoint": save, "_load_checkpoint": load}
    for name, made in own.items():
        monkeypatch.setattr(PPOTrainerSync, name, made)


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


def test_ten_steps_in_a_row_without_an_update_end_the_run(tmp_path: Path) -> None:
    trainer, bad = Trainer(tmp_path, step=3), {"actor/grad_norm": float("nan")}
    for metrics in [bad] * 9 + [{"actor/grad_norm": 0.0}, {}] + [bad] * 9:
        trainer.end_step(metrics)
    with pytest.raises(DivergedError, match="10 steps"):
        trainer.end_step(bad)


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


def test_a_job_killed_in_its_first_save_leaves_more_time_to_the_next(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trainer = Trainer(tmp_path, step=3)
    trainer.limit.expect(30)
    with monkeypatch.context() as patch:
        patch.setattr(PPOTrainerSync, "_save_checkpoint", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            trainer._save_checkpoint()
    assert Limit.of(tmp_path).save == 60
    Trainer(tmp_path, step=3)._save_checkpoint()
    assert 0 < Limit.of(tmp_path).save < 30


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
    run_folder.append_metrics(tmp_path, 1, {"weight": 0.25})
    trainer.step({}, {})
    trainer._save_checkpoint()  # a SIGKILL before verl writes the metrics
    for count in (1, 0):
        assert len(checkpoints.restore_line(tmp_path, trainer.saves)) == count
        again = Trainer(tmp_path, step=0)
        again._load_checkpoint()
        assert (again.global_steps, again.fetched) == (2, 1)
        assert run_folder.read_metrics(tmp_path) == [
            {"step": 1, "weight": 0.25},
            {"step": 2, "weight": 1, "restored": True},
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


def test_a_step_that_is_trained_again_is_once_in_tensorboard(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TENSORBOARD_DIR", str(tmp_path / "tensorboard"))
    Trainer(tmp_path, step=2)._save_checkpoint()
    for steps in ((1, 2, 3, 4), (3, 4, 5)):
        trainer = Trainer(tmp_path)
        trainer.config.trainer.logger = ["tensorboard"]
        trainer._load_checkpoint()
        logger = Tracking("project", "run", ["tensorboard"])
        for step in steps:
            logger.log({"a": float(len(steps))}, step)
        logger.finish()
    read = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    values = [(event.step, event.value) for event in read.Scalars("a")]
    assert values == [(1, 4), (2, 4), (3, 3), (4, 3), (5, 3)]


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


# ------------------------------------------------------------------------- kills
# SIGKILL at random moments of a training that saves: the short form of tests/drills/kills.py.

KILLS, SAVE_FREQ, KEPT = 40, 2, 2


def fit(trainer: Trainer) -> None:
    """The order of verl's fit: step, checkpoint, metrics."""
    while True:
        trainer.global_steps += 1
        metrics: dict[str, Any] = {}
        trainer.step(metrics, {})
        if trainer.global_steps % SAVE_FREQ == 0:
            trainer._save_checkpoint()
        run_folder.append_metrics(trainer.run_dir, trainer.global_steps, metrics)


def started(run: Path) -> Trainer:
    """The start of a run, before the first step."""
    checkpoints.repair(run / "checkpoints")
    checkpoints.restore_line(run, run / "checkpoints")
    trainer = Trainer(run, total=100_000)
    trainer.keep_last = KEPT
    trainer._load_checkpoint()
    return trainer


def train_and_die(run: Path, seconds: float) -> None:
    """A start in a fork, where a kill takes milliseconds, killed `seconds` after its first step."""
    ready, sender = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            trainer = started(run)
            os.write(sender, b"x")
            fit(trainer)
        finally:
            os._exit(1)
    os.close(sender)
    os.read(ready, 1)
    os.close(ready)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, "the process ended by itself"


@pytest.mark.config
def test_no_kill_loses_more_than_save_freq_steps_or_a_line(tmp_path: Path) -> None:
    chance, pace = random.Random(0), 1.0
    for number in range(KILLS):
        train_and_die(tmp_path, pace * chance.uniform(0, 0.06))
        done = max((m["step"] for m in run_folder.read_metrics(tmp_path)), default=0)
        trainer = started(tmp_path)
        step = trainer.global_steps
        pace *= 1 if step else 1.5  # until something is saved: a busy machine takes longer
        assert done - step < SAVE_FREQ, number
        assert (trainer.weight, trainer.fetched, trainer.train_dataloader.position) == (step,) * 3
        lines = run_folder.read_metrics(tmp_path)
        assert [m["step"] for m in lines] == list(range(1, step + 1)), number
        assert [m["weight"] for m in lines] == list(range(1, step + 1)), number
        assert len(checkpoints.saved_steps(tmp_path / "checkpoints")) <= KEPT + 1
    assert step > 2 * SAVE_FREQ, "the kills came before anything was saved"
