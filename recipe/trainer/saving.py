"""Checkpoints: when the trainer saves, what a checkpoint holds, and how a run ends early.

A checkpoint is always that of the step just finished. At a signal or near the job's deadline the
trainer saves after the step's metrics, and ends before the next step. A validation is then cut
short, and is not repeated by the resumed run. If the step under way would end too late
(recipe/run/stop.py decides), or fails, the run ends without a save.
"""

import math
import os
import threading
import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, open_dict
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from prompt_aug.base.files import enter, read_json, write_json
from recipe.errors import DivergedError
from recipe.run import checkpoints, progress
from recipe.run import folder as run_folder
from recipe.run.stop import Limit, StoppedError, Watchdog
from recipe.trainer.liveness import Liveness

MOST_LOST = 10  # the scale of float16 may begin with as many


class SavingTrainer(PPOTrainer):
    """Mixin over a trainer of verl: complete checkpoints, retention and a graceful end.

    A subclass adds JSON of its own to a checkpoint with `own_state` and `load_own_state`. It calls
    `end_step` with the metrics of a step, and `while_waiting` at every poll for rollouts.

    Overrides of verl:
      __init__            disables verl's retention, which deletes before the next one is complete
      _load_checkpoint    reports a stage of the start; reads our state; cuts metrics.jsonl
                          and hides later steps from TensorBoard
      on_init_end         reports the next stage; starts the watchdog
      on_train_begin      reports the last stage, from which on a signal lets the trainer save
      step                measures the time of a step; ends the run before it, if it must end
      on_step_end         measures the transfer of the weights
      _validate           may cut the validation short
      _save_checkpoint    adds our state, deletes older checkpoints afterwards
    """

    ending: StoppedError | None = None  # raised before the next step
    lost_updates = 0  # steps in a row whose gradient is not finite

    def __init__(self, config: DictConfig) -> None:
        self.keep_last = config.trainer.get("max_actor_ckpt_to_keep")
        with open_dict(config):
            # verl deletes the shards named by its tracker before it writes the next tracker.
            config.trainer.max_actor_ckpt_to_keep = config.trainer.max_critic_ckpt_to_keep = None
        self.run_dir = Path(config.recipe.run_dir)
        self.saves = Path(config.trainer.default_local_dir)
        self.limit = Limit.of(self.run_dir)
        self.watchdog = Watchdog(float(config.recipe.rollout.hang_seconds))
        self.line: dict[str, Any] = {}  # metrics of the last finished step
        super().__init__(config)

    def _load_checkpoint(self) -> None:
        progress.reached(self.run_dir, "model and vLLM engine loaded")
        super()._load_checkpoint()
        if self.global_steps:
            folder = checkpoints.step_folder(self.saves, self.global_steps)
            self.load_own_state(read_json(folder / checkpoints.STATE))
        # Steps after the checkpoint are trained again and would appear twice.
        run_folder.truncate_metrics(self.run_dir, last_step=self.global_steps)
        if "tensorboard" in self.config.trainer.logger:
            from torch.utils.tensorboard import SummaryWriter  # may be missing

            again = self.global_steps and self.global_steps + 1  # 0 is the first validation's
            SummaryWriter(os.environ["TENSORBOARD_DIR"], purge_step=again).close()
        self._delete_surplus()  # a kill after the last save may have left some

    def on_init_end(self) -> None:
        super().on_init_end()
        progress.reached(self.run_dir, "weights sent to the engine")
        self.watchdog.begin()
        watched = (self.run_dir, Liveness().gone)
        threading.Thread(target=self.watchdog.guard, args=watched, daemon=True).start()

    def on_train_begin(self) -> None:
        super().on_train_begin()
        progress.reached(self.run_dir, progress.TRAINING, step=self.global_steps - 1)

    def while_waiting(self, partition: str, done: int, failed: int) -> None:
        """Raise StoppedError if the run must end; called at every poll for rollouts."""
        self.watchdog.see((partition, done, failed))
        limit = self.limit
        if reason := limit.in_validation() if partition == "val" else limit.in_step():
            raise StoppedError(reason)

    def step(self, metrics: dict, timing_raw: dict) -> Any:
        if self.ending:
            raise self.ending
        self.limit.begin_step()
        self.watchdog.begin()
        batch = super().step(metrics, timing_raw)
        self.limit.end_step()
        self.line = run_folder.metrics_line(self.global_steps, metrics)
        return batch

    def on_step_end(self) -> None:
        began = time.monotonic()
        super().on_step_end()
        self.limit.sent(time.monotonic() - began)

    def _validate(self) -> dict[str, float]:
        """verl's validation; cut short it has no metrics, and `end_step` saves the step."""
        if not self.line:  # before the first step
            metrics = super()._validate()
            line = run_folder.metrics_line(0, metrics)
            progress.reached(self.run_dir, progress.VALIDATED, metrics=line)
            return metrics
        if self.limit.in_validation():
            return {}
        try:
            return super()._validate()
        except StoppedError:
            # The engine sleeps only when no request is left. Later requests are rejected: verl
            # would hold them until generation resumes, which never happens.
            self.checkpoint_manager.abort_replicas(reject_request=True)
            return {}

    def end_step(self, metrics: dict[str, Any]) -> None:
        """Add the step to metrics.jsonl, and save if the run must end."""
        run_folder.append_metrics(self.run_dir, self.global_steps, metrics)
        lost = not math.isfinite(metrics.get("actor/grad_norm", 0.0))
        self.lost_updates = self.lost_updates + 1 if lost else 0
        if self.lost_updates == MOST_LOST:
            raise DivergedError(
                f"a gradient was not finite in each of the last {MOST_LOST} steps, and verl leaves "
                "out such updates. Look at rewards and advantages (recipe.save_rollouts_every=1), "
                "lower the learning rate, or correct your own loss."
            )
        if self.global_steps == self.total_training_steps:
            return
        if reason := self.limit.after_step():
            self.ending = StoppedError(reason)
        if self.ending and checkpoints.tracked_step(self.saves) != self.global_steps:
            self.on_sample_end()  # the engine is awake, so it sleeps meanwhile
            self._save_checkpoint()

    def _save_checkpoint(self) -> None:
        """verl's checkpoint and our state; then delete older checkpoints that are not kept."""
        began = time.monotonic()
        self.watchdog.begin()
        self.limit.begin_save()
        folder = checkpoints.step_folder(self.saves, self.global_steps)
        enter(folder)
        checkpoints.begin(folder)
        # Before verl's files: its tracker, written last, marks the checkpoint as complete.
        write_json(folder / checkpoints.STATE, {**self.own_state(), "line": self.line})
        super()._save_checkpoint()
        self._delete_surplus()
        self.limit.saved(time.monotonic() - began)

    def _delete_surplus(self) -> None:
        """Delete checkpoints by max_actor_ckpt_to_keep, keep_every and keep_best."""
        steps, recipe = checkpoints.saved_steps(self.saves), self.config.recipe
        lines = run_folder.read_metrics(self.run_dir) if recipe.keep_best else []
        scores = {x["step"]: x[recipe.keep_best] for x in lines if recipe.keep_best in x}
        # Of equal ones the first.
        best = max((step for step in steps if step in scores), key=scores.__getitem__, default=None)
        tracked = checkpoints.tracked_step(self.saves)
        surplus = checkpoints.surplus(steps, tracked, self.keep_last, recipe.keep_every, best)
        checkpoints.delete(self.saves, surplus)
