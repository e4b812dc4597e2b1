"""Trial run of ``python -m recipe.doctor --train``: two steps of training, export, evaluation.

It takes all GPUs of the machine (NCCL, sharded checkpoints), or the nodes of a job of
scripts/doctor.sbatch. Advantages alternate between +1 and -1, so that the first update moves the
weights for any rewards. The second step then compares the probabilities of the engine, which got
these weights, with the actor's. Each stage is a process with a log. The folder of a trial that
succeeds is deleted.
"""

import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from prompt_aug.base.errors import UserError
from prompt_aug.base.progress import Progress
from recipe.config.base import quoted
from recipe.machine.host import gpus_here
from recipe.run.folder import RunFolder, read_metrics

SMOLLM2 = Path("models/smollm2-warm")  # scripts/smollm2.sh makes it
CORRELATION, KL = "training/rollout_actor_probs_pearson_corr", "rollout_corr/k3_kl"
LEAST_CORRELATION = 0.99  # of the engine's and the actor's probabilities of the same tokens
MOST_KL = 0.005  # nats a token. Correlation alone misses a factor, as of a smaller vocabulary.
FIGURES = {
    CORRELATION: "correlation of the engine's and the actor's probabilities",
    KL: "KL of engine and actor, nats a token",
    "timing_s/step": "step, s",
    "timing_s/gen": "rollouts, s",
    "timing_s/old_log_prob": "log-probabilities, s",
    "timing_s/update_actor": "update, s",
    "timing_s/update_weights": "weights to the engine, s",
    "perf/throughput": "tokens/s per GPU or CPU",
    "perf/mfu/actor": "MFU of the update",
    "actor/perf/max_memory_allocated_gb": "peak memory of the actor, GiB",
}
# At this rate an engine that missed an update has a KL of 0.011 and correlates at 0.82.


def sizes() -> list[str]:
    """Return a batch that divides over the GPUs of this machine, or of a job with such nodes."""
    nodes, actor = int(os.environ.get("SLURM_JOB_NUM_NODES", 1)), "actor_rollout_ref.actor"
    questions = 8 * max(1, gpus_here()) * nodes
    batches = [f"data.train_batch_size={questions}", f"{actor}.ppo_mini_batch_size={questions}"]
    return [f"{actor}.use_dynamic_bsz=true", *batches]


def toy() -> list[str]:
    """Return the settings of the toy for this machine."""
    return ["machine=auto", "actor_rollout_ref.actor.optim.lr=3e-4", *sizes()]


def alternating(rewards_B: Any, group_B: Any) -> Any:
    """Return advantages +1, -1, +1, ... (B,)."""
    return 1 - 2 * (rewards_B.new_ones(len(rewards_B)).cumsum(0) % 2)


def stages(run: Path, arguments: list[str]) -> dict[str, list[str]]:
    """Return the modules to run with their arguments; `arguments`: an example and overrides."""
    words = list(arguments)
    default = "smollm2" if SMOLLM2.is_dir() else "toy"
    example = words.pop(0) if words and "=" not in words[0] else default
    settings = [f"recipe.run_dir={quoted(run)}", f"recipe.advantage.name={__name__}.alternating"]
    settings += ["trainer.total_training_steps=2", "trainer.save_freq=2", "trainer.test_freq=-1"]
    own = toy() if example == "toy" else sizes() if example == "smollm2" else []
    settings += ["trainer.val_before_train=false", *own, *words]
    questions = ["--benchmark", f"held_out={RunFolder(run).data('test')}", "--max-questions", "8"]
    return {
        "train": ["recipe.train", example, *settings],
        "export": ["recipe.export", str(run)],
        "evaluate": ["eval.sweep", str(run), "--steps", "2", *questions],
    }


def figures_of(run: Path) -> dict[str, float]:
    """Return the figures of the last step. UserError if engine and actor differ too much."""
    line = (read_metrics(run) or [{}])[-1]
    correlation, distance = float(line.get(CORRELATION, math.nan)), float(line.get(KL, math.nan))
    if not (correlation >= LEAST_CORRELATION and distance <= MOST_KL):
        raise UserError(
            f"{CORRELATION}={correlation:.4f} (least {LEAST_CORRELATION}), {KL}={distance:.4f} "
            f"(most {MOST_KL}): the engine does not compute with the actor's weights. See {run}."
        )
    return {label: float(line[key]) for key, label in FIGURES.items() if key in line}


def try_training(runs: Path, arguments: list[str]) -> None:
    """Run all stages in a new folder of `runs` and print their figures."""
    runs.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="doctor_", dir=runs.resolve()))
    for name, command in stages(folder / "run", arguments).items():
        began, log = time.monotonic(), folder / f"{name}.log"
        with Progress(name), log.open("w") as file:
            done = subprocess.run(
                [sys.executable, "-m", *command], stdout=file, stderr=subprocess.STDOUT
            )
        if done.returncode:
            raise UserError(f"{name}: exit code {done.returncode}. See {log}.")
        print(f"ok   {name}: {time.monotonic() - began:.0f} s", flush=True)
    for label, value in figures_of(folder / "run").items():
        print(f"     {label}: {value:.4g}")
    shutil.rmtree(folder)
