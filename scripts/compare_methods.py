"""The toy twins side by side: every method, several seeds, one start model; prints a table.

    python scripts/compare_methods.py [--methods grpo ta_grpo ...] [--seeds 0 1 2] [--steps 60]
                                      [--jobs 1] [--out runs/methods]

Each run is `python -m recipe.train METHOD/toy` with 64 responses a step; a seed changes the data
order and the engine's sampling, not the toy world nor its start model. Runs that are done are not
run again, a run that was cut goes on or starts anew, so the command can be called until the table
is full. With --jobs 2 each run has one thread.

Columns, mean over seeds +- their standard deviation: accuracy and reward of the training rollouts
and entropy (nats per token) over the last ten steps; held out: greedy accuracy on the validation
questions after the last step, under the template qwen-math for all; no signal: share of the
generated groups whose rewards are all equal (dynamic sampling: whose accuracies are), over all
steps; generated: responses generated for one trained on; accuracy of the first five steps, as the
level they start from.
"""

import argparse
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from recipe.run_folder import read_metrics

ROOT = Path(__file__).resolve().parents[1]
HEADER = (
    *("method", "seeds", "accuracy, first 5", "accuracy", "held out"),
    *("reward", "entropy", "no signal"),
)


def methods() -> list[str]:
    """The examples that have a toy twin."""
    return sorted(p.parents[1].name for p in (ROOT / "examples").glob("*/toy/config.yaml"))


def run(method: str, seed: int, steps: int, out: Path, threads: int) -> str:
    """Train one twin unless that is done; returns a line for the console."""
    folder = out / f"{method}-{seed}"
    if len(read_metrics(folder)) >= steps:
        return f"{method} seed {seed}: done before"
    command = [sys.executable, "-m", "recipe.train", f"{method}/toy", f"recipe.run_dir={folder}"]
    command += [f"data.seed={seed}", f"actor_rollout_ref.rollout.seed={seed}"]
    command += [f"trainer.total_training_steps={steps}", f"trainer.test_freq={steps}"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    out.mkdir(parents=True, exist_ok=True)
    with (out / f"{method}-{seed}.log").open("w") as log:
        code = subprocess.run(
            command, stdout=log, stderr=log, env=environment, check=False
        ).returncode
    return f"{method} seed {seed}: " + ("done" if code == 0 else f"failed ({code}), see its log")


def figures(lines: list[dict]) -> dict[str, float]:
    """The numbers of one run."""

    def last(key: str) -> float:
        return statistics.fmean(m[key] for m in lines[-10:])

    silent = [
        m["dynamic_sampling/evicted"] / m["dynamic_sampling/generated"]
        if "dynamic_sampling/generated" in m
        else m["train/no_signal_groups"]
        for m in lines
    ]
    generated = [m.get("dynamic_sampling/generated", m["train/groups"]) for m in lines]
    return {
        "accuracy, first 5": statistics.fmean(m["train/accuracy"] for m in lines[:5]),
        "accuracy": last("train/accuracy"),
        "held out": lines[-1]["val/toy_arithmetic/accuracy"],
        "reward": last("critic/score/mean"),
        "entropy": last("actor/entropy"),
        "no signal": statistics.fmean(silent),
        "generated": sum(generated) / sum(m["train/groups"] for m in lines),
    }


def row(method: str, runs: list[dict[str, float]]) -> str:
    """One line of the table: mean and standard deviation over the seeds."""
    cells = [method, str(len(runs))]
    for key in HEADER[2:]:
        values = [r[key] for r in runs]
        spread = statistics.stdev(values) if len(values) > 1 else float("nan")
        cells.append(f"{statistics.fmean(values):.3f} ± {spread:.3f}")
    cells.append(f"{statistics.fmean(r['generated'] for r in runs):.2f}")
    return "| " + " | ".join(cells) + " |"


def table(names: list[str], seeds: list[int], steps: int, out: Path) -> str:
    """The table in markdown, of the runs that are done."""
    lines = ["| " + " | ".join((*HEADER, "generated")) + " |", "|---" * (len(HEADER) + 1) + "|"]
    for name in names:
        found = [read_metrics(out / f"{name}-{seed}") for seed in seeds]
        done = [figures(lines[:steps]) for lines in found if len(lines) >= steps]
        if done:
            lines.append(row(name, done))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--methods", nargs="+", default=methods(), choices=methods())
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("runs/methods"))
    given = parser.parse_args()
    threads = max(1, (os.cpu_count() or 1) // given.jobs)
    with ThreadPoolExecutor(given.jobs) as pool:
        tasks = [
            pool.submit(run, method, seed, given.steps, given.out, threads)
            for seed in given.seeds
            for method in given.methods
        ]
        for task in tasks:
            print(task.result(), flush=True)
    print(table(given.methods, given.seeds, given.steps, given.out))


if __name__ == "__main__":
    main()
