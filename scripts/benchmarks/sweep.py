"""Wall time of an evaluation sweep: one engine for all checkpoints, or one start for each.

Evaluates the exported checkpoints of RUN in three ways: with one engine that loads each checkpoint,
one engine per checkpoint, or one process per checkpoint and repeat. The published sweep does the
last (198 checkpoints x 5 repeats: 990 starts). Other options are passed to eval.sweep. Prints JSON
with seconds, engine starts and ratios to the first. Fails if the samples of the first two differ.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from eval.checkpoints import find
from prompt_aug.base.files import read_lines

EXAMPLE = "runs/demo --repeats 2"


def sweep(run: Path, out: Path, *more: str) -> tuple[float, int]:
    """Return (seconds, engine starts) of one call of eval.sweep."""
    command = [sys.executable, "-m", "eval.sweep", str(run), "--out", str(out), *more]
    started = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    starts = re.search(r"engine: (\d+) started", done.stdout)
    return time.perf_counter() - started, int(starts[1]) if starts else 0


def samples(out: Path) -> dict[tuple[str, str, int], str]:
    """Return every response below a folder, by checkpoint, question and number."""
    return {
        (path.parent.parent.name, line["uid"], line["sample"]): line["response"]
        for path in out.glob("*/step_*/*/samples-*.jsonl")
        for line in read_lines(path)[1:]
    }


def main(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="a run with exported checkpoints")
    parser.add_argument("--repeats", type=int, default=2, help="samples of every question")
    given, more = parser.parse_known_args(arguments)
    count = ["--samples", str(given.repeats), *more]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        one = sweep(given.run, root / "one", *count)
        each = sweep(given.run, root / "each", "--no-reload", *count)
        repeated = []
        for seed in range(given.repeats):
            for checkpoint in find(given.run):
                asked = ["--steps", str(checkpoint.step), "--samples", "1", "--seed", str(seed)]
                repeated.append(sweep(given.run, root / "repeat" / str(seed), *asked, *more))
        measured = {
            "one engine": one,
            "one start per checkpoint": each,
            "one start per checkpoint and repeat": tuple(map(sum, zip(*repeated, strict=True))),
        }
        first = samples(root / "one")
        equal = first == samples(root / "each")
    report = {
        name: {"seconds": round(seconds, 1), "starts": starts, "ratio": round(seconds / one[0], 2)}
        for name, (seconds, starts) in measured.items()
    }
    print(json.dumps({"samples": len(first), "samples equal": equal, **report}))
    if not equal:
        sys.exit("samples differ between reloaded weights and restarted engines")
