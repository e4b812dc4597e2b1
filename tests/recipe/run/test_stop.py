"""When a run ends before its last step, by a signal or by the clock."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from recipe.run import processes, progress, stop
from recipe.run.folder import RunFolder
from recipe.run.stop import Limit, StopRequest, Watchdog


class Clock:
    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def limit(folder: Path, deadline: float | None, steps: list[float], save: float) -> Limit:
    """A limit that has seen `steps`, each with seconds, and one save."""
    clock = Clock()
    made = Limit(folder, deadline, clock)
    for seconds in steps:
        made.begin_step()
        clock.now += seconds - 0.5
        made.end_step()
        clock.now += 0.5
        made.sent(0.5)  # of the step's seconds, those in which its weights are sent
    made.saved(save)
    made.saved(save / 2)  # the longest counts
    made.begin_step()
    return made


@pytest.mark.parametrize(
    ("deadline", "steps", "save", "stops"),
    [
        (None, [1e9], 1e9, False),
        # Steps of 100 and 50 s, a save of 20 s: the next may take 1.2 x (100 + 20) = 144 s.
        (1150 + 144, [100, 50], 20, False),
        (1150 + 143, [100, 50], 20, True),
        # Only the latest ten steps count.
        (1000 + 500 + 10 * 10 + 15, [500] + [10] * 10, 0, False),
        (1000 + 500 + 9 * 10 + 15, [500] + [10] * 9, 0, True),
        (1001, [], 0, False),  # before any step is measured one is tried
    ],
)
def test_a_step_that_would_not_fit_is_not_begun(
    tmp_path: Path, deadline: float | None, steps: list[float], save: float, stops: bool
) -> None:
    made = limit(tmp_path, deadline, steps, save)
    reason = made.after_step()
    assert bool(reason) == stops
    assert made.in_step() is None and made.in_validation() is None
    if deadline == 1293:
        assert "143 s are left" in str(reason) and "may take 144 s" in str(reason)


def test_a_validation_leaves_time_for_the_save(tmp_path: Path) -> None:
    for left, cut in ((25, False), (23, True)):
        assert bool(limit(tmp_path, 1150 + left, [100, 50], 20).in_validation()) == cut
    StopRequest.create(tmp_path)
    assert limit(tmp_path, None, [], 0).in_validation() == "a signal asked the run to end"


def test_a_signal_ends_after_the_step_unless_that_would_be_too_late(tmp_path: Path) -> None:
    StopRequest.create(tmp_path)
    for deadline, ends_at_once in ((None, False), (1282, False), (1281, True)):
        made = limit(tmp_path, deadline, [100, 50], 20)
        assert made.after_step() == "a signal asked the run to end"
        assert bool(made.in_step()) == ends_at_once
    assert limit(tmp_path, 9999, [], 0).in_step()  # the first step: unknown, so at once


def test_a_preemption_brings_the_deadline_forward(tmp_path: Path) -> None:
    for left, ends_at_once in (("", False), ("500", False), ("100", True), ("-7", True)):
        text = str(time.time() + int(left)) if left else ""  # "": being written
        RunFolder(tmp_path).stop_request.write_text(text)
        StopRequest.create(tmp_path)  # by the launching process, which changes no deadline
        assert bool(limit(tmp_path, 9999, [100, 50], 20).in_step()) == ends_at_once
    RunFolder(tmp_path).stop_request.write_text(str(time.time() + 9e5))  # of a time limit
    assert limit(tmp_path, 1200, [100, 50], 20).in_step()  # the job's own is earlier


def test_the_deadline_comes_from_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(stop.DEADLINE, raising=False)
    assert Limit.of(tmp_path).deadline is None
    monkeypatch.setenv(stop.DEADLINE, "1234.5")
    monkeypatch.setattr(time, "time", lambda: 1200.0)
    monkeypatch.setattr(time, "monotonic", lambda: 7.0)
    assert Limit.of(tmp_path).deadline == 7 + 34.5


def test_a_save_is_guessed_before_one_is_measured(tmp_path: Path) -> None:
    for left, stops in ((144, False), (143, True)):
        made = limit(tmp_path, 1150 + left, [100, 50], 0)
        made.saves.clear()
        made.expect(20)
        assert bool(made.after_step()) == stops
    made.deadline = 1150 + 23
    assert made.in_validation()
    made.deadline = 1150 + 120
    StopRequest.create(tmp_path)
    assert not made.in_step()  # a save that is shorter than guessed would fit
    RunFolder(tmp_path).stop_request.unlink()
    made.steps.clear()
    made.deadline = 1151
    assert not made.in_validation()  # nothing to save


def test_saves_are_known_to_later_starts_and_a_killed_first_one_doubles_the_guess(
    tmp_path: Path,
) -> None:
    assert Limit.of(tmp_path).save == 0
    for guess in (20, 40, 80):  # three jobs, each killed in its save
        Limit.of(tmp_path).expect(20)
        assert Limit.of(tmp_path).save == guess
        Limit.of(tmp_path).begin_save()
    for seconds, longest in ((7, 7), (9, 9), (8, 9)):
        made = Limit.of(tmp_path)
        made.begin_save()
        made.saved(seconds)
        assert Limit.of(tmp_path).save == longest
    Limit.of(tmp_path).expect(20)
    assert Limit.of(tmp_path).save == 9
    RunFolder(tmp_path).saves.write_text("{")
    assert Limit.of(tmp_path).save == 0


def hung(run_dir: Path) -> str:
    record = progress.find(run_dir, progress.HUNG)
    return record["why"] if record else ""


def test_a_process_without_progress_ends(tmp_path: Path) -> None:
    clock, ended = Clock(), []
    dog = Watchdog(100, clock)
    for work in ((0, 0), (1, 0), (1, 1)):
        dog.see(work)
        clock.now += 100
        dog.see(work)  # a group every 100 s is slow, and moves
        assert dog.overdue() is None
    dog.begin()  # another part of a step
    clock.now += 100
    assert dog.overdue() is None
    dog.see((1, 1))
    clock.now += 1
    dog.guard(tmp_path, end=ended.append)
    assert ended == [1]
    text = "nothing has moved for 101 s (recipe.rollout.hang_seconds=100)"
    assert hung(tmp_path).startswith(text)


@pytest.mark.parametrize(
    ("engine_dead", "lost", "text"),
    [
        ([False, False, True, True], [[]] * 4, "an engine's process (VLLM::EngineCore) has ended"),
        ([False] * 5, [[], [], ["queue"], ["queue"], ["queue", "worker"]], "queue, worker has end"),
    ],
)
def test_the_guard_sees_a_dead_engine_or_actor(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    engine_dead: list[bool],
    lost: list[list[str]],
    text: str,
) -> None:
    clock, ended, looks, actors = Clock(), [], iter(engine_dead), iter(lost)

    def dead(_: object) -> bool:
        clock.now += 1
        return next(looks)

    monkeypatch.setattr(stop, "DEAD", 0.0 if True in engine_dead else 1.5)
    monkeypatch.setattr(stop.processes, "engines", lambda run: [run])
    monkeypatch.setattr(stop.processes, "is_dead", dead)
    monkeypatch.setattr(time, "sleep", lambda _: None)
    dog = Watchdog(1e9, clock)
    dog.guard(tmp_path, lambda: next(actors), ended.append)
    assert ended == [1]
    assert hung(tmp_path).startswith(text)
    assert list(looks) == []


PROGRAM = """
import signal, sys, time
from pathlib import Path
from recipe.run import progress, stop
folder, what = Path(sys.argv[1]), sys.argv[2]
stop.SAME = 0.5

def failing(run_dir):
    raise OSError("the disk is full")

def slow(run_dir, create=stop.StopRequest.create):
    time.sleep(0.8)
    create(run_dir)

class Callback:
    def __del__(self):  # what a handler raises here is dropped
        print("ready", flush=True)
        time.sleep(30)

signal.signal(signal.SIGHUP, signal.SIG_IGN if "nohup" in what else signal.SIG_DFL)
stop.SignalHandler(folder)
if "step" in what:
    progress.reached(folder, progress.TRAINING, step=0)
if "full" in what or "slow" in what:
    stop.StopRequest.create = failing if "full" in what else slow
if "callback" in what:
    Callback()
print("ready", flush=True)
time.sleep(30)
"""


def launched(folder: Path, what: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(folder), what], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def within(seconds: float, condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("what", ["", "callback"])
def test_before_the_first_step_a_signal_ends_at_once(
    tmp_path: Path, what: str, number: signal.Signals
) -> None:
    process = launched(tmp_path, what)
    process.send_signal(number)
    assert process.wait(20) == 75
    assert StopRequest.read(tmp_path) is None


def test_a_run_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    process = launched(tmp_path, "nohup")
    process.send_signal(signal.SIGHUP)
    time.sleep(0.3)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 75


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_during_steps_is_left_to_the_trainer_and_a_second_one_is_not(
    tmp_path: Path, number: signal.Signals
) -> None:
    StopRequest.create(tmp_path)  # of the run before
    process = launched(tmp_path, "step")
    assert StopRequest.read(tmp_path) is None
    process.send_signal(number)
    assert within(20, RunFolder(tmp_path).stop_request.exists)
    os.kill(process.pid, signal.SIGTERM)  # SLURM signals every process, and so does the script
    time.sleep(0.7)
    assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 143


def test_an_echo_is_none_when_the_request_took_long_to_write(tmp_path: Path) -> None:
    process = launched(tmp_path, "step, slow")
    for _ in range(3):
        process.send_signal(signal.SIGTERM)
        time.sleep(0.1)
    assert within(20, RunFolder(tmp_path).stop_request.exists)
    time.sleep(0.3)
    assert process.poll() is None
    process.kill()
    process.wait()


def test_a_signal_ends_a_run_that_cannot_be_asked_to_save(tmp_path: Path) -> None:
    process = launched(tmp_path, "step, full")
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 1


# ------------------------------------------------------------------------- processes
# Processes of a run are found by their mark and ended, also when the run was killed.


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
    orphan = psutil.Process(int(run.stdout.readline()))
    run.kill()
    run.wait()
    assert within(20, lambda: processes.is_dead(orphan))
