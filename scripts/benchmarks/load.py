"""A CPU run on an idle machine and beside other work: teaching, engine, actor.

Runs examples/toy twice, the second time beside `--busy` endless loops, each with a new start model.
Prints median seconds of an update of the start model (teach), of a step's rollouts (engine) and of
its two passes of the actor, and their ratios. With as many loops as cores a fair scheduler gives a
ratio of 2. `--set GOMP_SPINCOUNT=300000` measures libgomp's default.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

from benchmarks.step import train

from recipe.run.folder import read_metrics

EXAMPLE = "--busy 2"
PARTS = {"engine": ("gen",), "actor": ("old_log_prob", "update_actor")}


def measure(folder: Path, steps: int, updates: int, variables: dict[str, str]) -> dict[str, float]:
    """Median seconds by part of one run, made in `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    made = [f"recipe.toy.cache={folder / 'cache'}", f"recipe.toy.updates={updates}"]
    train(folder / "run", steps, made, variables)
    manifest = json.loads(next((folder / "cache").glob("*/manifest.json")).read_text())
    lines = read_metrics(folder / "run")[1:]
    seconds = {
        part: statistics.median(sum(line[f"timing_s/{key}"] for key in keys) for line in lines)
        for part, keys in PARTS.items()
    }
    return {"teach": manifest["seconds"] / updates, **seconds}


def main(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    parser.add_argument("--busy", type=int, default=os.cpu_count(), help="loops beside the run")
    parser.add_argument("--steps", type=int, default=4, help="of the run; the first is skipped")
    parser.add_argument("--updates", type=int, default=60, help="of the start model")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="environment")
    parser.add_argument("--out", type=Path, default=Path("runs/bench_load"), help="for the runs")
    given = parser.parse_args(arguments)
    variables = dict(text.split("=", 1) for text in given.set)
    idle = measure(given.out / "idle", given.steps, given.updates, variables)
    loop = [sys.executable, "-c", "while True: pass"]
    loops = [subprocess.Popen(loop) for _ in range(given.busy)]
    try:
        busy = measure(given.out / "busy", given.steps, given.updates, variables)
    finally:
        for process in loops:
            process.kill()
            process.wait()
    print(f"| median seconds | idle | beside {given.busy} loops | ratio |\n|---|---|---|---|")
    for part in idle:
        print(f"| {part} | {idle[part]:.3f} | {busy[part]:.3f} | {busy[part] / idle[part]:.2f} |")
