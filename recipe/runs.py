"""List the runs under a folder: ``python -m recipe.runs [FOLDER]``.

A line per run: last step and its age, state, accuracy of the last validation and step, disk space.
running: its process works on it; done: all steps are there; stopped: the same command continues;
failed: logs/ has the error; killed: it left no record of its end; ready: nothing was trained yet;
damaged: the error is printed.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from prompt_aug.base.commands import existing, in_columns, make_parser, run_command
from prompt_aug.base.errors import UserError
from prompt_aug.base.progress import duration
from recipe.run.ending import state_of
from recipe.run.folder import RunFolder, read_config, read_metrics, select

HEADER = ("run", "step", "age", "state", "held out", "training", "disk")


def find(folder: Path) -> Iterator[Path]:
    """Yield the run folders at or under `folder`, by name, without searching inside of them."""
    for place, folders, files in os.walk(folder):
        if "config.yaml" in files and {"data", "checkpoints"} & set(folders):
            folders.clear()
            yield Path(place)
        folders[:] = sorted(name for name in folders if not name.startswith("."))


def row(path: Path, name: str) -> tuple[str, ...]:
    """Return the cells of one run; the held-out accuracy is of the first data set."""
    folder, lines = RunFolder(path), read_metrics(path)
    try:
        steps = select(read_config(path), "trainer.total_training_steps")
    except UserError:  # config.yaml is cut
        steps = None
    step = lines[-1]["step"] if lines else 0
    state = state_of(folder, done=isinstance(steps, int) and step >= steps, begun=bool(lines))
    age = duration(time.time() - folder.metrics.stat().st_mtime) if lines else "-"
    held_out = [v for x in reversed(lines) for k, v in x.items() if fnmatch(k, "val/*/accuracy")]
    training = [x["train/accuracy"] for x in lines[-1:] if "train/accuracy" in x]
    shares = [f"{values[0]:.3f}" if values else "-" for values in (held_out, training)]
    used = subprocess.run(["du", "-s", "-B1", path], stdout=subprocess.PIPE, check=False).stdout
    disk = f"{int(used.split()[0]) / 1e9:.2f} GB"
    return name, f"{step}/{steps or '?'}", age, state, *shares, disk


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser("python -m recipe.runs", __doc__, example="python -m recipe.runs runs")
    parser.add_argument("folder", nargs="?", type=existing, default="runs", help="where to look")
    folder = parser.parse_args(arguments).folder

    def show() -> int:
        rows = []
        for path in find(folder):
            name = str(path.relative_to(folder))
            try:
                rows.append(row(path, name))
            except Exception as error:  # whatever its files hold, it must not hide the other runs
                print(f"recipe.runs: {path}: {type(error).__name__}: {error}", file=sys.stderr)
                rows.append((name, "?", "-", "damaged", "-", "-", "-"))
        if not rows:
            raise UserError(f"no run in {folder}: a run folder holds config.yaml and data/")
        print(in_columns([HEADER, *rows], left=("run", "state")))
        return 0

    return run_command("recipe.runs", show, interrupted="nothing was changed")


if __name__ == "__main__":
    sys.exit(main())
