"""Every method on the toy task, several seeds, one start model; prints a table.

    python scripts/compare_methods.py [--methods grpo ta_grpo ...] [--seeds 0 1 2] [--steps 60]
                                      [--jobs 1] [--out runs/methods] [--record FILE]

Each run is `python -m recipe.train toy_methods method=METHOD` with 64 responses a step; a seed
changes the data order and the engine's sampling, not the toy world nor its start model. The figures
of every run are appended to the record, examples/methods.jsonl, with the commit they come from;
what is there is not run again, so the command can be called until the table is full. With --jobs 2
each run has one thread.

Columns, mean over seeds +- their standard deviation (of one seed its value): accuracy and reward
of the training rollouts and entropy (nats per token) over the last ten steps; held out: greedy
accuracy on the validation questions after the last step, under the template qwen-math for all; no
signal: share of the generated groups whose rewards are all equal (dynamic sampling: whose
accuracies are), over all steps; generated: responses generated for one trained on; accuracy of the
first five steps, as the level they start from.
"""

import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from prompt_aug.base.commands import make_parser
from prompt_aug.base.files import read_json
from prompt_aug.base.progress import Progress
from recipe.config.compose import group_names
from recipe.run.folder import RunFolder, read_metrics

ROOT = Path(__file__).resolve().parents[1]
# What a method cannot do without: for 1-shot RLVR the row of its question, a sum with a carry under
# the seeds 0, 1 and 2.
NEEDED = {"one_shot": ["recipe.one_question=5"]}
HEADER = (
    *("method", "seeds", "accuracy, first 5", "accuracy", "held out"),
    *("reward", "entropy", "no signal"),
)


def methods() -> list[str]:
    """The methods, as recipe/config/method/ has them."""
    return group_names("method")


def arguments(method: str) -> list[str]:
    """What `recipe.train` is called with for a method on the toy task."""
    return ["toy_methods", f"method={method}", *NEEDED.get(method, [])]


def run(method: str, seed: int, steps: int, out: Path, threads: int) -> dict | None:
    """Train one method unless that is done; its line of the record, None where it failed."""
    folder = out / f"{method}-{seed}"
    if len(read_metrics(folder)) < steps:
        train(method, seed, steps, out, threads)
    lines = read_metrics(folder)
    if len(lines) < steps:
        return None
    commit = read_json(RunFolder(folder).environment)["commit"]
    place = {"method": method, "seed": seed, "steps": steps, "commit": commit}
    return {**place, "figures": {k: round(v, 6) for k, v in figures(lines[:steps]).items()}}


def train(method: str, seed: int, steps: int, out: Path, threads: int) -> None:
    """The run itself; its output goes beside its folder."""
    folder = out / f"{method}-{seed}"
    command = [sys.executable, "-m", "recipe.train", *arguments(method)]
    command += [
        f"recipe.run_dir={folder}",
        f"data.seed={seed}",
        f"actor_rollout_ref.rollout.seed={seed}",
    ]
    command += [f"trainer.total_training_steps={steps}", f"trainer.test_freq={steps}"]
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    out.mkdir(parents=True, exist_ok=True)
    with (out / f"{method}-{seed}.log").open("w") as log:
        subprocess.run(command, stdout=log, stderr=log, env=environment, check=False)


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
        "entropy": last("train/entropy"),
        "no signal": statistics.fmean(silent),
        "generated": sum(generated) / sum(m["train/groups"] for m in lines),
    }


def row(method: str, runs: list[dict[str, float]]) -> str:
    """One line of the table: mean and standard deviation over the seeds."""
    cells = [method, str(len(runs))]
    for key in HEADER[2:]:
        values = [r[key] for r in runs]
        spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
        cells.append(f"{statistics.fmean(values):.3f}{spread}")
    cells.append(f"{statistics.fmean(r['generated'] for r in runs):.2f}")
    return "| " + " | ".join(cells) + " |"


def read_record(path: Path, steps: int) -> dict[tuple[str, int], dict]:
    """The lines of the record with so many steps, by method and seed."""
    lines = [json.loads(x) for x in path.read_text().splitlines()] if path.exists() else []
    return {(x["method"], x["seed"]): x for x in lines if x["steps"] == steps}


def table(names: list[str], seeds: list[int], done: dict[tuple[str, int], dict]) -> str:
    """The table in markdown, of the runs on record."""
    lines = ["| " + " | ".join((*HEADER, "generated")) + " |", "|---" * (len(HEADER) + 1) + "|"]
    for name in names:
        found = [done[name, seed]["figures"] for seed in seeds if (name, seed) in done]
        if found:
            lines.append(row(name, found))
    return "\n".join(lines)


def main() -> None:
    parser = make_parser(
        "python scripts/compare_methods.py",
        __doc__,
        example="python scripts/compare_methods.py --methods grpo dapo",
    )
    parser.add_argument(
        "--methods", nargs="+", default=methods(), choices=methods(), help="in recipe/config/method"
    )
    parser.add_argument(
        "--seeds", nargs="+", type=int, default=[0, 1, 2], help="of data order and sampling"
    )
    parser.add_argument("--steps", type=int, default=60, help="of each run")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once")
    parser.add_argument("--out", type=Path, default=Path("runs/methods"), help="where the runs go")
    parser.add_argument(
        "--record",
        type=Path,
        default=ROOT / "examples" / "methods.jsonl",
        help="json lines, one for each run",
    )
    given = parser.parse_args()
    threads = max(1, (os.cpu_count() or 1) // given.jobs)
    done = read_record(given.record, given.steps)
    with Progress("compare the methods"), ThreadPoolExecutor(given.jobs) as pool:
        tasks = {
            (method, seed): pool.submit(run, method, seed, given.steps, given.out, threads)
            for seed in given.seeds
            for method in given.methods
            if (method, seed) not in done
        }
        for (method, seed), task in tasks.items():
            line = task.result()
            print(f"{method} seed {seed}:", "done" if line else "failed, see its log", flush=True)
            if line:
                with given.record.open("a") as file:
                    file.write(json.dumps(line) + "\n")
    print(table(given.methods, given.seeds, read_record(given.record, given.steps)))


if __name__ == "__main__":
    main()
