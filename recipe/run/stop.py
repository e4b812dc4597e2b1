"""End a run before its last step: at a signal, at the job's deadline, or because nothing moves.

    launching process (recipe.train)              trainer (a Ray actor, perhaps on another node)
    SIGTERM -> creates RUN/.stop                  reads RUN/.stop while it waits for rollouts and
    (before the first step, or a second one:      after every step; saves, raises StoppedError
     ends at once)
    SIGHUP, of a closed terminal: the same        has it blocked, as all processes of the run
    exit code 75: the same command continues      <-

A job's script also sets when the job will be killed: RECIPE_DEADLINE, in seconds since the epoch.
Without a signal, the trainer then saves and ends after the last step that fits, by its measured
times; before its first save by a guess. After a signal it saves and ends after the step under way.
If that step would end too late, the run ends at once, and the steps since the last save are lost.
"""

import os
import signal
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prompt_aug.base.errors import UserError
from prompt_aug.base.files import FileError, write_json
from prompt_aug.typed import read_record
from recipe.machine.environment import DEADLINE
from recipe.run import processes, progress
from recipe.run.folder import RunFolder

AGAIN = 75  # exit code, EX_TEMPFAIL of sysexits.h: ended early, the same command continues
KILLED = 143
SAME = 5.0  # seconds in which a second signal counts as an echo of the first
DEAD = 30.0  # seconds in which the trainer may report a death itself, with a better message
SPARE = 1.2  # a step and its save may take this times (longest of ten steps + longest save)
SIGNALED = "a signal asked the run to end"


class StoppedError(UserError, RuntimeError):
    """A signal or the job's deadline ends the run."""


@dataclass(frozen=True, slots=True)
class StopRequest:
    """The file .stop, which asks the trainer to end. A file, since the trainer is a busy actor.

    The launching process creates it empty. scripts/job.sh writes the deadline into it, which a
    preemption brings forward. Only the script changes an existing file, so no lock is needed.
    """

    deadline: float | None  # seconds since the epoch; None: not brought forward

    @classmethod
    def read(cls, run_dir: Path) -> "StopRequest | None":
        try:
            text = RunFolder(run_dir).stop_request.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        with suppress(ValueError):  # empty, or being written
            return cls(float(text))
        return cls(None)

    @staticmethod
    def create(run_dir: Path) -> None:
        RunFolder(run_dir).stop_request.touch()


class Limit:
    """Decides when the trainer must end. All times are monotonic: a changed clock ends no run."""

    def __init__(
        self,
        run_dir: Path,
        deadline: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.run_dir, self.deadline, self.clock = run_dir, deadline, clock
        self.steps: deque[float] = deque(maxlen=10)  # seconds of the latest steps
        self.saves: deque[float] = deque(maxlen=10)  # of the latest saves, of earlier starts too
        self.guess = 0.0  # seconds of a save, before one is measured
        self.began = clock()  # of the step under way

    @classmethod
    def of(cls, run_dir: Path) -> "Limit":
        """Create with the deadline of the job, if RECIPE_DEADLINE is set, and the run's saves."""
        end = os.environ.get(DEADLINE, "")
        limit = cls(run_dir, float(end) - time.time() + time.monotonic() if end else None)
        with suppress(FileError):  # none yet
            types = {"guess": float, "seconds": list[float]}
            record = read_record(RunFolder(run_dir).saves, *types, **types)
            limit.guess = record["guess"]
            limit.saves.extend(record["seconds"])
        return limit

    def expect(self, seconds: float) -> None:
        """Record a guess of the seconds of a save; the longest guess counts."""
        self.guess = max(self.guess, seconds)
        self._record()

    def _record(self) -> None:
        record = {"guess": self.guess, "seconds": [*self.saves]}
        write_json(RunFolder(self.run_dir).saves, record)

    def begin_step(self) -> None:
        self.began = self.clock()

    def end_step(self) -> None:
        self.steps.append(self.clock() - self.began)

    def sent(self, seconds: float) -> None:
        """Add the seconds in which its weights were sent to the last step."""
        if self.steps:
            self.steps[-1] += seconds

    def begin_save(self) -> None:
        """Double the guess before a first save: if the job is killed in it, the guess was short."""
        if not self.saves:
            self.expect(2 * self.guess)

    def saved(self, seconds: float) -> None:
        self.saves.append(seconds)
        self._record()

    @property
    def save(self) -> float:
        """Seconds of the longest of the latest saves, before any the guess."""
        return max(self.saves, default=self.guess)

    @property
    def needed(self) -> float:
        """Seconds for one more step and its checkpoint."""
        return SPARE * (max(self.steps, default=0.0) + self.save)

    def after_step(self) -> str | None:
        """Return why no further step may begin, or None."""
        if StopRequest.read(self.run_dir):
            return SIGNALED
        if self.deadline is None or self.needed <= (left := self.deadline - self.clock()):
            return None
        return (
            f"{left:.0f} s are left of the job's time, and a step with a checkpoint may take "
            f"{self.needed:.0f} s"
        )

    def in_validation(self) -> str | None:
        """Return why a validation must be cut short, or None."""
        if StopRequest.read(self.run_dir):
            return SIGNALED
        needed = SPARE * self.save if self.steps else 0.0  # before a step there is nothing to save
        if self.deadline is None or needed <= self.deadline - self.clock():
            return None
        return "the rest of the job's time is needed for the checkpoint"

    def in_step(self) -> str | None:
        """Return why the run must end in the middle of a step, or None."""
        request = StopRequest.read(self.run_dir)
        if request is None:
            return None
        ends = [] if self.deadline is None else [self.deadline]
        if request.deadline is not None:
            ends.append(request.deadline - time.time() + self.clock())
        # A first step takes an unknown time, and no finished step is lost with it. The shortest
        # save counts, and no guess: without a save the same steps are lost.
        needed = SPARE * (max(self.steps, default=0.0) + min(self.saves, default=0.0))
        if not ends or (self.steps and self.began + needed <= min(ends)):
            return None
        return f"{SIGNALED}, and the step under way would end too late"


class Watchdog:
    """Ends the trainer's process if nothing moves: verl waits forever for a hanging engine.

    Long parts of a step call `begin`; polls for rollouts call `see` with a value that changes with
    progress. A thread (`guard`) ends the process `seconds` after the last call of `begin`, and
    `DEAD` seconds after the death of an engine of its node or of an actor: verl may not notice it.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.clock = seconds, clock
        self.died: float | None = None  # when a death was first seen
        self.seen: Any = None
        self.begin()

    def begin(self) -> None:
        self.since = self.clock()

    def see(self, work: Any) -> None:
        if work != self.seen:
            self.seen = work
            self.begin()

    def overdue(self, lost: str = "") -> str | None:
        """Return why the process must end, or None; `lost` names the dead engines and actors."""
        now = self.clock()
        if now - self.since > self.seconds:
            return (
                f"nothing has moved for {now - self.since:.0f} s "
                f"(recipe.rollout.hang_seconds={self.seconds:.0f}): an engine, a reward worker or "
                "an actor hangs, or responses or a part of a step take longer than that"
            )
        if not lost:
            self.died = None
        elif self.died is None:
            self.died = now
        elif now - self.died > DEAD:
            return f"{lost} has ended: it was killed, perhaps for lack of memory, or has crashed"
        return None

    def guard(
        self,
        run_dir: Path,
        lost_actors: Callable[[], list[str]] = list,
        end: Callable[[int], object] = os._exit,
    ) -> None:
        """In a thread of the trainer: when overdue, record the reason and call `end`."""
        engines = processes.engines(str(run_dir))
        while True:
            dead = any(map(processes.is_dead, engines))
            engine = f"an engine's process ({processes.ENGINE}EngineCore)"
            if why := self.overdue(engine if dead else ", ".join(lost_actors())):
                break
            time.sleep(min(self.seconds / 10, 10))
        with suppress(OSError):  # whatever happens to the run folder
            progress.reached(run_dir, progress.HUNG, why=why)
        end(1)


class SignalHandler:
    """Handles SIGTERM and SIGHUP in the launching process; `leave` ends it with code and reason.

    It raises nothing: Python drops what a handler raises in a callback of a fork or of a garbage
    collection.
    """

    def __init__(
        self,
        run_dir: Path,
        say: Callable[[str], None] = print,
        leave: Callable[[int, str], object] = lambda code, _: os._exit(code),
    ) -> None:
        self.run_dir, self.say, self.leave = run_dir, say, leave
        self.handled: float | None = None  # when the first signal was dealt with
        RunFolder(run_dir).stop_request.unlink(missing_ok=True)
        self.listen()

    def listen(self) -> None:
        """Handle the signals; call it again after ray.init."""
        signal.signal(signal.SIGTERM, self)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
            signal.signal(signal.SIGHUP, self)

    def __call__(self, number: int, *_: Any) -> None:
        if self.handled is None:
            self._end_or_ask(signal.Signals(number).name)
            self.handled = time.monotonic()  # echoes may have arrived meanwhile
        elif time.monotonic() - self.handled > SAME:
            self.leave(KILLED, f"a second signal, {signal.Signals(number).name}")

    def _end_or_ask(self, name: str) -> None:
        if not progress.find(self.run_dir, progress.TRAINING):
            self.leave(AGAIN, f"ended early: {name} before the first step: nothing to save")
        try:
            StopRequest.create(self.run_dir)
        except OSError as error:  # the disk is full: nothing could be saved either
            self.leave(1, f"{name}, but the trainer cannot be asked to save: {error}")
        self.say(f"recipe.train: {name}: the step under way, its checkpoint, then the end")
