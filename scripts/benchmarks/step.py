"""Seconds of a CPU step: verl's defaults, then this project's changes added one by one.

Each variant is a real run of examples/toy from the same start model. The table holds the median
seconds of the steps after the first, and the ratio to the project's default. The last variant uses
the engine's log-probabilities as the old ones (verl's bypass mode). The line below the table is the
largest difference between engine and actor. Finished variants are not run again.
"""

import os
import re
import statistics
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recipe.run.environment import ENGINE_THREADS
from recipe.run.folder import read_metrics

EXAMPLE = "--steps 6"
PARTS = ("step", "gen", "old_log_prob", "adv", "update_actor", "update_weights")
WORKER = [
    "actor_rollout_ref.rollout.agent.agent_loop_manager_class=null",
    "actor_rollout_ref.model.external_lib=[recipe.patches.cpu.engines,recipe.rollout.agent_loop]",
]
POLL = ["recipe.rollout.poll_seconds=2.0"]
EXECUTOR = ["actor_rollout_ref.rollout.engine_kwargs.vllm.distributed_executor_backend=mp"]
ACTOR = ["actor_rollout_ref.model.external_lib=recipe.patches.cpu.engines"]
BLOCKS = ["actor_rollout_ref.rollout.engine_kwargs.vllm.block_size=128"]
ENGINE = [f"{ENGINE_THREADS}={len(os.sched_getaffinity(0))}", *BLOCKS]
DEFAULT = "+ small blocks of the prompt cache"
DIFFERENCE = "training/rollout_probs_diff_max"  # verl's: largest over the tokens of a step
# Variant -> overrides that restore verl's default, and NAME=value for the environment.
VARIANTS = {
    "verl's defaults": WORKER + POLL + EXECUTOR + ENGINE,
    "+ short poll": WORKER + EXECUTOR + ENGINE,
    "+ engine in its core process": WORKER + ENGINE,
    "+ questions, not rollouts": ACTOR + ENGINE,
    "+ prefix trees in the actor": ENGINE,
    "+ half of the threads for the engine": BLOCKS,
    DEFAULT: [],
    "+ bypass mode": ["algorithm.rollout_correction.bypass_mode=true"],
}


def metrics_of(run: Path, settings: Sequence[str], steps: int) -> list[dict[str, Any]]:
    """Return the metrics of one variant by step; train it if they are incomplete."""
    if len(read_metrics(run)) < steps:
        variables = dict(s.split("=") for s in settings if s.startswith(ENGINE_THREADS))
        command = [sys.executable, "-m", "recipe.train", "toy", f"recipe.run_dir={run}"]
        command += [f"trainer.total_training_steps={steps}", "trainer.save_freq=-1"]
        command += ["trainer.test_freq=-1"]
        command += [s for s in settings if not s.startswith(ENGINE_THREADS)]
        subprocess.run(command, check=True, env={**os.environ, **variables})
    return read_metrics(run)


def main(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    parser.add_argument("--steps", type=int, default=6, help="of each variant")
    parser.add_argument("--only", nargs="+", default=[""], help="variants with one of these words")
    parser.add_argument("--out", type=Path, default=Path("runs/bench_step"), help="for the runs")
    given = parser.parse_args(arguments)
    runs = {
        name: metrics_of(given.out / re.sub(r"\W+", "_", name).strip("_"), settings, given.steps)
        for name, settings in VARIANTS.items()
        if name == DEFAULT or any(word in name for word in given.only)
    }
    rows = {
        name: {p: statistics.median(m[f"timing_s/{p}"] for m in lines[1:]) for p in PARTS}
        for name, lines in runs.items()
    }
    print(f"| median seconds | {' | '.join(PARTS)} | step / default |")
    print("|---" * (len(PARTS) + 2) + "|")
    for name, row in rows.items():
        cells = " | ".join(f"{row[p]:.2f}" for p in PARTS)
        print(f"| {name} | {cells} | {row['step'] / rows[DEFAULT]['step']:.2f} |")
    largest = max(m[DIFFERENCE] for m in runs[DEFAULT])
    print(f"largest difference of a token's probability, engine and actor: {largest:.1e}")
