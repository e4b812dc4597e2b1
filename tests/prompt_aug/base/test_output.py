"""A command does the same whether its output is read to the end or not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys
from pathlib import Path
from prompt_aug.base.commands import run_command
from prompt_aug.base.errors import UserError

def work():
    for number in range(20000):
        print("line", number)
    Path(sys.argv[1]).touch()
    if "fail" in sys.argv[2]:
        raise UserError("the true error")
    if "task" in sys.argv[2]:
        raise ExceptionGroup("tasks", [UserError("the true error")])

sys.exit(run_command("program", work, interrupted=""))
"""


@pytest.mark.parametrize(("what", "code"), [("", 0), ("fail", 1), ("task", 1)])
def test_a_reader_that_leaves_changes_neither_work_nor_error(
    tmp_path: Path, what: str, code: int
) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "done"), what]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdout and process.stderr
        assert process.stdout.readline() == "line 0\n"
        process.stdout.close()  # as `head -1`
        errors = process.stderr.read()
    assert process.returncode == code and (tmp_path / "done").exists()
    assert errors == ("program: the true error\n" if code else "")


def test_a_terminal_that_closes_is_no_error() -> None:
    """Writes to it fail with EIO, to standard error as well."""
    near, far = os.openpty()
    code = "import os, sys, time; from prompt_aug.base.commands import run_command; os.read(0, 1); "
    code += "sys.exit(run_command('x', lambda: print('lost') or print('lost', file=sys.stderr), "
    code += "interrupted=''))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=far, stderr=far
    ) as process:
        os.close(far)
        os.close(near)
        assert process.stdin
        process.stdin.write(b"x")
        process.stdin.close()
    assert process.returncode == 0
