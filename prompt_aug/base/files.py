"""Files that survive a killed process: atomic writes, JSON, JSON lines, digests and folder locks.

A file is replaced as a whole. A file of JSON lines grows by whole lines, of which only the last can
be torn. A locked folder has one writer.
"""

import contextlib
import errno
import hashlib
import json
import os
import secrets
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from prompt_aug.base.errors import UserError

LOCK = ".lock"
LOCK_SECONDS = 0.5  # longer than `is_held` keeps a lock
# Error codes of flock on file systems without locks: some Lustre and NFS mounts.
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
FULL = (errno.ENOSPC, errno.EDQUOT)
UNWRITABLE = (*FULL, errno.EROFS, errno.EACCES, errno.EPERM)
GONE = "was removed or moved while in use. Move it back, then run the same command again."
used: set[Path] = set()  # folders in which this command has written, and those above


class FileError(UserError, ValueError):
    """A file with invalid content. The message names the file and the place."""


class MissingFileError(FileError, FileNotFoundError):
    """A file that does not exist."""


class WriteError(FileError, OSError):
    """A file that cannot be written: full or read-only disk, or its folder is gone."""


class InUseError(UserError):
    """A folder that another running process has locked."""


def enter(folder: Path) -> None:
    """Make `folder` to write in; WriteError if it is missing and this command wrote there before.

    Else part of the files would be where somebody has removed or moved them.
    """
    places = [folder.absolute(), *folder.absolute().parents]
    if missing := [place for place in places if place in used and not place.is_dir()]:
        raise WriteError(f"{missing[-1]} {GONE}")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    used.update(places)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Name `path` and the remedy if the disk refuses a write."""
    try:
        yield
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        remedy = "Free some room" if error.errno in FULL else "Make it writable"
        raise WriteError(
            f"{path}: {os.strerror(error.errno)}. {remedy}, then run the same command again."
        ) from error


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file that replaces `path` when the block ends without an exception.

    Calls `enter`, flushes to disk, then renames. If the block raises, the disk is full or the
    process is killed, `path` is unchanged. A killed process leaves the hidden temporary file.
    """
    enter(path.parent)
    # Random: two threads, or two nodes, can have the same process id.
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with writing(path), beside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write `path` atomically in UTF-8; a lone surrogate becomes ``?``."""
    with replacing(path) as file:
        file.write(text.encode("utf-8", errors="replace"))


def read_text(path: Path) -> str:
    """Return the text in `path`. Raises MissingFileError, or FileError if it is not UTF-8 text."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise MissingFileError(f"{path} is missing") from None
    except IsADirectoryError:
        raise FileError(f"{path} is a folder, not a file") from None
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not UTF-8 text ({error}): restore it or convert it") from None


def write_json(path: Path, value: Any) -> None:
    """Write indented, standard JSON atomically. Raises ValueError for NaN and infinity.

    Python reads and writes both, but they are not JSON: JavaScript rejects them, jq alters them.
    """
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`. Raises MissingFileError, or FileError for other content."""
    value = _parse(read_text(path), str(path))
    if not isinstance(value, dict):
        raise FileError(f"{path} is not a JSON object. Restore it from a copy.")
    return value


def dump_lines(records: Iterable[dict[str, Any]]) -> str:
    """Return one JSON object per line. ASCII, so that no character can be read as a line end.

    Raises ValueError for NaN and infinity.
    """
    return "".join(json.dumps(record, allow_nan=False) + "\n" for record in records)


def write_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object per line atomically."""
    write_text(path, dump_lines(records))


def append_lines(path: Path, records: Iterable[dict[str, Any]], *, sync: bool = False) -> None:
    """Append one JSON object per line; creates the file and calls `enter`. For a single writer.

    Removes a torn last line of a killed writer first. With `sync` the lines are on disk on return,
    so that they also survive a crash of the machine.
    """
    lines = dump_lines(records)
    enter(path.parent)
    with writing(path), path.open("a+b") as file:
        _mend_tail(file)
        file.write(lines.encode())
        file.flush()
        if sync:
            os.fsync(file.fileno())


def iter_lines(
    path: Path,
    is_whole: Callable[[Any], bool] = lambda record: isinstance(record, dict),
    damaged: Callable[[FileError], object] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file of JSON lines, except a torn last line; none if it is missing.

    Raises FileError for any other broken line, which a killed writer cannot leave, or passes it to
    `damaged` and goes on. `is_whole` returns True for a valid record.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip() or not (line.endswith(b"\n") or _whole(line)):
                continue
            place = f"{path}, line {number}"
            try:
                record = _parse(line, place)
                if not is_whole(record):
                    raise FileError(f"{place} is no record of this file. Restore it from a copy.")
            except FileError as error:
                if damaged is None:
                    raise
                damaged(error)
            else:
                yield record


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return all objects of `iter_lines`."""
    return list(iter_lines(path))


def _parse(text: str | bytes, place: str) -> Any:
    try:
        return json.loads(text if isinstance(text, str) else text.decode())
    except UnicodeDecodeError as error:
        raise FileError(f"{place} is not UTF-8 text ({error}). Restore it from a copy.") from None
    except (ValueError, RecursionError) as error:
        raise FileError(f"{place} is not valid JSON ({error}). Restore it from a copy.") from None


def _whole(line: bytes) -> bool:
    """Return True if a line without line feed is complete: a part of an object is not JSON."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _mend_tail(file: IO[bytes]) -> None:
    """Remove the text after the last line feed, or end the line if it is a complete object."""
    end = file.seek(0, os.SEEK_END)
    start, tail = end, b""
    while start and b"\n" not in tail:
        start = max(0, start - 2**16)
        file.seek(start)
        tail = file.read(end - start)
    torn = tail.rpartition(b"\n")[2]
    if torn and _whole(torn):
        file.write(b"\n")
    elif torn:
        file.truncate(end - len(torn))


def sha256(path: Path) -> str:
    """Return the SHA-256 of the bytes of `path`, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digests(paths: Iterable[Path], root: Path) -> dict[str, str]:
    """Return the `sha256` of each file by its name under `root`, sorted."""
    return {path.relative_to(root).as_posix(): sha256(path) for path in sorted(set(paths))}


def sync(paths: Iterable[Path]) -> None:
    """Flush the contents of these files to disk."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())


def lock(folder: Path, *, wait: bool = False) -> contextlib.ExitStack:
    """Lock `folder`, created if missing, for this process; release by ``close`` or ``with``.

    The kernel holds the lock (flock), so that it ends with its process. The file ``.lock`` names
    the owner. If another process holds it, waits or, without `wait`, raises InUseError. Raises
    FileError on a file system without locks.
    """
    enter(folder)
    held, job = _lock_file(folder), os.environ.get("SLURM_JOB_ID", "")
    owner = f"process {os.getpid()} on {socket.gethostname()}" + (f" (job {job})" if job else "")
    try:
        with writing(folder / LOCK):
            held.acquire(timeout=-1 if wait else LOCK_SECONDS)
            (folder / LOCK).write_text(owner, encoding="utf-8")
    except Timeout:
        raise InUseError(
            f"{folder} is in use by {_owner(folder) or 'another process'}. Wait for it, stop it, "
            "or choose another folder."
        ) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        raise FileError(
            f"{folder}: the file system has no file locks ({error.strerror}), so two processes "
            "could write there. Choose a folder on another mount, or mount it with locks "
            "(Lustre: -o flock)."
        ) from None
    stack = contextlib.ExitStack()
    stack.callback(held.release)
    return stack


def is_held(folder: Path) -> bool:
    """Return True if a running process holds the lock of `folder`.

    If the lock cannot be opened (another user's folder), return True if its file names an owner.
    """
    if not (folder / LOCK).is_file():
        return False
    probe = _lock_file(folder)
    try:
        probe.acquire(timeout=0)
    except Timeout:
        return True
    except OSError:
        return bool(_owner(folder))
    probe.release()
    return False


def _lock_file(folder: Path) -> FileLock:
    # No fallback to filelock's soft lock, whose file would stay when a process is killed.
    return FileLock(folder / LOCK, thread_local=False, fallback_to_soft=False)


def _owner(folder: Path) -> str:
    try:
        return (folder / LOCK).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return ""
