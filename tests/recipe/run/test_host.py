"""Disk space and ports of the machine."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from prompt_aug.base import places
from recipe.run import host


def test_what_takes_no_file_says_why(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert places.unwritable(tmp_path / "file" / "run") == f"{tmp_path / 'file'} is a file"
    assert places.unwritable(Path("/proc"))  # also to root, whom rights do not stop


def test_a_free_port_can_be_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", host.free_port()))

    def full(self: socket.socket, address: object) -> None:
        raise OSError(98, "Address already in use")

    monkeypatch.setattr(socket, "socket", type("Full", (socket.socket,), {"bind": full}))
    with pytest.raises(OSError, match="in use"):
        host.free_port()


def test_the_doctor_imports_nothing_that_may_be_broken() -> None:
    program = (
        "import sys, recipe.preflight.doctor\n"
        "print(sorted({'omegaconf', 'numpy'} & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
