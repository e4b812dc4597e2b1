"""Files that survive kills: atomic files, JSON, JSON lines, digests, and the lock of a folder.

Everything that the project writes goes through this module. A file appears whole or not at all; a
file of JSON lines grows by whole lines, and only its last one can be torn; a folder has one writer.
"""

import atexit
import contextlib
import errno
import fcntl
import hashlib
import json
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Self

from tqdm import tqdm

from prompt_aug.base.errors import UserError

logger = logging.getLogger(__name__)

BEAT = 5.0  # seconds between two touches of a lock by its owner
LEASE = 60.0  # seconds without a touch after which the owner on another node counts as dead
SETTLE = 0.5  # seconds until the last of several simultaneous writers is known
# What flock answers on file systems without it: some Lustre and NFS mounts.
_NO_FLOCK = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}


class FileError(UserError, ValueError):
    """A file that cannot be read as what it must be; the message names it and the place."""


class MissingFileError(FileError, FileNotFoundError):
    """A file that is not there."""


class InUseError(UserError):
    """Another live process works in the folder."""


# ------------------------------------------------------------------------- whole files


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that takes the place of `path` when the block ends well; makes its folder.

    It is written beside `path`, flushed to the disk and renamed. Where the block raises, the disk
    is full or the process is killed, `path` is what it was before; only a kill leaves the file
    beside it behind, hidden and named after the process.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # The token tells apart two threads, and two nodes whose processes have the same number.
    beside = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        with beside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """`path` in UTF-8; a lone surrogate, which no encoding has, becomes ``?``."""
    with replacing(path) as file:
        file.write(text.encode("utf-8", errors="replace"))


def read_text(path: Path) -> str:
    """The UTF-8 text in `path`. Raises MissingFileError or FileError (not UTF-8)."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise MissingFileError(f"{path} is missing") from None
    except IsADirectoryError:
        raise FileError(f"{path} is a folder, not a file") from None
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is not UTF-8 text ({error}): restore it or convert it") from None


# ------------------------------------------------------------------------- JSON


def write_json(path: Path, value: Any) -> None:
    """Indented, standard JSON, atomically. Raises ValueError for NaN and infinity.

    Python writes and reads them, but jq, JavaScript and pandas refuse the whole file.
    """
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """The JSON value in `path`. Raises MissingFileError or FileError (damaged)."""
    return _parse(read_text(path), str(path))


def dump_lines(records: Iterable[dict[str, Any]]) -> str:
    """One JSON object a line, in ASCII, so that no character is lost or taken for a line's end.

    Raises ValueError for NaN and infinity.
    """
    return "".join(json.dumps(record, allow_nan=False) + "\n" for record in records)


def write_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """One JSON object a line, atomically."""
    write_text(path, dump_lines(records))


def append_lines(path: Path, records: Iterable[dict[str, Any]], *, sync: bool = False) -> None:
    """Append one JSON object a line; makes the file and its folder. For a single writer.

    A last line that a killed writer left torn goes first, as the new line would be joined to it.
    With `sync` the lines are on the disk on return: they also survive a crash of the machine.
    """
    lines = dump_lines(records)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        _mend_tail(file)
        file.write(lines.encode())
        file.flush()
        if sync:
            os.fsync(file.fileno())


def iter_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file of JSON lines, without a last one that a killed writer left torn.

    A missing file has none. Raises FileError for a broken line before the last: no kill explains
    such damage.
    """
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip() or not (line.endswith(b"\n") or _whole(line)):
                continue
            place = f"{path}, line {number}"
            try:
                record = _parse(line.decode("utf-8"), place)
            except UnicodeDecodeError as error:
                raise FileError(f"{place} is not UTF-8 text ({error})") from None
            if not isinstance(record, dict):
                raise FileError(f"{place} is not a JSON object")
            yield record


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All of `iter_lines`."""
    return list(iter_lines(path))


def _parse(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileError(
            f"{place} is not valid JSON ({error}); restore the file, or delete it and let the "
            "command that wrote it make it again"
        ) from None


def _whole(line: bytes) -> bool:
    """Whether a last line without its line feed is whole: no part of a JSON object is JSON."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _mend_tail(file: IO[bytes]) -> None:
    """Cut what stands behind the last line feed, or end it where it is a whole object."""
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


# ------------------------------------------------------------------------- digests


def sha256(path: Path) -> str:
    """The SHA-256 of the bytes of `path`, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digests(paths: Iterable[Path], root: Path, progress: str | None = None) -> dict[str, str]:
    """`sha256` of each file by its name under `root`, sorted; a bar with the title `progress`."""
    hidden = True if progress is None else None  # None: shown on a terminal only
    bar = tqdm(sorted(set(paths)), desc=progress, unit="file", leave=False, disable=hidden)
    return {path.relative_to(root).as_posix(): sha256(path) for path in bar}


def sync(paths: Iterable[Path]) -> None:
    """Wait until the contents of these files are on the disk."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())


# ------------------------------------------------------------------------- the lock of a folder


@dataclass(frozen=True, kw_only=True, slots=True)
class _Owner:
    """What a lock file holds: a process of a booted node, and its SLURM job and restart there."""

    host: str
    boot: str
    pid: int
    started: str
    job: str
    restarts: int

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}" + (f" (job {self.job})" if self.job else "")


class Lock:
    """The lock of this process on a folder, until `close` or the end of a ``with`` block."""

    def __init__(self, file: IO[str]) -> None:
        self._file, self._process, self._stop = file, os.getpid(), threading.Event()
        threading.Thread(target=self._beat, name="lock", daemon=True).start()
        atexit.register(self.close)

    def close(self) -> None:
        """Release the folder; a second call does nothing, nor does one in a forked child."""
        if self._file.closed or os.getpid() != self._process:
            return
        self._stop.set()
        atexit.unregister(self.close)
        self._file.truncate(0)  # no owner: no process needs to wait for its end
        # The file stays: a process that has just opened it would lock a file without a name.
        self._file.close()

    def _beat(self) -> None:
        while not self._stop.wait(BEAT):
            with contextlib.suppress(OSError, ValueError):  # a full disk; closed meanwhile
                os.utime(self._file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def lock(folder: Path) -> Lock:
    """Take `folder`, which is made if need be, for this process. Raises InUseError.

    Held by the kernel (flock) where the file system has it: such a lock dies with its process.
    Beside it `.lock` names its owner, and the owner touches the file every BEAT seconds, because
    flock may be unsupported, or reach only one node. So an owner whose lock the kernel does not
    hold is dead if its process is gone from this node, if this is a later start of the same SLURM
    job, or if it has not touched the file for LEASE seconds, which are waited for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ".lock"
    file = path.open("a+", encoding="utf-8")  # "w" would erase the owner before the lock is ours
    try:
        by_kernel = _flock(file)
        before, mine = _owner_in(path), _this_process()
        if before:
            lives = _lives(before, mine, by_kernel)
            if lives or (lives is None and _is_touched(path, before)):
                raise BlockingIOError
        file.truncate(0)
        file.write(json.dumps(asdict(mine)))
        file.flush()
        if not by_kernel:
            time.sleep(SETTLE)  # of two that came at once the one that wrote last has it
            if _owner_in(path) != mine:
                raise BlockingIOError
    except BlockingIOError:
        file.close()
        holder = _owner_in(path) or "another process"
        raise InUseError(
            f"{folder} is in use by {holder}: wait for it, stop it, or choose another folder"
        ) from None
    except BaseException:
        file.close()
        raise
    return Lock(file)


def is_held(folder: Path) -> bool:
    """Whether a live process holds `folder`, as far as its lock tells; takes nothing.

    On another node: whether the owner has touched the lock within LEASE seconds, by both clocks.
    """
    path = folder / ".lock"
    owner = _owner_in(path)
    if owner is None:
        return False
    lives = _lives(owner, _this_process(), by_kernel=False)
    if lives is not None:
        return lives
    try:
        return time.time() - path.stat().st_mtime < LEASE
    except FileNotFoundError:
        return False


def _flock(file: IO[str]) -> bool:
    """Lock by the kernel; False where the file system has no flock. BlockingIOError: held."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in _NO_FLOCK:
            raise
        return False
    return True


def _this_process() -> _Owner:
    return _Owner(
        host=socket.gethostname(),
        boot=_proc("sys/kernel/random/boot_id"),
        pid=os.getpid(),
        started=_started(os.getpid()),
        job=os.environ.get("SLURM_JOB_ID", ""),
        restarts=int(os.environ.get("SLURM_RESTART_COUNT") or 0),
    )


def _owner_in(path: Path) -> _Owner | None:
    try:
        return _Owner(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None  # released, or torn while it was written


def _lives(owner: _Owner, mine: _Owner, by_kernel: bool) -> bool | None:
    """Whether the `owner` named in a lock that the kernel gave us is alive; None: unknown."""
    if owner.job and owner.job == mine.job and owner.restarts < mine.restarts:
        return False  # SLURM requeues a job only after all its processes have ended
    if (owner.host, owner.boot) != (mine.host, mine.boot):
        return None  # another node, or this one before it was booted
    return not by_kernel and _started(owner.pid) == owner.started


def _is_touched(path: Path, owner: _Owner) -> bool:
    """Whether the owner touches `path` within LEASE seconds: by no clock but our own."""
    logger.warning("%s was left by %s: waiting up to %.0f s for its sign", path, owner, LEASE)
    first, end = _touched(path), time.monotonic() + LEASE
    while time.monotonic() < end:
        time.sleep(min(0.5, LEASE / 10))
        if _touched(path) != first:
            return True
    return False


def _touched(path: Path) -> int:
    with path.open("rb") as file:  # opened again: NFS asks its server for the time only then
        return os.fstat(file.fileno()).st_mtime_ns


def _proc(name: str) -> str:
    try:
        return Path("/proc", name).read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _started(pid: int) -> str:
    """When a process of this node was started, in the kernel's ticks; "" where there is none."""
    fields = _proc(f"{pid}/stat").rpartition(")")[2].split()
    return fields[19] if len(fields) > 19 else ""  # field 22 of proc(5); the name may hold spaces
