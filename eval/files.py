"""Small file helpers: whole files or none, JSON lines that survive a kill, one writer at a time."""

import contextlib
import fcntl
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from eval.errors import EvaluationError
from prompt_aug.files import write_text


def write_json(path: Path, value: Any) -> None:
    """Indented, standard JSON: NaN and infinity are refused, because other readers choke on them"""
    write_text(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """The JSON in `path`; a missing or broken file is an `EvaluationError` that names it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise EvaluationError(f"{path} is missing") from error
    except ValueError as error:
        raise EvaluationError(f"{path} is not valid JSON ({error}); delete it and redo") from error


def dump_lines(records: Iterable[dict[str, Any]]) -> str:
    """One JSON object a line."""
    return "".join(json.dumps(record) + "\n" for record in records)


def iter_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a JSON-lines file, without a last line that a killed writer left unfinished.

    A missing file has none. A broken line before the last is damage that no kill explains: raises.
    """
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith("\n") or not line.strip():
                continue
            try:
                yield json.loads(line)
            except ValueError as error:
                raise EvaluationError(f"{path}, line {number}: no valid JSON ({error})") from error


def read_lines(path: Path) -> list[dict[str, Any]]:
    """All of `iter_lines`."""
    return list(iter_lines(path))


@contextlib.contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process; a second one is refused. The lock dies with its holder."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise EvaluationError(
                f"{folder} is being evaluated by another process; wait for it or stop it"
            ) from error
        yield
