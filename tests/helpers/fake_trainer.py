"""The saving trainer without verl's __init__, which would start a cluster."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from recipe.run.stop import Limit, Watchdog
from recipe.trainer.saving import SavingTrainer


class Loader:
    """A data loader that has returned `position` batches."""

    position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}


class FakeTrainer(SavingTrainer, PPOTrainerSync):
    """A run in `run_dir` after `step` steps; its own state is the number of fetched batches."""

    keep_last: int | None = None

    def __init__(
        self, run_dir: Path, step: int = 0, *, total: int = 20, deadline: float | None = None
    ) -> None:
        self.run_dir, self.saves = run_dir, run_dir / "checkpoints"
        self.saves.mkdir(exist_ok=True)
        self.global_steps, self.steps_per_epoch, self.total_training_steps = step, 4, total
        trainer = {"default_local_dir": str(self.saves), "resume_mode": "auto"}
        keep = {"keep_every": None, "keep_best": None}
        self.config = OmegaConf.create({"trainer": trainer, "recipe": keep})
        self.limit, self.line, self.watchdog = Limit(run_dir, deadline), {}, Watchdog(60)
        self.train_dataloader, self.fetched = Loader(), 0

    def own_state(self) -> dict[str, Any]:
        return {"fetched": self.fetched, "batches_fetched": self.fetched}

    def load_own_state(self, state: dict[str, Any]) -> None:
        self.fetched = state["fetched"]
