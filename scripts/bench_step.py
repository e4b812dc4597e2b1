"""Where a CPU step spends its time: verl as it comes, and what this project changes, one by one.

    python scripts/bench_step.py [--steps 6] [--out runs/bench_step]

Each variant is a real run of examples/toy on the same start model, one after the other on an
otherwise idle machine. The table holds the median seconds of the steps after the first, and the
ratio to the last variant, which is the default. Variants that are done are not run again.
"""

import re
import statistics
import subprocess
import sys
from pathlib import Path

from prompt_aug.commands import make_parser
from recipe.run.folder import read_metrics

PARTS = ("step", "gen", "old_log_prob", "adv", "update_actor", "update_weights")
STOCK_WORKER = [
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class=null",
    "actor_rollout_ref.model.external_lib=[recipe.patches.cpu.engines,recipe.rollout.agent_loop]",
]
STOCK_POLL = ["recipe.rollout.poll_seconds=2.0"]
STOCK_EXECUTOR = [
    "actor_rollout_ref.rollout.engine_kwargs.vllm.distributed_executor_backend=mp",
]
VARIANTS = {
    "verl as it comes": STOCK_WORKER + STOCK_POLL + STOCK_EXECUTOR,
    "+ short poll": STOCK_WORKER + STOCK_EXECUTOR,
    "+ engine in its core process": STOCK_WORKER,
    "+ questions, not rollouts": [],
}


def measure(name: str, overrides: list[str], steps: int, out: Path) -> dict[str, float]:
    """The median seconds of each part of a step."""
    run = out / re.sub(r"\W+", "_", name).strip("_")
    command = [sys.executable, "-m", "recipe.train", "toy", f"recipe.run_dir={run}"]
    settings = [f"trainer.total_training_steps={steps}", "trainer.save_freq=-1"]
    lines = read_metrics(run)
    if len(lines) < steps:
        subprocess.run([*command, *settings, "trainer.test_freq=-1", *overrides], check=True)
        lines = read_metrics(run)
    return {p: statistics.median(m[f"timing_s/{p}"] for m in lines[1:]) for p in PARTS}


def main() -> None:
    parser = make_parser(
        "python scripts/bench_step.py",
        __doc__,
        example="python scripts/bench_step.py --steps 6",
    )
    parser.add_argument("--steps", type=int, default=6, help="of each variant")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/bench_step"), help="where the runs go"
    )
    arguments = parser.parse_args()
    rows = {n: measure(n, o, arguments.steps, arguments.out) for n, o in VARIANTS.items()}
    last = list(rows.values())[-1]
    print(f"| median seconds | {' | '.join(PARTS)} | step / default |")
    print("|---" * (len(PARTS) + 2) + "|")
    for name, row in rows.items():
        cells = " | ".join(f"{row[p]:.2f}" for p in PARTS)
        print(f"| {name} | {cells} | {row['step'] / last['step']:.2f} |")


if __name__ == "__main__":
    main()
