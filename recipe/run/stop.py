"""The end of a run before its last step: by a signal, or because the next step would not fit.

    driver (recipe.train)                          trainer (a Ray actor, perhaps on another node)
    SIGTERM -> writes RUN/.stop                    looks for RUN/.stop while it waits for
    (a second SIGTERM, or one before the first       rollouts and after every step
     step has begun: ends at once)                 saves, raises StoppedError
    exit code 75: the same command continues         <-

A job's script also sets when the job will be killed: RECIPE_DEADLINE, in seconds since the epoch.
Then the trainer ends after the last step that fits, by the step times it has measured, and needs no
signal. A file and not a message, because it must reach a busy actor on any node.
"""

import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from prompt_aug.base.errors import UserError
from prompt_aug.base.files import write_text
from recipe.errors import HungError
from recipe.run import processes
from recipe.run.environment import DEADLINE
from recipe.run.folder import RunFolder

AGAIN = 75  # exit code, EX_TEMPFAIL of sysexits.h: ended early, the same command continues
KILLED = 143
SAME = 5.0  # seconds in which a second signal is taken for an echo of the first
GRACE = 20.0  # seconds from a signal that must end the process to its end, Ray's included
EARLY = "ended early, the same command continues: "
NOTHING_SAVED = "SIGTERM before the first step, nothing to save"
# Seconds that the trainer may wait for a dead engine or actor. During rollouts it learns of it at
# once, and saves; an actor that hands weights over never does.
DEAD = 300.0
GUARD = 1.1  # times hang_seconds until the guard, so that a wait that is looked at ends first
SPARE = 1.2  # the next step and its checkpoint may take this times the longest one seen


class StoppedError(UserError, RuntimeError):
    """The run was asked to end, or its time is over; its last finished step is saved."""


class Limit:
    """When the trainer must end. `clock` counts seconds and never goes back, as `deadline` does.

    Not the time of day: when that clock is adjusted, no step may seem to have taken an hour.
    """

    def __init__(
        self,
        run_dir: Path,
        deadline: float | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.request, self.deadline, self.clock = RunFolder(run_dir).stop_request, deadline, clock
        self.steps: deque[float] = deque(maxlen=10)  # seconds of the latest steps
        self.save = 0.0  # seconds of the longest save
        self.began = clock()

    @classmethod
    def of(cls, run_dir: Path) -> "Limit":
        told = os.environ.get(DEADLINE, "")
        return cls(run_dir, float(told) - time.time() + time.monotonic() if told else None)

    def begin_step(self) -> None:
        self.began = self.clock()

    def end_step(self) -> None:
        self.steps.append(self.clock() - self.began)

    def saved(self, seconds: float) -> None:
        self.save = max(self.save, seconds)

    def _needed(self) -> float:
        """Seconds for one more step and its checkpoint."""
        return SPARE * (max(self.steps, default=0.0) + self.save)

    def after_step(self) -> str | None:
        """Why no further step may begin; None: go on."""
        if self.request.exists():
            return "a signal asked the run to end"
        if self.deadline is None:
            return None
        left = self.deadline - self.clock()
        if self._needed() <= left:
            return None
        return (
            f"{left:.0f} s are left of the job's time, and a step with its checkpoint may take "
            f"{self._needed():.0f} s"
        )

    def while_waiting(self) -> str | None:
        """Why the step under way must be given up; None: go on with it.

        A signal without a deadline is a preemption, or a user who waits: how long is not known.
        With a deadline the step is given up only where it would not be finished in time.
        """
        if not self.request.exists():
            return None
        if self.deadline is not None:
            end = self.began + self._needed()
            if self.steps and end <= self.deadline:
                return None
        return "a signal asked the run to end, and the step under way would take too long"


class Watchdog:
    """Ends a wait in which nothing moves: verl waits forever for an engine that hangs.

    While the trainer waits for rollouts, `see` gets what moves when work gets done, as the number
    of finished groups, at every look; HungError once it has stood for `seconds`. Elsewhere, as
    while weights are handed over, the trainer cannot look: there a thread (`guard`) ends its
    process a little later than `seconds` after the last `begin`, which every part of a step calls,
    and `DEAD` seconds after the death of an engine of its node or of an actor, if nothing has begun
    since then.
    `clock` counts seconds and never goes back.
    """

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self.clock = seconds, clock
        self.died: float | None = None  # when something was first seen to be dead
        self.begin()

    def begin(self) -> None:
        """A new wait."""
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

    def overdue(self) -> str | None:
        """Why the process must end; None: it may go on. `see` comes first where it is called."""
        stood = self.clock() - self.since
        if stood <= GUARD * self.seconds:
            return None
        return (
            f"nothing has moved for {stood:.0f} s outside of the rollouts "
            f"(recipe.rollout.hang_seconds={self.seconds:.0f}): an engine or an actor hangs, or a "
            "part of a step takes longer than that"
        )

    def without(self, lost: str) -> str | None:
        """Why the process must end, where `lost` names what has ended, "" nothing; None: go on."""
        if lost and self.died is None:
            self.died = self.clock()
        if self.died is None or self.since >= self.died or self.clock() - self.died <= DEAD:
            return None
        return (
            f"{lost} has ended, and nothing has moved in the {self.clock() - self.died:.0f} s "
            "since: it was killed, perhaps for lack of memory, or has crashed"
        )

    def guard(
        self,
        run_dir: Path,
        lost_actors: Callable[[], list[str]] = list,
        end: Callable[[int], object] = os._exit,
    ) -> None:
        """In a thread of the trainer's process: `end` it when it is overdue, the reason on disk.

        `lost_actors` gives the names of those of Ray's actors that have ended.
        """
        engines = processes.engines(str(run_dir))
        while True:
            dead = any(map(processes.is_dead, engines))
            engine = f"an engine's process ({processes.ENGINE}EngineCore)" if dead else ""
            if reason := self.overdue() or self.without(engine or ", ".join(lost_actors())):
                break
            time.sleep(min(self.seconds / 10, 10))
        write_text(RunFolder(run_dir).hung, reason)
        end(1)


class Signals:
    """What the launching process does at SIGTERM; `run_dir` belongs to it alone (its lock).

    `say` shows a line to the user; `leave` ends the process with a code and a word, from any
    thread.
    """

    def __init__(
        self,
        run_dir: Path,
        say: Callable[[str], None] = print,
        leave: Callable[[int, str], object] = lambda code, _: os._exit(code),
    ) -> None:
        self.folder, self.say, self.leave = RunFolder(run_dir), say, leave
        self.first: float | None = None
        self.code: int | None = None  # what the handler has asked to end with
        for path in (self.folder.stop_request, self.folder.stepping, self.folder.hung):
            path.unlink(missing_ok=True)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Take SIGTERM inside, and end with the code that the handler asked for.

        Its SystemExit may be raised inside ray.get, which ends with SystemExit(1) whatever the
        code was. Ray's own handler, which ray.init sets and which stands until `listen` is called
        again, exits with the signal's number. StoppedError where there was no step to save,
        SystemExit otherwise. A thread ends the run where the exception is lost (`_see_to_it`).
        """
        over = threading.Event()
        seen, tells = os.pipe()
        os.set_blocking(tells, False)
        before = signal.set_wakeup_fd(tells, warn_on_full_buffer=False)
        threading.Thread(target=self._see_to_it, args=(seen, over), daemon=True).start()
        self.listen()
        try:
            yield
        except SystemExit as end:
            rays = self.code is None and end.code == signal.SIGTERM
            if rays or self.code == AGAIN:
                raise StoppedError(NOTHING_SAVED) from end
            if self.code is None:
                raise
            raise SystemExit(self.code) from end
        finally:
            over.set()
            signal.set_wakeup_fd(before)
            os.close(tells)

    def listen(self) -> None:
        """Take SIGTERM; again after everything that takes it away, as ray.init does."""
        signal.signal(signal.SIGTERM, self._handle)

    def _handle(self, *_: Any) -> None:
        now = time.monotonic()
        if self.first is None:
            self.first = now
            if not self.folder.stepping.exists():
                self._end(AGAIN)  # nothing to save
            self._ask()
        elif now - self.first > SAME:
            self._end(KILLED)

    def _ask(self) -> None:
        """Ask the trainer to save and end."""
        write_text(self.folder.stop_request, str(os.getpid()))
        self.say("recipe.train: SIGTERM: saving, then the end")

    def _end(self, code: int) -> NoReturn:
        self.code = code
        sys.exit(code)

    def _see_to_it(self, seen: int, over: threading.Event) -> None:
        """In a thread: a SIGTERM whose exception was lost ends the run nevertheless.

        Python drops an exception that a handler raises inside a callback, as that of a fork or of a
        collection of garbage, whoever's handler it is: ray.init forks, and a run that was asked to
        end continued to its last step. The interpreter writes every signal's number into the pipe.
        """
        with os.fdopen(seen, "rb", buffering=0) as signals:
            while told := signals.read(1):
                if told[0] != signal.SIGTERM or over.wait(GRACE):
                    continue
                if self.code is None and self.folder.stepping.exists():
                    if not self.folder.stop_request.exists():
                        self._ask()
                elif self.code == KILLED:
                    self.leave(KILLED, "a second SIGTERM")
                else:
                    self.leave(AGAIN, EARLY + NOTHING_SAVED)


class AfterRay:
    """A Ray actor class that calls `then` before an actor is made of it.

    Handed to verl's run_ppo, which makes the actor right after its ray.init.
    """

    def __init__(self, actor_class: Any, then: Callable[[], None]) -> None:
        self.actor_class, self.then = actor_class, then

    def options(self, **keywords: Any) -> "AfterRay":
        return AfterRay(self.actor_class.options(**keywords), self.then)

    def remote(self, *arguments: Any, **keywords: Any) -> Any:
        self.then()
        return self.actor_class.remote(*arguments, **keywords)


def steps_begin(run_dir: Path) -> None:
    """From now on a signal lets the trainer save before the end."""
    write_text(RunFolder(run_dir).stepping, "")
