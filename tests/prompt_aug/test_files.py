"""A file is the old one or the new one, whatever happens while it is written."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from prompt_aug.files import replacing, write_text


def test_an_error_while_writing_leaves_the_old_file_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.txt"
    write_text(path, "old")
    with pytest.raises(OSError, match="disk full"), replacing(path) as file:
        file.write(b"half")
        raise OSError("disk full")
    assert path.read_text() == "old"
    assert [p.name for p in path.parent.iterdir()] == ["a.txt"]


def test_a_kill_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_text(path, "old")
    code = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from prompt_aug.files import replacing\n"
        "with replacing(Path(sys.argv[1])) as file:\n"
        "    file.write(b'half'); file.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    write_text(path, "new")
    assert path.read_text() == "new"


def test_a_lone_surrogate_does_not_stop_a_write(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "x\udc80y")
    assert (tmp_path / "a.txt").read_text() == "x?y"
