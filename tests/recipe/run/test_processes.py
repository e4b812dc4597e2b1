"""Processes of a run are found by their mark and ended, also when the run was killed."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from recipe.run import processes

SLEEPER = (
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
    "print(flush=True); time.sleep(120)"
)


def sleeper(mark: str) -> subprocess.Popen:
    environment = {**os.environ, processes.MARK: mark}
    process = subprocess.Popen(
        [sys.executable, "-c", SLEEPER], env=environment, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    process.stdout.readline()  # it ignores SIGTERM from here on
    return process


def wait_gone(pid: int, seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.05)
    return False


def test_end_kills_the_marked_and_only_those(tmp_path: Path) -> None:
    mine, foreign = sleeper(str(tmp_path / "a")), sleeper(str(tmp_path / "b"))
    try:
        assert processes.end(str(tmp_path / "a"), patience=0.5) == 1
        mine.wait(20)
        assert foreign.poll() is None
    finally:
        for process in (mine, foreign):
            process.kill()
            process.wait()


def test_a_process_does_not_find_itself(tmp_path: Path) -> None:
    program = "import os; from recipe.run.processes import *; print(marked(os.environ[MARK]))"
    environment = {**os.environ, processes.MARK: str(tmp_path)}
    match = subprocess.check_output([sys.executable, "-c", program], env=environment, text=True)
    assert match == "[]\n"


@pytest.mark.config
def test_reaper_cleans_up_after_a_sigkill(tmp_path: Path) -> None:
    mark = str(tmp_path / "run")
    program = (
        "import subprocess, sys, time; from recipe.run import processes\n"
        "reaper = processes.start_reaper(sys.argv[1])\n"
        f"child = subprocess.Popen([sys.executable, '-c', {SLEEPER!r}])\n"
        "print(child.pid, flush=True); time.sleep(120)"
    )
    run = subprocess.Popen(
        [sys.executable, "-c", program, mark],
        env={**os.environ, processes.MARK: mark},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.stdout is not None
    orphan = int(run.stdout.readline())
    run.kill()
    run.wait()
    assert wait_gone(orphan)


def engine(mark: str, *, child: str = "sleep 60") -> subprocess.Popen:
    """A process with the title of an engine, which has a child with the same title."""
    program = f"bash -c 'exec -a VLLM::EngineCore {child}' & echo; wait"
    return subprocess.Popen(
        ["bash", "-c", f"exec -a VLLM::EngineCore bash -c '{program.replace(chr(39), chr(34))}'"],
        env={**os.environ, processes.MARK: mark}, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip


def test_the_engines_of_a_run_are_found_and_seen_to_die(tmp_path: Path) -> None:
    mine, foreign = engine(str(tmp_path / "a")), engine(str(tmp_path / "b"))
    plain = sleeper(str(tmp_path / "a"))
    try:
        assert mine.stdout is not None
        mine.stdout.readline()  # its child is there
        deadline = time.monotonic() + 20
        titles: list[str] = []
        while titles != ["VLLM::EngineCore"] and time.monotonic() < deadline:
            children = psutil.Process(mine.pid).children()
            titles = [(child.cmdline() or [""])[0] for child in children]
        assert titles == ["VLLM::EngineCore"]
        (match,) = processes.engines(str(tmp_path / "a"))
        assert match.pid == mine.pid
        assert not processes.is_dead(match)
        mine.kill()  # nobody has waited for it: it is a zombie now
        assert wait_gone(mine.pid)
        assert processes.is_dead(match)
        mine.wait()
        assert processes.is_dead(match)
    finally:
        plain.kill()
        plain.wait()
        for process in (mine, foreign):
            processes.end(str(tmp_path / ("a" if process is mine else "b")), patience=0.5)
            process.wait()
