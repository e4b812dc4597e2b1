"""Responses per second of the asynchronous trainers against the synchronous one, on a CPU.

All train examples/toy from the same start model with GRPO, one after the other. The temperature
stretches the tail of response lengths: a response that misses its end runs up to `--longest`
tokens. The first step of each run is not counted. `gen` is the share of a step in which the trainer
waits for responses, `still` that in which the engine stands still (the rest of a synchronous step,
the transfer of weights of the separate mode, whose engine shares the cores here).
"""

import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from prompt_aug.base.files import read_lines
from recipe.run.folder import RunFolder, read_metrics

EXAMPLE = "--steps 8 --window 1"
ROLLOUT = "actor_rollout_ref.rollout"


def trained(run: Path, steps: int, settings: Sequence[str]) -> list[dict[str, Any]]:
    """Return the metrics of each step; train the run if they are incomplete."""
    if len(read_metrics(run)) < steps:
        command = [sys.executable, "-m", "recipe.train", "toy", "method=grpo", *settings]
        command += [f"recipe.run_dir={run}", f"trainer.total_training_steps={steps}"]
        command += ["trainer.save_freq=-1", "trainer.test_freq=-1"]
        command += ["trainer.val_before_train=false"]
        subprocess.run(command, check=True)
    return read_metrics(run)


def row(run: Path, lines: Sequence[dict[str, Any]]) -> tuple[float, list[str]]:
    """Return responses per second, and the cells of the table."""
    rollouts = [x for m in lines for x in read_lines(RunFolder(run).rollouts(m["step"]))]
    seconds = sum(m["timing_s/step"] for m in lines)
    gen = sum(m["timing_s/gen"] for m in lines) / seconds
    stops = ("timing_s/engines_wait", "timing_s/update_weights")
    waits = [next((m[key] for key in stops if key in m), 0) for m in lines]
    still = sum(waits) / seconds if "staleness/mean" in lines[0] else 1 - gen
    half, most, end = np.percentile([x["length"] for x in rollouts], [50, 90, 100])
    speed = len(rollouts) / seconds
    lag = np.mean([m.get("staleness/mean", 0) for m in lines])
    cells = [f"{speed:.2f}", f"{seconds / len(lines):.1f}", f"{gen:.0%}", f"{still:.0%}"]
    return speed, [*cells, f"{half:.0f}, {most:.0f}, {end:.0f}", f"{lag:.2f}"]


def main(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    parser.add_argument("--steps", type=int, default=8, help="of each mode")
    parser.add_argument("--window", type=float, default=1, help="batches in flight")
    parser.add_argument("--longest", type=int, default=512, help="tokens of a response")
    parser.add_argument("--temperature", type=float, default=1.3, help="of the rollouts")
    out = Path("runs/bench_asynchronous")
    parser.add_argument("--out", type=Path, default=out, help="folder of the runs")
    parser.add_argument("settings", nargs="*", metavar="KEY=VALUE", help="for all modes")
    given = parser.parse_args(arguments)
    shared = [f"data.max_response_length={given.longest}", *given.settings]
    shared += [f"{ROLLOUT}.max_model_len={given.longest + 160}"]
    shared += [f"{ROLLOUT}.temperature={given.temperature}"]
    modes: dict[str, list[str]] = {"sync": []}
    for mode in ("colocate_async", "separate_async"):
        modes[mode] = [f"trainer.v1.trainer_mode=recipe_{mode}"]
        modes[mode] += [f"trainer.v1.{mode}.num_warmup_batches={given.window}"]
    modes["separate_async"] += [f"{ROLLOUT}.nnodes=1"]
    print("| mode | responses/s | s/step | gen | still | length: median, 90 %, max | staleness |")
    print("|---" * 7 + "|")
    speeds = []
    for name, settings in modes.items():
        run = given.out / name
        speed, cells = row(run, trained(run, given.steps, [*shared, *settings])[1:])
        speeds.append(speed)
        print(f"| {name} | {' | '.join(cells)} |", flush=True)
    for name, speed in [*zip(modes, speeds, strict=True)][1:]:
        print(f"responses per second, {name} / sync: {speed / speeds[0]:.2f}")
