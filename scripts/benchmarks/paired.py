"""Trainer "paired" of the benchmark `trainer`; verl imports it (VERL_USE_EXTERNAL_MODULES)."""

import json
import time
from typing import Any

from benchmarks.trainer import is_ours
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from recipe.trainer.trainer import RecipeTrainer


@register_trainer("paired")
class PairedTrainer(RecipeTrainer):
    """Our trainer, with verl's own methods in some of the steps."""

    def owner(self) -> Any:
        return RecipeTrainer if is_ours(self.global_steps) else PPOTrainerSync

    def on_step_begin(self) -> None:
        self.began = time.perf_counter()
        super().on_step_begin()

    def _compute_advantage(self, *args: Any, **kwargs: Any) -> Any:
        return self.owner()._compute_advantage(self, *args, **kwargs)

    def _update_actor(self, *args: Any, **kwargs: Any) -> Any:
        return self.owner()._update_actor(self, *args, **kwargs)

    def _compute_metrics(self, *args: Any, **kwargs: Any) -> None:
        self.owner()._compute_metrics(self, *args, **kwargs)
        line = {"step": self.global_steps, "seconds": time.perf_counter() - self.began}
        with (self.run_dir / "paired.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
