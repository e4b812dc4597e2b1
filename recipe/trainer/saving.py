"""Checkpoints: when the trainer saves, what a checkpoint holds, and how a run ends early.

After a time limit, a preemption or a signal, no finished step is lost. The trainer saves at the end
of the current step. If that step would not end in time (recipe/run/stop.py decides), it discards
the step's rollouts and saves the previous step, with the data loader's state before this step. A
validation that would not end in time is discarded too, and is not repeated by the resumed run.
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
from recipe.run import checkpoints, progress, rollbacks
from recipe.run import folder as run_folder
from recipe.run.stop import Limit, StoppedError, Watchdog, steps_begin
from recipe.trainer import guard
from recipe.trainer.liveness import Liveness

# Startup stage reported when `_setup`, one long method of verl, assigns this attribute.
STARTED = {
    "train_dataloader": "questions loaded",
    "actor_rollout_wg": "worker processes started",
    "reward_loop_manager": "model loaded",
    "llm_server_manager": "vLLM engine started",
}


class SavingTrainer(PPOTrainerSync):
    """verl's synchronous trainer with complete checkpoints, retention and a graceful end.

    A subclass adds JSON of its own to a checkpoint with `own_state` and `load_own_state`.

    Overrides of verl:
      __init__            disables verl's retention, which deletes before the next one is complete
      __setattr__         reports the stages of _setup, one long method
      _setup              marks the start and the end of these stages
      on_init_end         reports that the engine has its weights
      on_train_begin      starts the watchdog; from here on a signal lets the trainer save
      on_validate_begin   the same watchdog, if a validation comes first
      on_sample_end       restarts the watchdog's clock, as do all of these
      on_step_end         raises if an engine or actor has died: sending it weights would hang
      step                may end the run before, in or after a step; saves the last finished one
      _validate           saves the last finished step if the validation fails or would be cut off
      _save_checkpoint    checks the disk, adds our state, deletes older checkpoints afterwards
      _load_checkpoint    reads our state; metrics.jsonl continues from the step of the checkpoint
    """

    warned_unscored = watching = False
    # Set by the guard, for the next step:
    ending: guard.CollapseError | guard.RollbackError | None = None
    save_alarm = False

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
        self._watch()
        progress.reached(self.run_dir, progress.TRAINING, step=self.global_steps - 1)

    def on_validate_begin(self) -> None:
        self._watch()
        super().on_validate_begin()

    def _watch(self) -> None:
        """Restart the watchdog's clock, and start its thread at the first call.

        Not earlier: the limit for a step does not apply to the start of the engines.
        """
        self.watchdog.begin()
        if not self.watching:
            self.watching = True
            watched = (self.run_dir, Liveness().gone)
            threading.Thread(target=self.watchdog.guard, args=watched, daemon=True).start()

    # Parts of a step without polls. The watchdog's clock restarts before verl's hook, which blocks
    # during the engine's sleep or the transfer of weights.

    def on_sample_end(self) -> None:
        self.watchdog.begin()
        super().on_sample_end()

    def on_step_end(self) -> None:
        try:  # one look: the watchdog's thread changes what it has seen at any moment
            self._require_alive()
        except LostEngineError:
            self._save_unsaved(engine_responds=False)
            raise
        self.watchdog.begin()
        super().on_step_end()

    def _require_alive(self) -> None:
        if lost := self.watchdog.lost:
            raise LostEngineError(
                f"{lost} ended in the middle of a step: killed, perhaps for lack of memory, or "
                "crashed. See logs/train.log."
            )

    def _save_checkpoint(self, state: dict[str, Any] | None = None) -> None:
        """verl's checkpoint and our `state`; then delete older checkpoints that are not kept."""
        began = time.monotonic()
        self.watchdog.begin()
        if lacking := checkpoints.missing_room(self.saves):
            what = f"{os.strerror(errno.ENOSPC)}: {lacking} bytes too few for one more checkpoint"
            raise OSError(errno.ENOSPC, what, str(self.saves))
        folder = checkpoints.step_folder(self.saves, self.global_steps)
        folder.mkdir(parents=True, exist_ok=True)
        checkpoints.begin(folder)
        # Before verl's files: its tracker, written last, marks the checkpoint as complete.
        whole = {**(state or self.own_state()), "line": self.line}
        write_json(folder / checkpoints.STATE, whole)
        super()._save_checkpoint()
        self._delete_surplus()
        self.limit.saved(time.monotonic() - began)

    def _delete_surplus(self) -> None:
        steps = checkpoints.saved_steps(self.saves)
        tracked, key = checkpoints.tracked_step(self.saves), self.config.recipe.keep_best
        lines = run_folder.read_metrics(self.run_dir) if key else []
        validated = any(name.startswith("val/") for line in lines for name in line)
        if validated and not any(key in line for line in lines):
            if not self.warned_unscored:
                print(
                    f"recipe.keep_best={key}: metrics.jsonl has validations, but none with this "
                    "key. No checkpoint is deleted. Set keep_best to a key of metrics.jsonl."
                )
            self.warned_unscored = True
            return
        scores = {m["step"]: float(m[key]) for m in lines if key in m and m["step"] in steps}
        best = max(scores, key=lambda step: scores[step], default=None)  # of equal ones the first
        gone = checkpoints.surplus(
            steps, tracked, self.keep_last, self.config.recipe.keep_every, best
        )
        checkpoints.delete(self.saves, gone)

    def _load_checkpoint(self) -> None:
        super()._load_checkpoint()
        if self.global_steps:
            folder = checkpoints.step_folder(self.saves, self.global_steps)
            self.load_own_state(read_json(folder / checkpoints.STATE))
        # Steps after the checkpoint are trained again and would appear twice.
        run_folder.truncate_metrics(self.run_dir, last_step=self.global_steps)
        self._delete_surplus()  # a kill after the last save may have left some

    def guard(self, metrics: dict[str, Any]) -> None:
        """Check the metrics of a finished step for a collapse, and apply ``recipe.guard``."""
        settings = self.config.recipe.guard
        if settings.action == "off":
            return
        history = run_folder.read_metrics(self.run_dir)
        first = not (history and history[-1].get("guard/breach"))
        history.append(run_folder.metrics_line(self.global_steps, metrics))
        breach = guard.verdict(history, settings)
        used = len(rollbacks.records(self.run_dir))
        metrics |= {"guard/breach": int(breach is not None), "guard/rollbacks": used}
        if breach is None:
            return
        told = f"recipe.guard.action={settings.action}: step {self.global_steps}: {breach}. "
        steps = checkpoints.saved_steps(self.saves)
        saved = [n for n in steps if not checkpoints.damage(checkpoints.step_folder(self.saves, n))]
        # Excludes the step of the alarm, even if validated best: its update is suspect.
        best = guard.best_step(history, [n for n in saved if n < self.global_steps])
        if settings.action == "rollback" and best is not None and used < settings.rollback.times:
            told += rollbacks.decide(self.config, step=self.global_steps, to=best, why=breach)
            self.ending = guard.RollbackError(told)
        else:
            lr = float(self.config.actor_rollout_ref.actor.optim.lr)
            command = guard.remedy(str(self.run_dir), history, saved, lr)
            told += f"From the best checkpoint: {command}"
            if settings.action in ("stop", "rollback"):
                self.ending = guard.CollapseError(told)
        self.save_alarm = settings.action == "save" and first
        print(told, flush=True)

    def check_progress(self, work: Any) -> None:
        """Check for hangs and dead actors; called at every poll for rollouts."""
        self.watchdog.see(work)
        self._require_alive()

    def check_stop(self) -> None:
        """Raise StoppedError if the run must end; called at every poll for rollouts."""
        if reason := self.limit.while_waiting():
            raise StoppedError(reason)

    def step(self, metrics: dict, timing_raw: dict) -> Any:
        """verl's step; ends the run before, in or after it if `limit` requires it."""
        if self.ending:
            if isinstance(self.ending, guard.CollapseError):
                self._save_step_before()
            raise self.ending
        if self.save_alarm:  # of the step before
            self.save_alarm = False
            self.global_steps -= 1
            self._save_and_continue()
            self.global_steps += 1
        if reason := self.limit.after_step():  # requested during the validation of the step before
            self._save_step_before()
            raise StoppedError(reason)
        self.limit.begin_step()
        self.watchdog.begin()
        state, data = self.own_state(), self.train_dataloader.state_dict()
        try:
            batch = super().step(metrics, timing_raw)
        except ExhaustedError:
            # The weights are those of the step before, which may not be saved yet.
            self._save_step_before()
            raise
        except (HungError, RolloutError) as error:
            self._save_step_before(state, data, engine_responds=_responds(error))
            raise
        except StoppedError:
            # The resumed run fetches the questions of this step again. The save puts the engine to
            # sleep, which waits until no request is left. Later requests are rejected: verl would
            # hold them until generation resumes, which never happens.
            self.checkpoint_manager.abort_replicas(reject_request=True)
            self._save_step_before(state, data)
            raise
        self.limit.end()
        self.line = run_folder.metrics_line(self.global_steps, metrics)
        reason = self.limit.after_step()
        if reason and self.global_steps < self.total_training_steps:
            self._end_after(batch, metrics, timing_raw)
            raise StoppedError(reason)
        return batch

    def _save_and_continue(self) -> None:
        if self.global_steps > (checkpoints.tracked_step(self.saves) or 0):
            self._save_unsaved()  # the engine sleeps
            self.on_step_end()  # and has its weights again

    def _save_step_before(
        self, state: dict[str, Any] | None = None, data: Any = None, engine_responds: bool = True
    ) -> None:
        """Save the step before this one, with the given states from its end."""
        self.global_steps -= 1
        self._save_unsaved(state, data, engine_responds)

    def _validate(self) -> dict[str, float]:
        """verl's validation; if it fails or may be cut off, saves the finished step."""
        finished = self.line.get("step") == self.global_steps  # not before the first step
        if finished and (reason := self.limit.before_validation()):
            self._save_unsaved()
            raise StoppedError(reason)
        if finished and self.limit.deadline and not self.limit.validations:  # of unknown length
            self._save_and_continue()
        self.limit.begin_validation()
        try:
            metrics = super()._validate()
        except (HungError, RolloutError, StoppedError) as error:
            if isinstance(error, StoppedError):
                self.checkpoint_manager.abort_replicas(reject_request=True)  # as in `step`
            if finished:
                self._save_unsaved(engine_responds=_responds(error))
            raise
        self.limit.end()
        return metrics

    def _save_unsaved(
        self, state: dict[str, Any] | None = None, data: Any = None, engine_responds: bool = True
    ) -> None:
        """Save this step if it is not saved; `engine_responds`: False for a dead or hung engine."""
        if self.global_steps > (checkpoints.tracked_step(self.saves) or 0):
            if data is not None:
                # verl's `_save_checkpoint` reads the loader, which has already advanced.
                self.train_dataloader.state_dict = lambda: data
            if engine_responds:
                self.on_sample_end()  # the engine releases its memory, as before any update
            self._save_checkpoint(state)

    def _end_after(self, batch: Any, metrics: dict, timing_raw: dict) -> None:
        """The rest of verl's fit after a step, without the transfer of weights to the engine."""
        self._save_checkpoint()
        # verl's `_compute_metrics` divides tokens by this value, which verl's timer sets later.
        timing_raw["step"] = self.limit.steps[-1]
        epoch = (self.global_steps - 1) // self.steps_per_epoch
        self._compute_metrics(
            batch, metrics, timing_raw, global_steps=self.global_steps, epoch=epoch
        )
        self.logger.log(data=metrics, step=self.global_steps)


def _responds(error: Exception) -> bool:
    """Return whether the engine can still be put to sleep after `error`."""
    return not isinstance(error, HungError | LostEngineError)
