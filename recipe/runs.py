"""List the runs under a folder: ``python -m recipe.runs [FOLDER]``.

Prints a line per run: its last step, the age of that step, its state, the accuracy of its last
validation and of its last step, and its size on disk.

    running   its process works on it
    done      all steps are there
    stopped   ended before its last step; the same command continues
    failed    ended by an error; logs/ of its folder has it
    killed    its process is gone and left no record of its end
    ready     nothing was trained yet
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prompt_aug.base.commands import existing, in_columns, make_parser, run
from prompt_aug.base.errors import UserError
from prompt_aug.base.progress import duration
from recipe.run.ending import state_of
from recipe.run.folder import RunFolder, read_config, read_metrics, select

HEADER = ("run", "step", "age", "state", "held out", "training", "disk")


class NoRunsError(UserError):
    """A folder without a run in it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A run as the table shows it; `age` in seconds, `disk` in bytes, None: nothing is known."""

    name: str
    step: int
    steps: int | None
    age: float | None
    state: str
    held_out: float | None
    training: float | None
    disk: int


def find(folder: Path) -> Iterator[Path]:
    """Yield the run folders at or under `folder`, by name, without searching inside of them."""
    for place, folders, files in os.walk(folder):
        if "config.yaml" in files and ("data" in folders or "checkpoints" in folders):
            folders.clear()
            yield Path(place)
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def look(path: Path, name: str) -> Row:
    """The row of one run."""
    folder = RunFolder(path)
    lines, steps = read_metrics(path), _steps(folder)
    step = lines[-1]["step"] if lines else 0
    return Row(
        name=name,
        step=step,
        steps=steps,
        age=time.time() - folder.metrics.stat().st_mtime if lines else None,
        state=state_of(folder, done=steps is not None and step >= steps, begun=bool(lines)),
        held_out=_held_out(lines),
        training=lines[-1].get("train/accuracy") if lines else None,
        disk=disk_use(path),
    )


def _steps(folder: RunFolder) -> int | None:
    try:
        return int(select(read_config(folder.root), "trainer.total_training_steps"))
    except (OSError, ValueError, TypeError):
        return None


def _held_out(lines: list[dict[str, Any]]) -> float | None:
    """The last validation accuracy, of the first data set where there are several."""
    for line in reversed(lines):
        found = [v for k, v in line.items() if k.startswith("val/") and k.endswith("/accuracy")]
        if found:
            return float(found[0])
    return None


def disk_use(folder: Path) -> int:
    """Bytes on the disk of all below `folder`; a file with two names counts once."""
    seen, total = set(), 0
    for place, _, files in os.walk(folder):
        for name in files:
            try:
                status = Path(place, name).lstat()
            except FileNotFoundError:  # a live run
                continue
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                total += status.st_blocks * 512
    return total


def table(rows: list[Row]) -> str:
    """The rows under their header, in columns."""
    return in_columns([HEADER, *map(_cells, rows)], left=("run", "state"))


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        f"{row.step}/{'?' if row.steps is None else row.steps}",
        "-" if row.age is None else duration(row.age),
        row.state,
        "-" if row.held_out is None else f"{row.held_out:.3f}",
        "-" if row.training is None else f"{row.training:.3f}",
        f"{row.disk / 1e9:.2f} GB" if row.disk >= 1e7 else f"{row.disk / 1e6:.2f} MB",
    )


def show(options: argparse.Namespace) -> int:
    """Print the table; NoRunsError without a run."""
    folder = options.folder
    rows = [look(path, str(path.relative_to(folder))) for path in find(folder)]
    if not rows:
        raise NoRunsError(f"no run in {folder}: a run folder holds config.yaml and data/")
    print(table(rows))
    return 0


def main(arguments: list[str] | None = None) -> int:
    """Entry point; 0, 1 or 2 with the reason on stderr."""
    parser = make_parser("python -m recipe.runs", __doc__, example="python -m recipe.runs runs")
    parser.add_argument(
        "folder",
        metavar="FOLDER",
        nargs="?",
        type=existing,
        default="runs",
        help="where to look for run folders",
    )
    options = parser.parse_args(arguments)
    return run("recipe.runs", lambda: show(options), interrupted="nothing was changed")


if __name__ == "__main__":
    sys.exit(main())
