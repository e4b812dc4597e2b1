"""A file appears whole or not at all."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that takes the place of `path` when the block ends well; makes its folder.

    It is written beside `path`, flushed to the disk and renamed. Where the block raises, the disk
    is full or the process is killed, `path` is what it was before; only a kill leaves the file
    beside it behind, hidden and named after the process.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
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
