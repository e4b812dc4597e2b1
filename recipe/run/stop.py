"""End a run before its last step: at a signal, or if the next step exceeds the job's time.

    driver (recipe.train)                          trainer (a Ray actor, perhaps on another node)
    SIGTERM -> writes RUN/.stop                    checks RUN/.stop while it waits for rollouts,
    (a second SIGTERM, or one before the first       after every step and before a validation
     step has begun: ends at once)                 saves, raises StoppedError
    exit code 75: the same command continues         <-

A job's script also sets when the job will be killed: RECIPE_DEADLINE, in seconds since the epoch.
Without a signal, the trainer then ends after the last step that fits, by its measured times. A
preemption makes the end earlier: after a signal the script writes it into RUN/.ends. These are
files, not messages, because they must reach a busy actor on any node.
"""

import math
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from prompt_aug.base.errors import UserError
from prompt_aug.base.files import write_text
from recipe.errors import HungError
from recipe.run import processes
from recipe.run.environment import DEADLINE
from recipe.run.folder import RunFolder

AGAIN = 75  # exit code, EX_TEMPFAIL of sysexits.h: ended early, the same command continues
KILLED = 143
OVER = b"\0"  # in the pipe of signals: no signal's number
SAME = 5.0  # seconds in which a second signal counts as an echo of the first
EARLY = "ended early, the same command continues: "
# Seconds that the trainer may wait for a dead engine or actor. During rollouts it notices at once
# and saves; while weights are sent it would wait forever.
DEAD = 300.0
GUARD = 1.1  # times hang_seconds until the guard acts, so that a wait with `see` ends first
SPARE = 1.2  # a step and its save may take this times (longest of ten steps + longest save)


class StoppedError(UserError, RuntimeError):
    """A signal or the job's deadline ends the run; its last finished step is saved."""


class Limit:
    """Decides when the trainer must end. All times are monotonic: a changed clock ends no run."""

    def __init__(
        self,
        run_dir: Path,
        deadline: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder, self.deadline, self.clock = RunFolder(run_dir), deadline, clock
        self.steps: deque[float] = deque(maxlen=10)  # seconds of the latest steps
        self.validations: deque[float] = deque(maxlen=10)
        self.save = 0.0  # seconds of the longest save
        self.current, self.began = self.steps, clock()  # what is under way

    @classmethod
    def of(cls, run_dir: Path) -> "Limit":
        """Create with the deadline of the job, if RECIPE_DEADLINE is set."""
        end = os.environ.get(DEADLINE, "")
        return cls(run_dir, float(end) - time.time() + time.monotonic() if end else None)

    def begin_step(self) -> None:
        self.current, self.began = self.steps, self.clock()

    def begin_validation(self) -> None:
        self.current, self.began = self.validations, self.clock()

    def end(self) -> None:
        self.current.append(self.clock() - self.began)

    def saved(self, seconds: float) -> None:
        self.save = max(self.save, seconds)

    def _needed(self, times: deque[float]) -> float:
        """Seconds for one more step or validation, and a checkpoint."""
        return SPARE * (max(times, default=0.0) + self.save)

    def after_step(self) -> str | None:
        """Return why no further step may begin, or None."""
        return self._too_late(self.steps, "step")

    def before_validation(self) -> str | None:
        """Return why no validation may begin, or None."""
        return self._too_late(self.validations, "validation")

    def _too_late(self, times: deque[float], what: str) -> str | None:
        needed = self._needed(times)
        if self.folder.stop_request.exists():
            return "a signal asked the run to end"
        if self.deadline is None or needed <= (left := self.deadline - self.clock()):
            return None
        return (
            f"{left:.0f} s are left of the job's time, and a {what} with a checkpoint may take "
            f"{needed:.0f} s"
        )

    def while_waiting(self) -> str | None:
        """Return why the current step or validation must be discarded, or None.

        After a signal it is discarded if it would end after the deadline, or if there is none.
        """
        if not self.folder.stop_request.exists():
            return None
        deadline = self.deadline
        with suppress(FileNotFoundError, ValueError):  # ValueError: being written
            left = float(self.folder.ends.read_text()) - time.time()
            deadline = min(left + self.clock(), math.inf if deadline is None else deadline)
        ends = self.began + self._needed(self.current)
        if deadline is not None and self.current and ends <= deadline:
            return None
        what = "step" if self.current is self.steps else "validation"
        return f"a signal asked the run to end, and the {what} under way would take too long"


class Watchdog:
    """Ends a wait without progress: verl waits forever for an engine that hangs.

    While the trainer waits for rollouts, it calls `see` with a value that changes with progress;
    after `seconds` without a change `see` raises HungError. Elsewhere, for example while weights
    are sent, the trainer cannot call it. There a thread (`guard`) ends the process a little later
    than `seconds` after the last `begin`, which every part of a step calls; and `DEAD` seconds
    after the death of an engine of its node or of an actor, unless a new part has begun since.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.clock = seconds, clock
        self.died: float | None = None  # when a death was first seen
        self.lost = ""  # the dead engines and actors at the last look
        self.begin()

    def begin(self) -> None:
        """Start a new wait."""
        self.seen: Any = None
        self.since = self.clock()

    def see(self, work: Any) -> None:
        now = self.clock()
        if work != self.seen:
            self.seen, self.since = work, now
        elif now - self.since > self.seconds:
            raise HungError(
                f"no group of rollouts has finished for {now - self.since:.0f} s "
                f"(recipe.rollout.hang_seconds={self.seconds:.0f}): an engine or a reward worker "
                "hangs, or responses take longer than that"
            )

    def overdue(self, lost: str = "") -> str | None:
        """Return why the process must end, or None; `lost` names the dead engines and actors."""
        now = self.clock()
        if now - self.since > GUARD * self.seconds:
            return (
                f"nothing has moved for {now - self.since:.0f} s outside of the rollouts "
                f"(recipe.rollout.hang_seconds={self.seconds:.0f}): an engine or an actor hangs, "
                "or a part of a step takes longer than that"
            )
        self.lost = lost
        if lost and self.died is None:
            self.died = now
        if self.died is None or self.since >= self.died or now - self.died <= DEAD:
            return None
        return (
            f"{lost} has ended, and nothing has moved in the {now - self.died:.0f} s since: it was "
            "killed, perhaps for lack of memory, or has crashed"
        )

    def guard(
        self,
        run_dir: Path,
        lost_actors: Callable[[], list[str]] = list,
        end: Callable[[int], object] = os._exit,
    ) -> None:
        """In a thread of the trainer: when overdue, write the reason to .hung and call `end`."""
        engines = processes.engines(str(run_dir))
        while True:
            dead = any(map(processes.is_dead, engines))
            engine = f"an engine's process ({processes.ENGINE}EngineCore)"
            if reason := self.overdue(engine if dead else ", ".join(lost_actors())):
                break
            time.sleep(min(self.seconds / 10, 10))
        write_text(RunFolder(run_dir).hung, reason)
        end(1)


class Signals:
    """Handles SIGTERM in the launching process; `leave` ends it, from any thread, with a reason."""

    def __init__(
        self,
        run_dir: Path,
        say: Callable[[str], None] = print,
        leave: Callable[[int, str], object] = lambda code, _: os._exit(code),
    ) -> None:
        self.folder, self.say, self.leave = RunFolder(run_dir), say, leave
        old = (self.folder.stop_request, self.folder.stepping, self.folder.hung, self.folder.ends)
        for path in old:
            path.unlink(missing_ok=True)

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle SIGTERM inside, in a thread: Python writes a signal's number into a pipe.

        A handler could not do it. What it raises is dropped inside a callback of a fork (ray.init
        forks) or of a garbage collection, and inside ray.get it is replaced by SystemExit(1). Ray's
        own handler exits with the signal's number; the end waits for the thread, which is first.
        A later signal only leaves the request, which `recipe.train` reads before a roll-back.
        """
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        thread = threading.Thread(target=self._handle, args=(read_end,), daemon=True)
        thread.start()
        self.listen()
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, lambda *_: self._ask())
            signal.set_wakeup_fd(-1)
            with suppress(OSError):  # the pipe is full, or the thread has failed
                os.write(write_end, OVER)
            os.close(write_end)
            thread.join()

    def listen(self) -> None:
        """Let SIGTERM do nothing else; call it again after ray.init, which sets a handler."""
        signal.signal(signal.SIGTERM, lambda *_: None)

    def _ask(self) -> OSError | None:
        """Ask the trainer to save and end; return why it cannot be asked, or None."""
        try:
            write_text(self.folder.stop_request, str(os.getpid()))
        except OSError as error:
            return error
        return None

    def _handle(self, read_end: int) -> None:
        known: float | None = None  # when the first signal was dealt with
        with os.fdopen(read_end, "rb", buffering=0) as signals:
            while (number := signals.read(1)) > OVER:
                if number[0] != signal.SIGTERM:
                    continue
                if known is None:
                    self._end_or_ask()
                    known = time.monotonic()  # echoes may have waited in the pipe meanwhile
                elif time.monotonic() - known > SAME:
                    self.leave(KILLED, "a second SIGTERM")

    def _end_or_ask(self) -> None:
        if not self.folder.stepping.exists():
            self.leave(AGAIN, f"{EARLY}SIGTERM before the first step, nothing to save")
        elif error := self._ask():  # the disk is full: nothing could be saved either
            self.leave(1, f"SIGTERM, but the trainer cannot be asked to save: {error}")
        else:
            with suppress(OSError):  # the terminal may be gone
                self.say("recipe.train: SIGTERM: saving, then the end")


class AfterRay:
    """Ray actor class that calls `then` before it creates an actor, after run_ppo's ray.init."""

    def __init__(self, actor_class: Any, then: Callable[[], None]) -> None:
        self.actor_class, self.then = actor_class, then

    def options(self, **keywords: Any) -> "AfterRay":
        return AfterRay(self.actor_class.options(**keywords), self.then)

    def remote(self, *arguments: Any, **keywords: Any) -> Any:
        self.then()
        return self.actor_class.remote(*arguments, **keywords)


def steps_begin(run_dir: Path) -> None:
    """Record that steps have begun: from now on a signal lets the trainer save before the end."""
    write_text(RunFolder(run_dir).stepping, "")
