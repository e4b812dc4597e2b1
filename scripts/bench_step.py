"""Where a CPU step spends its time: verl as it comes, and what this project changes, one by one.

    python scripts/bench_step.py [--steps 6] [--world NAME] [--only WORDS ...] [--out FOLDER]

Each variant is a real run of examples/toy on the same start model, one after the other on an
otherwise idle machine. The table holds the median seconds of the steps after the first, and the
ratio to the default. The last one is a choice: to take the engine's log-probabilities as the old
ones (verl's bypass mode). The line below the table has how far its probabilities are from the
actor's. Variants that are done are not run again.
"""

import os
import re
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from prompt_aug.commands import make_parser
from recipe.run.environment import ENGINE_THREADS
from recipe.run.folder import read_metrics
from recipe.toy.world import names

PARTS = ("step", "gen", "old_log_prob", "adv", "update_actor", "update_weights")
Settings = list[str]  # overrides, and NAME=value for the environment
STOCK_WORKER = [
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class=null",
    "actor_rollout_ref.model.external_lib=[recipe.patches.cpu.engines,recipe.rollout.agent_loop]",
]
STOCK_POLL = ["recipe.rollout.poll_seconds=2.0"]
STOCK_EXECUTOR = [
    "actor_rollout_ref.rollout.engine_kwargs.vllm.distributed_executor_backend=mp",
]
STOCK_ACTOR = ["actor_rollout_ref.model.external_lib=recipe.patches.cpu.engines"]
STOCK_THREADS = [f"{ENGINE_THREADS}={len(os.sched_getaffinity(0))}"]
STOCK_BLOCKS = ["actor_rollout_ref.rollout.engine_kwargs.vllm.block_size=128"]
STOCK_ENGINE = STOCK_THREADS + STOCK_BLOCKS
BYPASS = ["algorithm.rollout_correction.bypass_mode=true"]
DEFAULT = "+ small blocks of the prompt cache"
DIFFERENCE = "training/rollout_probs_diff_max"  # verl's: of a token, largest in a step
VARIANTS: dict[str, Settings] = {
    "verl as it comes": STOCK_WORKER + STOCK_POLL + STOCK_EXECUTOR + STOCK_ENGINE,
    "+ short poll": STOCK_WORKER + STOCK_EXECUTOR + STOCK_ENGINE,
    "+ engine in its core process": STOCK_WORKER + STOCK_ENGINE,
    "+ questions, not rollouts": STOCK_ACTOR + STOCK_ENGINE,
    "+ prefix trees in the actor": STOCK_ENGINE,
    "+ half of the threads for the engine": STOCK_BLOCKS,
    DEFAULT: [],
    "+ the engine's log-probabilities as the old ones (bypass mode)": BYPASS,
}


def lines_of(
    name: str, settings: Settings, world: str, steps: int, out: Path
) -> list[dict[str, Any]]:
    """The metrics of a variant's run, by step."""
    run = out / world / re.sub(r"\W+", "_", name).strip("_")
    if len(read_metrics(run)) < steps:
        overrides = [s for s in settings if not s.startswith(ENGINE_THREADS)]
        variables = dict(s.split("=") for s in settings if s.startswith(ENGINE_THREADS))
        command = [sys.executable, "-m", "recipe.train", "toy", f"recipe.run_dir={run}"]
        command += [f"recipe.toy.world={world}", f"trainer.total_training_steps={steps}"]
        command += ["trainer.save_freq=-1", "trainer.test_freq=-1", *overrides]
        subprocess.run(command, check=True, env={**os.environ, **variables})
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
    parser.add_argument("--world", default="staircase", choices=names(), help="of recipe/toy")
    parser.add_argument("--only", nargs="+", help="variants with one of these words; the default")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/bench_step"), help="where the runs go"
    )
    arguments = parser.parse_args()
    words = arguments.only or [""]
    if unknown := [w for w in words if not any(w in name for name in VARIANTS)]:
        parser.error(f"no variant has {unknown[0]!r} in its name; there are: {'; '.join(VARIANTS)}")
    chosen = {n: o for n, o in VARIANTS.items() if n == DEFAULT or any(w in n for w in words)}
    runs = {
        name: lines_of(name, settings, arguments.world, arguments.steps, arguments.out)
        for name, settings in chosen.items()
    }
    rows = {name: medians(lines) for name, lines in runs.items()}
    print(f"| median seconds | {' | '.join(PARTS)} | step / default |")
    print("|---" * (len(PARTS) + 2) + "|")
    for name, row in rows.items():
        cells = " | ".join(f"{row[p]:.2f}" for p in PARTS)
        print(f"| {name} | {cells} | {row['step'] / rows[DEFAULT]['step']:.2f} |")
    largest = max(m[DIFFERENCE] for m in runs[DEFAULT])
    print(f"probability of a token, engine and actor: {largest:.1e} apart at most")


if __name__ == "__main__":
    main()
