"""Files are the old or the new ones, folders have one writer, and output may lose its reader."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from prompt_aug.base import files
from prompt_aug.base.commands import run_command
from prompt_aug.base.errors import UserError


def test_a_kill_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    files.write_text(path, "old")
    code = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from prompt_aug.base.files import replacing\n"
        "with replacing(Path(sys.argv[1])) as file:\n"
        "    file.write(b'half'); file.flush(); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert path.read_text() == "old"
    files.write_text(path, "new")
    assert path.read_text() == "new"


@pytest.mark.parametrize("gone", ["run", "run/logs"])
@pytest.mark.parametrize(
    "write",
    [
        lambda folder: files.write_text(folder / "x", "new"),
        lambda folder: files.append_lines(folder / "x", [{"a": 2}]),
        lambda folder: files.lock(folder / "below").close(),
    ],
)
def test_a_folder_that_was_moved_away_is_not_made_anew(
    tmp_path: Path, write: Callable[[Path], None], gone: str
) -> None:
    logs = tmp_path / "run" / "logs"
    with files.lock(tmp_path / "run"):
        files.append_lines(logs / "x", [{"a": 1}])
        (tmp_path / gone).rename(tmp_path / "moved")
        with pytest.raises(files.FileError, match=f"{tmp_path / gone} was removed or moved"):
            write(logs)
        assert not (tmp_path / gone).exists()
    # Another command of this process.
    assert run_command("again", lambda: write(logs), interrupted="") == 0


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_disk_that_refuses_a_write_is_one_line_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def failing(*_: object) -> None:
        raise OSError(code, os.strerror(code))  # as of a write: without the name of a file

    path = tmp_path / "x"
    files.write_text(path, "old\n")
    monkeypatch.setattr(os, "fsync", failing)
    for write in (files.write_text, lambda path, _: files.append_lines(path, [{}], sync=True)):
        with pytest.raises(files.FileError, match=f"{path}: {os.strerror(code)}"):
            write(path, "new")
    assert path.read_text().startswith("old") and [*tmp_path.iterdir()] == [path]


def test_what_other_readers_refuse_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.write_json(tmp_path / "x.json", {"accuracy": float("nan")})
    with pytest.raises(ValueError, match="not JSON compliant"):
        files.append_lines(tmp_path / "x.jsonl", [{"accuracy": float("inf")}])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("content", "message"),
    [(b'{"a": 1', "not valid JSON"), (b'"\xff"', "not UTF-8"), (b"[" * 10**5, "not valid JSON")],
)
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.json"
    path.write_bytes(content)
    with pytest.raises(files.FileError, match=rf"x\.json.*{message}") as caught:
        files.read_json(path)
    assert isinstance(caught.value, UserError)


def test_a_broken_line_in_the_middle_is_damage_a_torn_last_one_is_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    assert files.read_lines(path) == []
    path.write_text('{"a": 1}\n{"a": 2}\n{"a"')
    assert files.read_lines(path) == [{"a": 1}, {"a": 2}]
    for damaged in ('{"a"', "7", "\0\0\0"):
        path.write_text(f'{{"a": 1}}\n{damaged}\n{{"a": 2}}\n')
        with pytest.raises(files.FileError, match=r"x\.jsonl, line 2"):
            files.read_lines(path)
    path.write_bytes(b'{"a": "\xff"}\n')
    with pytest.raises(files.FileError, match="line 1 is not UTF-8"):
        files.read_lines(path)
    path.write_bytes(b'{"a": 1}\n{"a\n7\n{"a": "\xff"}\n{"a": 2}\n')
    errors: list[files.FileError] = []
    assert list(files.iter_lines(path, damaged=errors.append)) == [{"a": 1}, {"a": 2}]
    named = [str(error).partition(" is")[0] for error in errors]
    assert named == [f"{path}, line {n}" for n in (2, 3, 4)]


def test_lines_cut_anywhere_go_on_with_what_is_whole(tmp_path: Path) -> None:
    """Cut after each byte: what is read is what was whole, and what is appended is not lost."""
    path = tmp_path / "x.jsonl"
    records = [{"a": 1, "b": {"c": "}"}}, {"a": "ä\n"}]
    files.write_lines(path, records)
    content = path.read_bytes()
    ends = [i for i, byte in enumerate(content) if byte == 0x0A]  # a record is whole from here
    for cut in range(len(content) + 1):
        path.write_bytes(content[:cut])
        kept = records[: sum(end <= cut for end in ends)]
        assert files.read_lines(path) == kept
        files.append_lines(path, [{"new": cut}], sync=True)
        assert files.read_lines(path) == [*kept, {"new": cut}]


def test_separators_that_unicode_calls_line_ends_do_not_end_a_line(tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    records = [{"response": "a\u2028b\x85c\x0b\r\n\ud800"}, {"response": "d"}]
    files.write_lines(path, records)
    assert files.read_lines(path) == records
    path.write_text(json.dumps({"a": "\u2028\x85"}, ensure_ascii=False) + "\n", encoding="utf-8")
    assert files.read_lines(path) == [{"a": "\u2028\x85"}]  # of another writer


HOLDER = (
    "import sys, time\nfrom pathlib import Path\nfrom prompt_aug.base import files\n"
    "held = files.lock(Path(sys.argv[1]))\nprint('held', flush=True)\ntime.sleep(60)\n"
)


def test_a_folder_has_one_holder_and_a_killed_one_frees_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "SLURM_JOB_ID": "5"}
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline().strip() == "held"
        with pytest.raises(
            files.InUseError, match=rf"in use by process {holder.pid} on .* \(job 5\)"
        ):
            files.lock(tmp_path)
        assert files.is_held(tmp_path)
        holder.kill()
    assert not files.is_held(tmp_path)
    with files.lock(tmp_path), pytest.raises(files.InUseError, match=f"process {os.getpid()}"):
        files.lock(tmp_path)
    assert not files.is_held(tmp_path) and not files.is_held(tmp_path / "nowhere")
    files.lock(tmp_path).close()


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_system_without_locks_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Any other error of the file system is raised as it is."""

    def failing(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", failing)
    with pytest.raises(OSError if code == errno.EIO else files.FileError, match=os.strerror(code)):
        files.lock(tmp_path)
    assert not files.is_held(tmp_path)


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
