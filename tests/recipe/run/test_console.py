"""What libraries print goes to the log, whoever prints it; what is said to the user does not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from recipe.run import console


def test_nothing_but_what_is_said_reaches_the_user(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "logs" / "train.log"
    print("before")
    with console.diverted(log) as out:
        os.write(2, b"from C\n")
        subprocess.run([sys.executable, "-c", "print('from a child')"], check=True)
        print("a step", file=out, flush=True)
        assert not out.isatty()
    os.write(2, b"after\n")
    told = capfd.readouterr()
    assert told.out.splitlines()[-1] == "a step" and "child" not in told.out
    assert told.err == "after\n"
    assert log.read_text().splitlines() == ["from C", "from a child"]


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
