"""No process outlives its run: Ray's and vLLM's children are found by a mark in their environment.

A run starts Ray, Ray starts workers, a worker starts vLLM engines; a killed run leaves them behind,
gigabytes each. Every descendant inherits the variable `MARK`, so they can be found whatever their
parents are. A small reaper process waits for the end of its input, which is the end of the run in
any way, SIGKILL too, and then ends all that carry the mark.

    python -m recipe.run.processes MARK_VALUE      # the reaper
"""

import contextlib
import os
import signal
import subprocess
import sys
import time

import psutil

from recipe.run.environment import RUN_DIR as MARK

HEAD = "gcs_server"
ENGINE = "VLLM::"  # how vLLM's own titles of its processes begin: VLLM::EngineCore


def marked(value: str) -> list[psutil.Process]:
    """The live processes, without this one, whose environment has ``MARK=value``."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(MARK) == value:
                found.append(process)
        except psutil.Error:  # gone meanwhile, or another user's
            continue
    return found


def engines(value: str) -> list[psutil.Process]:
    """The processes of vLLM's engines on this node that belong to the run of `value`.

    Without those that an engine has started itself: workers end with it, and a child that was
    forked for a moment has its name, too.
    """
    found = []
    for process in marked(value):
        with contextlib.suppress(psutil.Error):
            parent = process.parent()
            if _is_engine(process) and not (parent and _is_engine(parent)):
                found.append(process)
    return found


def heads(value: str) -> list[psutil.Process]:
    """Ray's head process of the run of `value`; none where the run has joined a Ray of others."""
    found = []
    for process in marked(value):
        with contextlib.suppress(psutil.Error):
            if process.name() == HEAD:
                found.append(process)
    return found


def _is_engine(process: psutil.Process) -> bool:
    return (process.cmdline() or [""])[0].startswith(ENGINE)


def is_dead(process: psutil.Process) -> bool:
    """Whether a process has ended, also where its parent has not taken notice yet."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


def end(value: str, patience: float = 5.0) -> int:
    """End every process with the mark: SIGTERM, then after `patience` seconds SIGKILL.

    Returns how many there were.
    """
    processes = marked(value)
    for process in processes:
        try:
            process.terminate()
        except psutil.Error:
            continue
    _, alive = psutil.wait_procs(processes, timeout=patience)
    for process in alive:
        try:
            process.kill()
        except psutil.Error:
            continue
    psutil.wait_procs(alive, timeout=patience)
    return len(processes)


def start_reaper(value: str) -> subprocess.Popen:
    """Start the reaper; it lives until this process ends or closes the returned ``stdin``."""
    # Without the mark, so that `end` spares it, and in a session of its own, so that Ctrl-C does.
    environment = {k: v for k, v in os.environ.items() if k != MARK}
    return subprocess.Popen(
        [sys.executable, "-m", "recipe.run.processes", value],
        stdin=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )


def main() -> None:
    # SLURM signals every process of a job; this one must outlive the run.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.stdin.buffer.read()
    time.sleep(0.5)  # a run that ended by itself has ended its children in this time
    end(sys.argv[1])


if __name__ == "__main__":
    main()
