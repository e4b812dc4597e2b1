"""The log gets what libraries print, with floods counted; the user sees what is said to him."""

import io
import itertools
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from recipe.run import console, ending
from recipe.run.console import FREE, MOST, QUIET, Collapsed


def printed(lines: Iterable[str], every: float = 0.0) -> list[str]:
    """What is printed of `lines` that come `every` so many seconds."""
    now, out = [0.0], io.StringIO()
    stream = Collapsed(out, lambda: now[0])
    for number, line in enumerate(lines):
        now[0] = number * every
        stream.write(f"{line}\n")
    stream.end()
    return out.getvalue().splitlines()


def test_a_flood_of_one_line_by_hand() -> None:
    """50 as they come, then at 64, 128, ... 65536, then the total."""
    out = printed(["boom"] * 100_000)
    doubled = [2**n for n in range(6, 17)]
    assert out == ["boom"] * 50 + [f"... repeated {n} times: boom" for n in (*doubled, 100_000)]
    assert printed(["boom"] * 50) == ["boom"] * 50  # negative control


TRACEBACK = """\
(Worker pid={pid}) ERROR:2026-11-22 10:00:{second:02d} rollout of question {uid} failed
(Worker pid={pid}) Traceback (most recent call last):
(Worker pid={pid})   File "async_llm.py", line 607, in generate
(Worker pid={pid})     out = q.get_nowait() or await q.get()
(Worker pid={pid})           ^^^^^^^^^^^^^^
(Worker pid={pid}) EngineDeadError: request {uid} was lost
"""


def flood(count: int) -> list[str]:
    """The tracebacks of rollouts on a dead engine, which differ in their numbers."""
    texts = (
        TRACEBACK.format(pid=7 + i % 3, second=i % 60, uid=f"{i:09d}-c4") for i in range(count)
    )
    return "".join(texts).splitlines()


def test_a_flood_of_tracebacks_keeps_the_first_and_other_errors(tmp_path: Path) -> None:
    steps = [f"step:{i} - loss:{i / 7}" for i in range(20)]
    cause = "(Server pid=1) Traceback (most recent call last):\n(Server pid=1) MemoryError: 2 GiB"
    lines = [*steps, *cause.split("\n"), *flood(5_000), "(Raylet) the node is shut down"]
    out = printed(lines, every=0.0005)
    assert out[:28] == lines[:28]  # the steps, the cause, the first of the flood
    assert lines[-1] in out
    assert len(lines) == 30_023 and len(out) < 400
    # of the five with words one came once more, in the cause
    assert sum(line.startswith("... repeated 5000 times: ") for line in out) == 4
    assert any(line.startswith("... repeated 5001 times: ") for line in out)
    for name, text in (("train.log", out), ("whole.log", lines)):
        (tmp_path / name).write_text("\n".join(text) + "\n")
        assert ending.first_error(tmp_path / name) == "MemoryError: 2 GiB (line 22)"


def test_what_comes_slowly_is_never_counted() -> None:
    lines = [f"step:{i} - loss:{i / 7}" for i in range(1000)]
    assert printed(lines, every=1.02 * QUIET / FREE) == lines
    assert len(printed(lines, every=0.5 * QUIET / FREE)) < 60  # negative control


def test_many_different_lines_are_bounded_too() -> None:
    out = printed("".join(letters) for letters in itertools.product("abcdefghij", repeat=5))
    assert MOST < len(out) < MOST + 100  # of 100,000
    assert out[-1] == f"... repeated {100_000 - MOST} times: jjjjj"


def test_a_stream_is_written_line_by_line() -> None:
    written = io.StringIO()
    stream = Collapsed(written, lambda: 0.0)
    print("a", "b", file=stream)
    stream.write("to be ")
    assert written.getvalue() == "a b\n"
    stream.write("continued\nthe rest")
    stream.end()
    assert written.getvalue() == "a b\nto be continued\nthe rest\n"
    stream.write("x" * 200_000)  # a progress bar
    assert len(written.getvalue()) > 200_000
    assert not stream.isatty()


PROGRAM = """
import os, sys
from pathlib import Path
from recipe.run import console

with console.diverted(Path(sys.argv[1])) as out:
    print("the first", file=sys.stderr, flush=True)
    for line in sys.stdin:
        print(line, end="")
    os.write(1, b"from C\\n")
    print("a step", file=out, flush=True)
print("after")
"""


def test_the_log_of_a_run_is_bounded(tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(log)],
        input="\n".join(flood(2_000)) + "\n",
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("a step\nafter\n", "")
    text = log.read_text().splitlines()
    assert text[0] == "the first" and "from C" in text and len(text) < 400
    assert [line for line in text if line != "from C"][1:7] == flood(1)
    assert "... repeated 2000 times: " in log.read_text()


def test_an_error_gives_the_terminal_back_and_the_log_is_kept(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "train.log"
    log.write_text("of an earlier start\n")
    with pytest.raises(KeyboardInterrupt), console.diverted(log):
        os.write(1, b"hidden\n")
        raise KeyboardInterrupt
    os.write(1, b"shown\n")
    assert capfd.readouterr().out == "shown\n"
    assert log.read_text() == "of an earlier start\nhidden\n"
