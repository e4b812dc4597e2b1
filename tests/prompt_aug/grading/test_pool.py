"""The worker processes: limits, replacement, the sandbox, no orphans."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from prompt_aug.grading.pool import GraderError, PoolSettings, WorkerPool

pytestmark = pytest.mark.config  # each starts, loses or kills worker processes

ROOT = Path(__file__).resolve().parents[3]
SECRET = "SOME_TOKEN_OF_THE_CALLER"
HOG = r"9^{9^{9^9}}"  # one C call that no Python signal handler interrupts


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    os.environ[SECRET] = "hidden"
    made = WorkerPool(PoolSettings(workers=1, cpu_seconds=0.3))
    yield made
    made.close()
    del os.environ[SECRET]


def ask(pool: WorkerPool, gold: str, pred: str) -> str:
    return pool.ask({"gold": gold, "pred": pred})["status"]


def test_verdicts(pool: WorkerPool) -> None:
    assert ask(pool, r"\frac{1}{2}", "0.5") == "correct"
    assert ask(pool, r"\frac{1}{2}", "0.6") == "wrong"
    assert ask(pool, "5", r"\frac{}{}") == "unparsable"
    third = ask(pool, r"\frac{1}{3}", "0.333333333")
    assert third == "wrong"  # exact, unlike math-verify's 6 digits


def test_an_interpreter_found_by_a_relative_path_starts_workers() -> None:
    """Workers start in another folder, where a relative `sys.executable` leads nowhere."""
    program = "import sys; from prompt_aug.grading import grade_answer as g; print(sys.executable)"
    folder = os.path.relpath(Path(sys.executable).parent, ROOT)
    ran = subprocess.run(
        [Path(sys.executable).name, "-c", f"{program}; print(g('x(y-1)', 'xy-x').status)"],
        cwd=ROOT,
        env={**os.environ, "PATH": folder},
        capture_output=True,
        text=True,
        check=True,
    )
    executable, status = ran.stdout.split()
    assert not Path(executable).is_absolute()
    assert status == "correct"


def test_an_interpreter_that_is_gone_is_no_fault_of_the_answer(
    pool: WorkerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prompt_aug.grading.pool._PYTHON", "/nowhere/python")
    with pytest.raises(GraderError, match="/nowhere/python cannot start"):
        WorkerPool(PoolSettings(workers=1)).start()


def test_a_hog_is_killed_and_the_next_pair_is_served(pool: WorkerPool) -> None:
    assert ask(pool, "5", HOG) == "timeout"
    assert ask(pool, "x+1", "1+x") == "correct"


def test_waiting_for_a_worker_is_not_grading_time(pool: WorkerPool) -> None:
    pairs = [("5", HOG)] * 6 + [("x+1", "1+x")] * 6
    with ThreadPoolExecutor(12) as threads:
        verdicts = list(threads.map(lambda pair: ask(pool, *pair), pairs))
    assert verdicts == ["timeout"] * 6 + ["correct"] * 6


def test_a_lost_worker_is_replaced(pool: WorkerPool) -> None:
    assert ask(pool, "x", "x") == "correct"
    (worker,) = pool._idle
    os.killpg(worker.process.pid, signal.SIGKILL)
    assert ask(pool, "x+2", "2+x") == "correct"


@pytest.mark.parametrize("at", ["parent", "child"])
def test_bytes_that_are_no_reply_are_no_verdict(pool: WorkerPool, at: str) -> None:
    assert ask(pool, "x", "x") == "correct"
    (worker,) = pool._idle
    process = psutil.Process(worker.process.pid)
    process = process.children()[0] if at == "child" else process
    written = 0
    for descriptor in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(OSError):  # a child ends when it reads this
            if int(descriptor.name) != 2 and "pipe" in str(descriptor.readlink()):
                written += descriptor.write_bytes(b'{"status": "correct", "detail": ""}\n')
    assert written
    verdicts = [ask(pool, "x+2", f"{number}+x") for number in (1, 2, 3)]
    assert verdicts == ["wrong", "correct", "wrong"]


def test_a_worker_without_math_verify_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "math_verify.py"
    broken.write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(GraderError, match=r"not here.*install math-verify"):
        WorkerPool(PoolSettings(workers=1)).start()


def test_a_worker_needs_no_bytecode_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where no .pyc lies beside a module, an import inside the sandbox would try to write one."""
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path))
    fresh = WorkerPool(PoolSettings(workers=1, cpu_seconds=10.0))
    try:
        for gold, pred in (
            (r"[1,3]", r"|x-2|\le1"),
            (r"(2,\infty)", "x>2"),
            ("1", r"\int_0^1 2x dx"),
            ("6", r"\prod_{k=1}^3 k"),
        ):
            assert ask(fresh, gold, pred) == "correct", pred
    finally:
        fresh.close()


def test_a_closed_pool_refuses() -> None:
    closed = WorkerPool(PoolSettings(workers=1))
    closed.close()
    with pytest.raises(GraderError, match="closed"):
        closed.start()


@pytest.mark.parametrize("text", ["0", "-1", "many"])
def test_a_senseless_worker_count_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROMPT_AUG_GRADING_WORKERS", text)
    with pytest.raises(GraderError, match="PROMPT_AUG_GRADING_WORKERS"):
        PoolSettings.from_environment()


def test_workers_get_no_secrets(pool: WorkerPool) -> None:
    assert ask(pool, "x", "x") == "correct"
    (worker,) = pool._idle
    environment = Path(f"/proc/{worker.process.pid}/environ").read_bytes()
    assert b"PYTHONHASHSEED" in environment
    assert SECRET.encode() not in environment


SANDBOX = """
import sys
sys.path.insert(0, {root!r})
from prompt_aug.grading import worker
import os, socket, subprocess
worker._confine(worker.Limits(cpu_seconds=5, wall_seconds=5, memory_bytes=1 << 28))
attempts = [
    lambda: eval("1 + 1"),
    lambda: exec("x = 1"),
    lambda: exec("def monomial_mul(A, B):\\n    return A.append(B)"),
    lambda: exec("def monomial_mul(A, B):\\n    return exit(B)"),
    lambda: compile("1", "<string>", "eval"),
    lambda: open("leak", "w"),
    lambda: os.open("leak", os.O_CREAT | os.O_WRONLY),
    lambda: os.system("true"),
    lambda: os.fork(),
    lambda: subprocess.run(["true"]),
    lambda: socket.create_connection(("127.0.0.1", 9)),
    lambda: os.remove("x"),
    lambda: bytearray(1 << 29),
]
for number, attempt in enumerate(attempts):
    try:
        attempt()
        print("got through:", number)
    except (worker.RefusedOperation, MemoryError):
        pass
print("end", int("2") + 2)
"""


def run(code: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, timeout=60
    )


def test_the_sandbox_refuses_what_grading_does_not_need(tmp_path: Path) -> None:
    ran = run(SANDBOX.format(root=str(ROOT)), tmp_path)
    assert ran.stdout == "end 4\n", ran.stdout + ran.stderr
    assert list(tmp_path.iterdir()) == []


def test_negative_control_without_the_sandbox_all_of_it_works(tmp_path: Path) -> None:
    lines = [line for line in SANDBOX.splitlines() if not line.startswith("worker._confine")]
    code = "\n".join(lines).format(root=str(ROOT)).replace("os.fork()", "os.getpid()")
    assert "got through: 0" in run(code, tmp_path).stdout
    assert (tmp_path / "leak").exists()


ORPHAN = """
import os, sys, time
sys.path.insert(0, {root!r})
from prompt_aug.grading.pool import default_pool
pool = default_pool()
pool.start()
holder = os.fork()
if holder:
    print(*(worker.process.pid for worker in pool._idle), holder, flush=True)
time.sleep(60)
"""


def test_workers_die_with_a_killed_parent_also_if_its_fork_holds_their_pipes() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", ORPHAN.format(root=str(ROOT))], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    group, holder = map(int, parent.stdout.readline().split())
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline and _alive(group):
        time.sleep(0.05)
    assert not _alive(group) and _alive(holder)
    os.kill(holder, signal.SIGKILL)


def _alive(pid: int) -> bool:
    """Whether the process runs (a zombie that nobody reaps does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
