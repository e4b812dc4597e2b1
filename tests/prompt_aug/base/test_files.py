"""A file is the old one or the new one, lines survive kills, a folder has one writer."""

import errno
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from prompt_aug.base import files
from prompt_aug.base.errors import UserError
from prompt_aug.base.files import (
    FileError,
    InUseError,
    MissingFileError,
    append_lines,
    digests,
    lock,
    read_json,
    read_lines,
    replacing,
    write_json,
    write_lines,
    write_text,
)


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
        "from prompt_aug.base.files import replacing\n"
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


# ------------------------------------------------------------------------- JSON


def test_json_is_whole_or_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "a.json"
    write_json(path, {"x": "ä"})
    with pytest.raises(TypeError):
        write_json(path, {"x": object()})
    assert read_json(path) == {"x": "ä"}
    assert path.read_text(encoding="utf-8") == '{\n  "x": "ä"\n}\n'


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_other_readers_refuse_is_not_written(tmp_path: Path, value: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "x.json", {"accuracy": value})
    with pytest.raises(ValueError, match="not JSON compliant"):
        append_lines(tmp_path / "x.jsonl", [{"accuracy": value}])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "message"),
    [(b'{"a": 1', "not valid JSON"), (b'"\xff"', "not UTF-8"), (b"[" * 10**5, "not valid JSON")],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(FileError, match=rf"x\.json.*{message}") as caught:
        read_json(path)
    assert isinstance(caught.value, UserError)


def test_a_missing_file_is_told_from_a_damaged_one(tmp_path: Path) -> None:
    with pytest.raises(MissingFileError, match=r"x\.json is missing"):
        read_json(tmp_path / "x.json")
    assert issubclass(MissingFileError, FileNotFoundError)


# ------------------------------------------------------------------------- JSON lines


def test_a_broken_line_in_the_middle_is_damage_a_torn_last_one_is_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    assert read_lines(path) == []
    path.write_text('{"a": 1}\n{"a": 2}\n{"a"')
    assert read_lines(path) == [{"a": 1}, {"a": 2}]
    for damaged in ('{"a"', "7", "\0\0\0"):
        path.write_text(f'{{"a": 1}}\n{damaged}\n{{"a": 2}}\n')
        with pytest.raises(FileError, match=r"x\.jsonl, line 2"):
            read_lines(path)
    path.write_bytes(b'{"a": "\xff"}\n')
    with pytest.raises(FileError, match="line 1 is not UTF-8"):
        read_lines(path)


def test_lines_cut_anywhere_go_on_with_what_is_whole(tmp_path: Path) -> None:
    """Cut after each byte: what is read is what was whole, and what is appended is not lost."""
    path = tmp_path / "x.jsonl"
    records = [{"a": 1, "b": {"c": "}"}}, {"a": "ä\n"}]
    write_lines(path, records)
    whole = path.read_bytes()
    ends = [
        i for i in range(len(whole)) if whole[i : i + 1] == b"\n"
    ]  # a record is whole from here
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        kept = records[: sum(end <= cut for end in ends)]
        assert read_lines(path) == kept
        append_lines(path, [{"new": cut}], sync=True)
        assert read_lines(path) == [*kept, {"new": cut}]


def test_a_long_torn_line_is_cut_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n{"a": "' + "x" * 200_000)
    append_lines(path, [{"a": 2}])
    assert path.read_text() == '{"a": 1}\n{"a": 2}\n'


def test_separators_that_unicode_calls_line_ends_do_not_end_a_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    records = [{"response": "a\u2028b\x85c\x0b\r\n\ud800"}, {"response": "d"}]
    write_lines(path, records)
    assert read_lines(path) == records
    path.write_text(json.dumps({"a": "\u2028\x85"}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert read_lines(path) == [{"a": "\u2028\x85"}]  # of another writer


def test_digests_are_those_of_sha256sum(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    for name, content in (("b/x", b""), ("a", b"abc")):
        (tmp_path / name).write_bytes(content)
    found = digests([tmp_path / "b" / "x", tmp_path / "a"], tmp_path, progress="digests")
    assert found["a"] == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert list(found.items()) == [("a", found["a"]), ("b/x", hashlib.sha256(b"").hexdigest())]


# ------------------------------------------------------------------------- locks

HOLDER = (
    "import errno, fcntl, os, sys, time\nfrom pathlib import Path\n"
    "from prompt_aug.base import files\n"
    "def unsupported(*_): raise OSError(errno.ENOSYS, 'not implemented')\n"
    "if sys.argv[2] == 'no flock': fcntl.flock = unsupported\n"
    "held = files.lock(Path(sys.argv[1]))\nprint('held', flush=True)\ntime.sleep(60)\n"
)


@pytest.fixture(params=["flock", "no flock"])
def other(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """Another process that holds the folder, on a file system with or without flock."""
    monkeypatch.setattr(files, "SETTLE", 0.0)
    if request.param == "no flock":
        monkeypatch.setattr(fcntl, "flock", unsupported)
    command = [sys.executable, "-c", HOLDER, str(tmp_path), request.param]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == "held"
    yield process
    process.kill()
    process.wait()


def unsupported(*_: object) -> None:
    raise OSError(errno.ENOSYS, "not implemented")


def test_a_folder_has_one_holder_and_a_killed_one_frees_it(tmp_path: Path, other: Any) -> None:
    with pytest.raises(InUseError, match=f"in use by process {other.pid} on "):
        lock(tmp_path)
    other.kill()
    other.wait()
    with lock(tmp_path), pytest.raises(InUseError, match=f"process {os.getpid()}"):
        lock(tmp_path)
    lock(tmp_path).close()


def left_by(folder: Path, **changes: object) -> None:
    """A lock as another node leaves it: one whose kernel's locks do not reach this node."""
    held = lock(folder)
    owner = json.loads((folder / ".lock").read_text())
    held.close()
    (folder / ".lock").write_text(json.dumps({**owner, "host": "elsewhere", **changes}))


def test_the_owner_on_another_node_counts_as_dead_only_without_a_sign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LEASE", 1.0)
    left_by(tmp_path, pid=77, job="5")
    stop = threading.Event()
    alive = threading.Thread(target=touch_until, args=(tmp_path / ".lock", stop))
    alive.start()
    try:
        with pytest.raises(InUseError, match=r"process 77 on elsewhere \(job 5\)"):
            lock(tmp_path)
    finally:
        stop.set()
        alive.join()
    lock(tmp_path).close()


def touch_until(path: Path, stop: threading.Event) -> None:
    while not stop.wait(0.05):
        os.utime(path)


def test_a_holder_gives_signs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "BEAT", 0.01)
    with lock(tmp_path):
        before = (tmp_path / ".lock").stat().st_mtime_ns
        touched = threading.Event()
        for _ in range(1000):
            if (tmp_path / ".lock").stat().st_mtime_ns != before:
                touched.set()
                break
            touched.wait(0.01)
        assert touched.is_set()


@pytest.mark.parametrize("restarts", [1, 0])
def test_a_requeued_job_takes_its_own_lock_on_another_node_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: int
) -> None:
    monkeypatch.setattr(files, "LEASE", 0.0)
    monkeypatch.setattr(files, "_is_touched", lambda *_: True)  # as a live one would be
    left_by(tmp_path, job="5", restarts=0)
    monkeypatch.setenv("SLURM_JOB_ID", "5")
    monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
    if restarts:
        lock(tmp_path).close()
    else:  # two tasks of one job
        with pytest.raises(InUseError):
            lock(tmp_path)


def test_an_error_that_is_not_about_locks_is_not_taken_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "input/output error")

    monkeypatch.setattr(fcntl, "flock", broken)
    with pytest.raises(OSError, match="input/output"):
        lock(tmp_path)


def test_a_file_of_an_older_lock_does_not_keep_anyone_out(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("12345")  # a process number, as it was once
    lock(tmp_path).close()
    assert (tmp_path / ".lock").read_text() == ""
