"""Where a CPU step spends its time: verl as it comes, and what this project changes, one by one.

    python scripts/bench_step.py [--steps 6] [--only WORDS ...] [--out runs/bench_step]

Each variant is a real run of examples/toy on the same start model, one after the other on an
otherwise idle machine. The table holds the median seconds of the steps after the first, and the
ratio to the default. The last two are choices: to keep the engine's log-probabilities, from which
the line below the table has how far its probabilities are from the actor's, and to take them as old
ones (verl's bypass mode). Variants that are done are not run again.
"""

import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

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
STOCK_ACTOR = ["actor_rollout_ref.model.external_lib=recipe.patches.cpu.engines"]
BYPASS = ["algorithm.rollout_correction.bypass_mode=true"]
LOG_PROBS = ["actor_rollout_ref.rollout.calculate_log_probs=true"]
DEFAULT = "+ prefix trees in the actor"
KEPT = "+ the engine's log-probabilities kept"
DIFFERENCE = "training/rollout_probs_diff_max"  # verl's: of a token, largest in a step
VARIANTS = {
    "verl as it comes": STOCK_WORKER + STOCK_POLL + STOCK_EXECUTOR,
    "+ short poll": STOCK_WORKER + STOCK_EXECUTOR,
    "+ engine in its core process": STOCK_WORKER,
    "+ questions, not rollouts": STOCK_ACTOR,
    DEFAULT: [],
    KEPT: LOG_PROBS,
    "+ these as the old ones (bypass mode)": LOG_PROBS + BYPASS,
}


def lines_of(name: str, overrides: list[str], steps: int, out: Path) -> list[dict[str, Any]]:
    """The metrics of a variant's run, by step."""
    run = out / re.sub(r"\W+", "_", name).strip("_")
    command = [sys.executable, "-m", "recipe.train", "toy", f"recipe.run_dir={run}"]
    settings = [f"trainer.total_training_steps={steps}", "trainer.save_freq=-1"]
    if len(read_metrics(run)) < steps:
        subprocess.run([*command, *settings, "trainer.test_freq=-1", *overrides], check=True)
    return read_metrics(run)


def medians(lines: list[dict[str, Any]]) -> dict[str, float]:
    """Seconds of each part of a step, without the first step."""
    return {p: statistics.median(m[f"timing_s/{p}"] for m in lines[1:]) for p in PARTS}


def main() -> None:
    parser = make_parser(
        "python scripts/bench_step.py",
        __doc__,
        example="python scripts/bench_step.py --steps 6",
    )
    parser.add_argument("--steps", type=int, default=6, help="of each variant")
    parser.add_argument("--only", nargs="+", help="variants with one of these words; the default")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/bench_step"), help="where the runs go"
    )
    arguments = parser.parse_args()
    words = arguments.only or [""]
    chosen = {n: o for n, o in VARIANTS.items() if n == DEFAULT or any(w in n for w in words)}
    runs = {n: lines_of(n, o, arguments.steps, arguments.out) for n, o in chosen.items()}
    rows = {name: medians(lines) for name, lines in runs.items()}
    print(f"| median seconds | {' | '.join(PARTS)} | step / default |")
    print("|---" * (len(PARTS) + 2) + "|")
    for name, row in rows.items():
        cells = " | ".join(f"{row[p]:.2f}" for p in PARTS)
        print(f"| {name} | {cells} | {row['step'] / rows[DEFAULT]['step']:.2f} |")
    if KEPT in runs:
        largest = max(m[DIFFERENCE] for m in runs[KEPT])
        print(f"probability of a token, engine and actor: {largest:.1e} apart at most ({KEPT[2:]})")


if __name__ == "__main__":
    main()
