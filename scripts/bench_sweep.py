"""Wall time of an evaluation sweep: one engine for all checkpoints against one start for each.

    python scripts/bench_sweep.py RUN [--repeats 2] [options of eval.sweep]

Three ways, one after the other on the same exported checkpoints of RUN, each into a folder of its
own: one engine that loads the weights of one checkpoint after the other; one engine start per
checkpoint; and one process per checkpoint and repeat, as the published sweep does it (198
checkpoints x 5 repeats: 990 starts). Each makes --repeats samples of every question. Prints a JSON
line with seconds, engine starts and ratios to the first; the first two must make equal samples.
"""

import json
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from eval.checkpoints import find
from prompt_aug.commands import make_parser
from prompt_aug.files import read_lines


def sweep(run: Path, out: Path, *more: str) -> tuple[float, int]:
    """(seconds, engine starts) of one call of the command."""
    command = [sys.executable, "-m", "eval.sweep", str(run), "--out", str(out), *more]
    started = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    told = re.search(r"engine: (\d+) started", done.stdout)
    return time.perf_counter() - started, int(told[1]) if told else 0


def repeated(run: Path, out: Path, repeats: int, more: list[str]) -> tuple[float, int]:
    """A process per checkpoint and repeat; the repeats differ in their seed."""
    steps = [str(checkpoint.step) for checkpoint in find(run)[0]]
    each = [
        sweep(run, out / str(seed), "--steps", step, "--samples", "1", "--seed", str(seed), *more)
        for seed in range(repeats)
        for step in steps
    ]
    return sum(seconds for seconds, _ in each), sum(starts for _, starts in each)


def samples(out: Path) -> dict[tuple[str, str, int], str]:
    """Every response below a folder, by checkpoint, question and number."""
    return {
        (path.parent.parent.name, line["uid"], line["sample"]): line["response"]
        for path in out.glob("*/step_*/*/samples-*.jsonl")
        for line in read_lines(path)[1:]
    }


def main() -> None:
    parser = make_parser(
        "python scripts/bench_sweep.py",
        __doc__,
        example="python scripts/bench_sweep.py runs/demo --repeats 2",
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="a run with exported checkpoints")
    parser.add_argument("--repeats", type=int, default=2, help="samples of every question")
    options, more = parser.parse_known_args()
    count = ["--samples", str(options.repeats)]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        measured = {
            "one engine": sweep(options.run, root / "one", *count, *more),
            "one start per checkpoint": sweep(
                options.run, root / "each", "--no-reload", *count, *more
            ),
            "one start per checkpoint and repeat": repeated(
                options.run, root / "repeat", options.repeats, more
            ),
        }
        equal = samples(root / "one") == samples(root / "each")
        size = len(samples(root / "one"))
    base = measured["one engine"][0]
    report = {
        name: {"seconds": round(seconds, 1), "starts": starts, "ratio": round(seconds / base, 2)}
        for name, (seconds, starts) in measured.items()
    }
    print(json.dumps({"samples": size, "samples equal": equal, **report}))
    if not equal:
        sys.exit("the exchange of weights has changed samples")


if __name__ == "__main__":
    main()
