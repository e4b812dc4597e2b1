"""SIGKILL at random moments of a training that saves: the short form of tests/drills/kills.py.

verl's steps and files are fakes; saving, retention, metrics, the choice of a checkpoint and its
loading are real. The killed process is a fork, so that a kill takes milliseconds.
"""

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from fake_trainer import FakeTrainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from recipe.run import checkpoints
from recipe.run import folder as run_folder

pytestmark = pytest.mark.config
KILLS, SAVE_FREQ, KEPT, LAST = 40, 2, 2, 100_000


class Trainer(FakeTrainer):
    """Trains a weight that is the number of its steps."""

    keep_last = KEPT
    weight = 0

    def fit(self) -> None:
        """The order of verl's fit: step, checkpoint, metrics."""
        while True:
            self.global_steps += 1
            metrics: dict[str, Any] = {}
            self.step(metrics, {})
            if self.global_steps % SAVE_FREQ == 0:
                self._save_checkpoint()
            run_folder.append_metrics(self.run_dir, self.global_steps, metrics)


@pytest.fixture(autouse=True)
def verl(monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of verl's FSDP engine of two ranks and of its trainer, in their order."""

    def step(self: Any, metrics: dict, timing_raw: dict) -> str:
        self.train_dataloader.position += 1
        self.fetched += 1
        self.weight += 1
        metrics["weight"] = self.weight
        return "batch"

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

    def load(self: Any) -> None:
        self.global_steps = checkpoints.tracked_step(self.saves) or 0
        if not self.global_steps:
            return
        folder = checkpoints.step_folder(self.saves, self.global_steps)
        shards = [torch.load(p)["w"] for p in sorted((folder / "actor").glob("*.pt"))]
        assert len({float(w.max()) for w in shards} | {float(w.min()) for w in shards}) == 1
        self.weight = int(shards[0][0])
        self.train_dataloader.position = torch.load(folder / "data.pt")["position"]

    monkeypatch.setattr(PPOTrainerSync, "step", step)
    monkeypatch.setattr(PPOTrainerSync, "_save_checkpoint", save)
    monkeypatch.setattr(PPOTrainerSync, "_load_checkpoint", load)


def started(run: Path) -> Trainer:
    """The start of a run, before the first step."""
    checkpoints.repair(run / "checkpoints")
    checkpoints.restore_line(run, run / "checkpoints")
    trainer = Trainer(run, total=LAST)
    trainer._load_checkpoint()
    return trainer


def train_and_die(run: Path, seconds: float) -> None:
    """A start in a process of its own, killed `seconds` after its first step has begun."""
    ready, sender = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            trainer = started(run)
            os.write(sender, b"x")
            trainer.fit()
        finally:
            os._exit(1)
    os.close(sender)
    os.read(ready, 1)
    os.close(ready)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL, "the process ended by itself"


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
