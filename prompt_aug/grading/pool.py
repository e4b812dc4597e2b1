"""A pool of killable math-verify processes, safe to call from any thread, actor or fork.

A worker is a subprocess with pipes (no `multiprocessing`: nothing re-imports `__main__`, nothing
forks a threaded trainer). Workers start when first needed and only as many as are busy at once.
The time limit of a request starts when a worker is free.
"""

import atexit
import json
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from prompt_aug.base.errors import UserError
from prompt_aug.base.forks import FOREIGN, is_readable, read_reply

Item = TypeVar("Item")
Result = TypeVar("Result")
_WORKER, _ROOT = Path(__file__).with_name("worker.py"), Path(__file__).parents[2]
# If PATH has a relative entry, `sys.executable` is relative; a worker starts in another folder.
_PYTHON = str(Path(sys.executable).absolute())
_START_SECONDS = 300.0  # an import of sympy: 2 s, and over 120 s seen at a load of 50 on two cores
_SLACK_SECONDS = 10.0  # the kernel ends a request first; this is for a worker that is itself stuck
_KEPT_ENVIRONMENT = (
    "PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "PYTHONPATH", "PYTHONHOME", "PYTHONPYCACHEPREFIX",
)  # fmt: skip


class GraderError(UserError, RuntimeError):
    """The grader itself cannot work here; never raised because of an answer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolSettings:
    """Size and limits. CPU seconds decide; wall seconds only end a process that sleeps.

    `command` starts a worker. With `environment` it runs the user's code: it has these variables
    instead of the grader's few, and its output goes to the caller's stderr.
    """

    workers: int
    cpu_seconds: float = 2.0
    wall_seconds: float = 180.0
    memory_bytes: int = 1 << 30
    command: tuple[str, ...] = (str(_WORKER),)
    environment: Mapping[str, str] | None = None

    @classmethod
    def from_environment(cls) -> "PoolSettings":
        """Read `PROMPT_AUG_GRADING_WORKERS`; the default is the usable cores, at most 8."""
        name = "PROMPT_AUG_GRADING_WORKERS"
        text = os.environ.get(name) or str(min(8, len(os.sched_getaffinity(0))))
        if not text.isdecimal() or int(text) < 1:  # without a worker every answer would wait
            raise GraderError(f"{name}={text!r} is not a positive number; set it to 1 or more")
        return cls(workers=int(text))


class _Worker:
    def __init__(self, settings: PoolSettings) -> None:
        self._settings = settings
        limits = (settings.cpu_seconds, settings.wall_seconds, settings.memory_bytes)
        self._own = settings.environment is not None
        kept = {k: os.environ[k] for k in _KEPT_ENVIRONMENT if k in os.environ}
        kept["PYTHONPATH"] = os.pathsep.join([*filter(None, [kept.get("PYTHONPATH")]), str(_ROOT)])
        # A fixed hash seed makes sympy's orderings, hence its verdicts, the same in every run.
        environment = {**(settings.environment or kept), "PYTHONHASHSEED": "0"}
        try:
            self.process = subprocess.Popen(
                [_PYTHON, "-P", *settings.command, *map(str, limits)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if self._own else subprocess.DEVNULL,
                env=environment,
                cwd=None if self._own else "/",
                start_new_session=True,
            )
        except OSError as error:  # not a fault of the answer
            raise GraderError(f"the grading worker {_PYTHON} cannot start: {error}") from error
        self._check_ready()

    def _check_ready(self) -> None:
        line = read_reply(self.replies, b"", _START_SECONDS)
        try:
            warm = json.loads(line)["ready"] if line else ["it did not start"]
        except (ValueError, TypeError, KeyError):  # an import wrote to every descriptor
            warm = [f"{line!r:.80} is no reply"]
        if "correct" not in warm:
            self.kill()
            if self._own and not line:
                raise GraderError(
                    f"the process that imports the functions ended with {self.process.returncode} "
                    f"or took over {_START_SECONDS:.0f} s: {' '.join(self._settings.command[2:])}. "
                    "Import their modules in a Python of your own to see why"
                )
            if self._own:
                raise GraderError(warm[0])
            raise GraderError(
                f"the grading worker cannot use math-verify: {warm[0]}. Check it with "
                f"`{_PYTHON} -c 'import math_verify'`, then install math-verify==0.9.0"
            )

    @property
    def replies(self) -> int:
        """The descriptor of its replies. Raises ValueError if `kill` has closed it."""
        assert self.process.stdout is not None
        return self.process.stdout.fileno()

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the reply, which begins with the random token sent; None if the worker is lost."""
        assert self.process.stdin is not None
        limit, token = self._settings.wall_seconds + _SLACK_SECONDS, secrets.token_hex(16).encode()
        end = time.monotonic() + limit
        try:
            self.process.stdin.write(token + b" " + json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
            line = read_reply(self.replies, token, limit)
        except (OSError, ValueError):  # ValueError: `kill` has closed the pipe
            return None
        whole = b"\n" in line
        if not whole and time.monotonic() >= end:  # what it runs has reset the kernel's timer
            self.kill()
            return {"status": "timeout", "detail": "wall"}
        if not whole or not line.startswith(token):
            return None
        with suppress(ValueError, RecursionError):
            reply = json.loads(line.removeprefix(token))
            if isinstance(reply, dict) and reply.keys() >= FOREIGN.keys():
                return reply
        return FOREIGN

    def kill(self) -> None:
        """End the worker and the process that it forked."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        self.process.wait()


class WorkerPool:
    """At most `settings.workers` processes; `ask` blocks until one is free and has answered."""

    def __init__(self, settings: PoolSettings) -> None:
        self.settings = settings
        self.owner = os.getpid()  # a fork must not use the pipes
        self._free = threading.Semaphore(settings.workers)
        self._idle: list[_Worker] = []  # its append and pop are atomic
        self._closed = False

    @contextmanager
    def _worker(self) -> Iterator[_Worker]:
        """Yield an idle worker or a new one; kill it if the block raises."""
        with self._free:
            if self._closed:
                raise GraderError("the grading pool is closed; make a new one")
            try:
                worker = self._idle.pop()
                if is_readable(worker.replies):  # it is dead, or a call has written there since
                    worker.kill()
                    worker = _Worker(self.settings)
            except IndexError:
                worker = _Worker(self.settings)
            try:
                yield worker
            except BaseException:
                worker.kill()
                raise
            if worker.process.poll() is None:
                self._idle.append(worker)
            if self._closed:
                self._kill_idle()

    def _kill_idle(self) -> None:
        with suppress(IndexError):
            while True:
                self._idle.pop().kill()

    def start(self) -> None:
        """Start a worker if none is idle. Raises GraderError if that cannot work here."""
        with self._worker():
            pass

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return a worker's reply. A lost worker is replaced and the request is made once more."""
        for _ in range(2):
            with self._worker() as worker:
                reply = worker.ask(request)
                if reply is None or worker.process.poll() is not None:
                    worker.kill()  # it may reply that it was killed
            if reply is not None:
                return reply
        return {"status": "error", "detail": "two workers were lost"}

    def map(
        self,
        function: Callable[[Item], Result],
        items: Iterable[Item],
        on_result: Callable[[Result], object] | None = None,
    ) -> list[Result]:
        """Call `function`, which uses this pool, in a thread per worker; results are in order."""

        def call(item: Item) -> Result:
            result = function(item)
            if on_result is not None:
                on_result(result)
            return result

        with ThreadPoolExecutor(max_workers=self.settings.workers) as threads:
            return list(threads.map(call, items))

    def close(self) -> None:
        """End every idle worker now and every busy one when it has answered."""
        self._closed = True
        if os.getpid() == self.owner:
            self._kill_idle()


_pool: WorkerPool | None = None
_pool_lock = threading.Lock()


def default_pool() -> WorkerPool:
    """Return the pool of this process, created on first use and again after a fork."""
    global _pool
    with _pool_lock:
        if _pool is None or _pool.owner != os.getpid():
            _pool = WorkerPool(PoolSettings.from_environment())
            atexit.register(_pool.close)
        return _pool


def _after_fork_in_child() -> None:
    global _pool, _pool_lock
    _pool, _pool_lock = None, threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)
