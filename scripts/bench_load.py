"""A CPU run on an idle machine and beside other work: teaching, engine, actor.

    python scripts/bench_load.py [--busy 2] [--steps 4] [--set NAME=VALUE ...] [--out FOLDER]

Runs examples/toy twice, the second time beside `--busy` endless loops, each with its own new start
model of `--updates` updates. Prints median seconds of an update of the start model (teach), of a
step's rollouts (engine) and its two passes of the actor, and their ratios. With as many loops as
cores a fair scheduler gives a ratio of 2. `--set GOMP_SPINCOUNT=300000` measures libgomp's default.
"""

import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from prompt_aug.commands import make_parser
from recipe.run.folder import read_metrics

PARTS = {"engine": ("gen",), "actor": ("old_log_prob", "update_actor")}


@contextlib.contextmanager
def beside(busy: int) -> Iterator[None]:
    """Keep `busy` processes computing while the body runs."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def measure(folder: Path, steps: int, updates: int, variables: dict[str, str]) -> dict[str, float]:
    """Median seconds by part of one run, made in `folder`."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "recipe.train", "toy", f"recipe.run_dir={folder / 'run'}"]
    command += [f"recipe.toy.cache={folder / 'cache'}", f"recipe.toy.updates={updates}"]
    command += [f"trainer.total_training_steps={steps}", "trainer.save_freq=-1"]
    subprocess.run(command, check=True, env={**os.environ, **variables})
    manifest = json.loads(next((folder / "cache").glob("*/manifest.json")).read_text())
    lines = read_metrics(folder / "run")[1:]
    seconds = {
        part: statistics.median(sum(line[f"timing_s/{key}"] for key in keys) for line in lines)
        for part, keys in PARTS.items()
    }
    return {"teach": manifest["seconds"] / updates, **seconds}


def main() -> None:
    parser = make_parser(
        "python scripts/bench_load.py", __doc__, example="python scripts/bench_load.py --busy 2"
    )
    parser.add_argument("--busy", type=int, default=os.cpu_count(), help="loops beside the run")
    parser.add_argument("--steps", type=int, default=4, help="of the run; the first is left out")
    parser.add_argument("--updates", type=int, default=60, help="of the start model")
    parser.add_argument(
        "--set", nargs="*", default=[], metavar="NAME=VALUE", help="environment variables"
    )
    parser.add_argument(
        "--out", type=Path, default=Path("runs/bench_load"), help="where the runs go"
    )
    given = parser.parse_args()
    variables = dict(text.split("=", 1) for text in given.set)
    idle = measure(given.out / "idle", given.steps, given.updates, variables)
    with beside(given.busy):
        busy = measure(given.out / "busy", given.steps, given.updates, variables)
    print(f"| median seconds | idle | beside {given.busy} loops | ratio |\n|---|---|---|---|")
    for part in idle:
        print(f"| {part} | {idle[part]:.3f} | {busy[part]:.3f} | {busy[part] / idle[part]:.2f} |")


if __name__ == "__main__":
    main()
