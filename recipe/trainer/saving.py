"""When the trainer saves, what travels with a checkpoint, and how it ends before its last step.

A step that has been trained is not lost to a time limit, a preemption or a signal: the trainer
saves at the next boundary of a step, or, where the step under way would not be finished in time,
discards its rollouts and saves the step before, with the data loader as it was at its beginning
(recipe/run/stop.py decides which).
"""

import errno
import os
import threading
import time
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, open_dict
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

from prompt_aug.base.files import read_json, write_json
from recipe.errors import ExhaustedError, HungError, LostEngineError, RolloutError
from recipe.run import checkpoints, progress
from recipe.run import folder as run_folder
from recipe.run.stop import Limit, StoppedError, Watchdog, steps_begin
from recipe.trainer.liveness import Liveness

# What of the start is done when verl's _setup, one long method, sets this attribute.
STARTED = {
    "train_dataloader": "questions loaded",
    "actor_rollout_wg": "worker processes started",
    "reward_loop_manager": "model loaded",
    "llm_server_manager": "vLLM engine started",
}


def scored(line: dict[str, Any]) -> bool:
    """Whether a line of metrics.jsonl is of a step that was validated."""
    return any(key.startswith("val/") for key in line)


class SavingTrainer(PPOTrainerSync):
    """verl's synchronous trainer with whole checkpoints, retention, and an end in time.

    A subclass says with `own_state` and `load_own_state` what JSON of its own goes along.

    Overrides of verl:
      __init__            switches verl's retention off, which deletes before the next one is whole
      __setattr__         sees which part of _setup, one long method, is done
      _setup              says that these parts are under way
      on_init_end         says that the engine has its weights
      on_train_begin      from now on a signal lets the trainer save; the watchdog begins
      on_sample_end       begins a new wait for the watchdog, as the next two do
      on_step_end
      on_validate_begin
      step                ends the run before, in or after a step, with the last finished one saved
      _validate           saves the last finished step where its rollouts fail
      _save_checkpoint    our state goes along; the disk is asked first, older ones go afterwards
      _load_checkpoint    reads our state; metrics.jsonl continues from the step of the checkpoint
    """

    told_unscored = False

    def __init__(self, config: DictConfig) -> None:
        self.keep_last = config.trainer.get("max_actor_ckpt_to_keep")
        with open_dict(config):
            # verl deletes the shards that its tracker names before it writes the next tracker.
            config.trainer.max_actor_ckpt_to_keep = None
        self.run_dir = Path(config.recipe.run_dir)
        self.saves = Path(config.trainer.default_local_dir)
        self.limit = Limit.of(self.run_dir)
        self.watchdog = Watchdog(float(config.recipe.rollout.hang_seconds))
        self.liveness = Liveness()
        self.line: dict[str, Any] = {}  # what is known of the step that may be saved now
        super().__init__(config)

    def own_state(self) -> dict[str, Any]:
        raise NotImplementedError

    def load_own_state(self, state: dict[str, Any]) -> None:
        raise NotImplementedError

    # ---------------------------------------------------------------- the start

    def _setup(self) -> None:
        self.starting = True
        super()._setup()
        self.starting = False

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if self.__dict__.get("starting") and name in STARTED:
            progress.reached(self.run_dir, STARTED[name])

    def on_init_end(self) -> None:
        super().on_init_end()
        progress.reached(self.run_dir, "weights sent to the engine")

    def on_train_begin(self) -> None:
        super().on_train_begin()
        steps_begin(self.run_dir)
        # Not earlier: how long the start of the engines may take has nothing to do with a step.
        self.watchdog.begin()
        # A Liveness of its own: a thread of its own asks it.
        watched = (self.run_dir, Liveness().gone)
        threading.Thread(target=self.watchdog.guard, args=watched, daemon=True).start()
        progress.reached(self.run_dir, progress.TRAINING, step=self.global_steps - 1)

    # Parts of a step in which nobody looks at the watchdog. It begins before verl's own hook, which
    # is the wait: the engine's sleep, the transfer of the weights.

    def on_sample_end(self) -> None:
        self.watchdog.begin()
        super().on_sample_end()

    def on_step_end(self) -> None:
        self.watchdog.begin()
        super().on_step_end()

    def on_validate_begin(self) -> None:
        self.watchdog.begin()
        super().on_validate_begin()

    # ---------------------------------------------------------------- checkpoints

    def _save_checkpoint(self, state: dict[str, Any] | None = None) -> None:
        """As in verl, with `state` beside it; then the older ones that are not kept are deleted."""
        began = time.monotonic()
        self.watchdog.begin()
        lacking = checkpoints.missing_room(self.saves)
        if lacking:
            what = f"{os.strerror(errno.ENOSPC)}: {lacking} bytes too few for one more checkpoint"
            raise OSError(errno.ENOSPC, what, str(self.saves))
        folder = checkpoints.step_folder(self.saves, self.global_steps)
        folder.mkdir(parents=True, exist_ok=True)
        checkpoints.begin(folder)
        # Before verl's own files: its tracker, written last, says that the checkpoint is whole.
        whole = {**(state or self.own_state()), "line": self.line}
        write_json(folder / checkpoints.STATE, whole)
        super()._save_checkpoint()
        self._delete_surplus()
        self.limit.saved(time.monotonic() - began)

    def _delete_surplus(self) -> None:
        steps = checkpoints.saved_steps(self.saves)
        tracked, key = checkpoints.tracked_step(self.saves), self.config.recipe.keep_best
        lines = run_folder.read_metrics(self.run_dir) if key else []
        if lines and not any(key in line for line in lines) and any(map(scored, lines)):
            self._tell_unscored(key)
            return
        best = self._best(steps, lines)
        gone = checkpoints.surplus(
            steps, tracked, self.keep_last, self.config.recipe.keep_every, best
        )
        checkpoints.delete(self.saves, gone)

    def _tell_unscored(self, key: str) -> None:
        if not self.told_unscored:
            print(
                f"recipe.keep_best={key}: metrics.jsonl has validations, but none with this key: "
                "no checkpoint is deleted"
            )
        self.told_unscored = True

    def _best(self, steps: list[int], lines: list[dict[str, Any]]) -> int | None:
        """The saved step with the highest ``recipe.keep_best``; the first among equals.

        Before the first validation none: a step without one is never the best.
        """
        key = self.config.recipe.keep_best
        scores = {m["step"]: float(m[key]) for m in lines if key in m and m["step"] in steps}
        return max(scores, key=lambda step: scores[step], default=None)

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        state: dict[str, Any] = {}
        if self.global_steps:
            folder = checkpoints.step_folder(self.saves, self.global_steps)
            state = read_json(folder / checkpoints.STATE)
            self.load_own_state(state)
        # Steps after the checkpoint are trained again: their lines would stand twice.
        run_folder.truncate_metrics(self.run_dir, last_step=self.global_steps)
        # verl saves before the line is written: a kill between the two loses it.
        lines = run_folder.read_metrics(self.run_dir)
        if state.get("line") and (not lines or lines[-1]["step"] < self.global_steps):
            line = {**state["line"], "restored": True}
            run_folder.append_metrics(self.run_dir, self.global_steps, line)
        self._delete_surplus()  # what a kill after the last save has left

    # ---------------------------------------------------------------- the end before the last step

    def look(self, work: Any) -> None:
        """Called with what has moved while the trainer waits for rollouts, validation's too."""
        self.watchdog.see(work)
        self.liveness.look()

    def check_stop(self) -> None:
        """Called while the trainer waits for rollouts of a step."""
        reason = self.limit.while_waiting()
        if reason:
            raise StoppedError(reason)

    def step(self, metrics: dict, timing_raw: dict) -> Any:
        """verl's step; the run ends before it, in it or after it where `limit` says so."""
        if reason := self.limit.after_step():  # asked during the validation of the step before
            self._save_step_before()
            raise StoppedError(reason)
        self.limit.begin_step()
        self.watchdog.begin()
        state, data = self.own_state(), self.train_dataloader.state_dict()
        try:
            batch = super().step(metrics, timing_raw)
        except ExhaustedError:
            # The weights are those of the step before; without this its work could be lost.
            self._save_step_before()
            raise
        except (HungError, RolloutError) as error:
            idle = isinstance(error, RolloutError) and not isinstance(error, LostEngineError)
            self._save_step_before(state, data, asks_engine=idle)
            raise
        except StoppedError:
            # Its questions were fetched already; those after a resume are these once more.
            # verl's sleep, which comes with the save, waits until no request is left. Later ones
            # are rejected: verl would hold them until generation resumes, which it never does.
            self.checkpoint_manager.abort_replicas(reject_request=True)
            self._save_step_before(state, data)
            raise
        self.limit.end_step()
        self.line = run_folder.metrics_line(self.global_steps, metrics)
        reason = self.limit.after_step()
        if reason and self.global_steps < self.total_training_steps:
            self._end_after(batch, metrics, timing_raw)
            raise StoppedError(reason)
        return batch

    def _save_step_before(
        self, state: dict[str, Any] | None = None, data: Any = None, asks_engine: bool = True
    ) -> None:
        """Save the step before this one, with the states of then where they are given."""
        self.global_steps -= 1
        self._save_unsaved(state, data, asks_engine)

    def _validate(self) -> dict[str, float]:
        """verl's validation; where its rollouts fail the step before it, which is done, is saved.

        Its line, which verl writes after the validation, is in the checkpoint.
        """
        try:
            return super()._validate()
        except RolloutError as error:
            if self.line.get("step") == self.global_steps:  # not before the first step
                self._save_unsaved(asks_engine=not isinstance(error, LostEngineError))
            raise

    def _save_unsaved(
        self, state: dict[str, Any] | None = None, data: Any = None, asks_engine: bool = True
    ) -> None:
        """Save this step unless it is; `asks_engine` is False where a dead engine never answers."""
        if self.global_steps > (checkpoints.tracked_step(self.saves) or 0):
            if data is not None:
                # verl's `_save_checkpoint` asks the loader, which is at the next questions already.
                self.train_dataloader.state_dict = lambda: data
            if asks_engine:
                self.on_sample_end()  # the engine gives its memory back, as before any update
            self._save_checkpoint(state)

    def _end_after(self, batch: Any, metrics: dict, timing_raw: dict) -> None:
        """What verl's fit does after a step, without the next weights of the engine."""
        self._save_checkpoint()
        # verl's timer of the step writes this when its `with` ends, later than here, and verl's
        # `_compute_metrics` divides tokens by it.
        timing_raw["step"] = self.limit.steps[-1]
        epoch = (self.global_steps - 1) // self.steps_per_epoch
        self._compute_metrics(
            batch, metrics, timing_raw, global_steps=self.global_steps, epoch=epoch
        )
        self.logger.log(data=metrics, step=self.global_steps)
