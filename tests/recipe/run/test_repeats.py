"""A flood of one error is told with a count, and nothing that came first, or slowly, is lost."""

import io
import itertools
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from recipe.run import ending
from recipe.run.repeats import FREE, MOST, QUIET, Collapsed, Repeats


def printed(lines: Iterable[str], every: float = 0.0) -> list[str]:
    """What is printed of `lines` that come `every` so many seconds."""
    now = itertools.count()
    time = 0.0
    repeats = Repeats(lambda: time)
    out: list[str] = []
    for line in lines:
        time = next(now) * every
        out += repeats.see(line)
    return out + repeats.end()


def test_a_flood_of_one_line_by_hand() -> None:
    """50 as they come, then at 64, 128, ... 65536, then how many there were."""
    out = printed(["boom"] * 100_000)
    doubled = [2**n for n in range(6, 17)]
    assert out == ["boom"] * 50 + [f"... repeated {n} times: boom" for n in (*doubled, 100_000)]
    assert printed(["boom"] * 50) == ["boom"] * 50  # negative control: nothing of it is left out


TRACEBACK = """\
(Worker pid={pid}) ERROR:2026-11-22 10:00:{second:02d} rollout of question {uid} failed
(Worker pid={pid}) Traceback (most recent call last):
(Worker pid={pid})   File "async_llm.py", line 607, in generate
(Worker pid={pid})     out = q.get_nowait() or await q.get()
(Worker pid={pid})           ^^^^^^^^^^^^^^
(Worker pid={pid}) EngineDeadError: request {uid} was lost
"""


def flood(count: int) -> list[str]:
    """As a dead engine is told: the numbers in it differ each time."""
    texts = (
        TRACEBACK.format(pid=7 + i % 3, second=i % 60, uid=f"{i:09d}-c4") for i in range(count)
    )
    return "".join(texts).splitlines()


def test_a_flood_of_tracebacks_keeps_the_first_and_other_errors(tmp_path: Path) -> None:
    steps = [f"step:{i} - loss:{i / 7}" for i in range(20)]
    cause = [
        "(Server pid=1) Traceback (most recent call last):",
        "(Server pid=1) MemoryError: 2 GiB",
    ]
    lines = [*steps, *cause, *flood(5_000), "(Raylet) the node is shut down"]
    out = printed(lines, every=0.0005)
    assert out[:28] == lines[:28]  # the steps, the cause, the first of the flood
    assert lines[-1] in out
    assert len(lines) == 30_023 and len(out) < 400
    told = [line for line in out if line.startswith("... repeated 5000 times: ")]
    assert len(told) == 4  # of the five with words one came once more, in the cause
    assert any(line.startswith("... repeated 5001 times: ") for line in out)
    log, whole = tmp_path / "train.log", tmp_path / "whole.log"
    log.write_text("\n".join(out) + "\n")
    whole.write_text("\n".join(lines) + "\n")
    assert ending.first_error(log) == ending.first_error(whole) == "MemoryError: 2 GiB (line 22)"


def test_what_comes_slowly_is_never_left_out() -> None:
    lines = [f"step:{i} - loss:{i / 7}" for i in range(1000)]
    slow, fast = 1.02 * QUIET / FREE, 0.5 * QUIET / FREE
    assert printed(lines, every=slow) == lines
    assert len(printed(lines, every=fast)) < 60  # negative control


def test_after_a_while_a_line_is_a_new_one_and_the_number_before_is_told() -> None:
    time = 0.0
    repeats = Repeats(lambda: time)
    for _ in range(FREE + 3):
        repeats.see("boom")
    time = QUIET + 0.1
    assert repeats.see("other") == ["... repeated 53 times: boom", "other"]
    assert repeats.see("boom") == ["boom"]
    assert repeats.end() == []


def test_many_different_lines_are_bounded_too() -> None:
    words = ("".join(letters) for letters in itertools.product("abcdefghij", repeat=5))
    out = printed(words)  # 100,000 of them
    assert MOST < len(out) < MOST + 100
    assert out[-1] == f"... repeated {100_000 - MOST} times: jjjjj"


def test_lines_without_words_go_with_the_line_before() -> None:
    """As the marks of a traceback; those of a table or of settings stay."""
    out = printed(["raise it", "   ^^^^^"] * 200)
    assert out.count("   ^^^^^") == FREE
    assert printed(["{'a': 1}", "}"] + ["}"] * 200).count("}") == 201


def test_a_stream_is_written_line_by_line() -> None:
    written = io.StringIO()
    stream = Collapsed(written, Repeats(lambda: 0.0))
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
    assert text[0] == "the first" and "from C" in text
    assert [line for line in text if line != "from C"][1:7] == flood(1)
    assert len(text) < 400
    assert "... repeated 2000 times: " in log.read_text()
