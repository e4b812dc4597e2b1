"""End every process of a run, Ray's and vLLM's included, by an environment variable.

A killed run leaves Ray, its workers and vLLM engines behind, gigabytes each. Every descendant
inherits the variable `MARK`, whatever its parent is. A small reaper process reads its standard
input, which closes when the run ends for any reason, even SIGKILL. The reaper then ends all marked
processes.

    python -m recipe.run.processes MARK_VALUE      # the reaper
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

import psutil

from recipe.machine.environment import RUN_DIR as MARK

HEAD = "gcs_server"
ENGINE = "VLLM::"  # first characters of the titles of vLLM's processes: VLLM::EngineCore


def _where(
    processes: Iterable[psutil.Process], holds: Callable[[psutil.Process], bool]
) -> list[psutil.Process]:
    matches = []
    for process in processes:
        with contextlib.suppress(psutil.Error):  # gone meanwhile, or another user's
            if holds(process):
                matches.append(process)
    return matches


def marked(value: str) -> list[psutil.Process]:
    """Return the live processes, without this one, whose environment has ``MARK=value``."""
    own = os.getpid()
    return _where(psutil.process_iter(), lambda p: p.pid != own and p.environ().get(MARK) == value)


def engines(value: str) -> list[psutil.Process]:
    """Return the outermost processes of vLLM's engines of the run `value` on this node."""

    def has_title(process: psutil.Process) -> bool:
        return (process.cmdline() or [""])[0].startswith(ENGINE)

    def is_outermost(process: psutil.Process) -> bool:
        parent = process.parent()  # its title stays on a child that was just forked
        return has_title(process) and not (parent and has_title(parent))

    return _where(marked(value), is_outermost)


def heads(value: str) -> list[psutil.Process]:
    """Return Ray's head process of the run of `value`; none if it joined another run's Ray."""
    return _where(marked(value), lambda process: process.name() == HEAD)


def is_dead(process: psutil.Process) -> bool:
    """Return whether a process has ended, even if its parent has not waited for it yet."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def end(value: str, patience: float = 5.0) -> int:
    """End every marked process: SIGTERM, SIGKILL after `patience` seconds; return their count."""
    processes = alive = marked(value)
    for name in ("terminate", "kill"):
        for process in alive:
            with contextlib.suppress(psutil.Error):
                getattr(process, name)()
        _, alive = psutil.wait_procs(alive, timeout=patience)
    return len(processes)


def start_reaper(value: str) -> subprocess.Popen:
    """Start the reaper; it lives until this process ends or closes the returned ``stdin``."""
    # Unmarked, so that `end` spares it; in its own session, so that Ctrl-C does.
    environment = {k: v for k, v in os.environ.items() if k != MARK}
    return subprocess.Popen(
        [sys.executable, "-m", "recipe.run.processes", value],
        stdin=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )


def main() -> None:
    # SLURM signals every process of a job; this one must outlive the run.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()
    time.sleep(0.5)  # a run that ends by itself ends its children in this time
    end(sys.argv[1])


if __name__ == "__main__":
    main()
