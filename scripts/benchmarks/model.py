"""Shares of the processor's matrix products that a CPU step of a real model reaches.

Trains some steps of `--example` with `--model` on `--data`, then measures products of the model's
own shapes. With P parameters, a pass over T tokens costs 2 P T operations and an update 6 P T; T
counts each prompt once and every response. Groups without signal have no backward pass, so the
update's figure assumes (2 + 4 s) P T for the share s of groups with one. The rate is that of the
step's precision, the median of `--rounds`. Beside other work all figures are lower.
"""

import statistics
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

import torch

from recipe.config.shapes import Shape, shape_of
from recipe.run.folder import read_config, read_metrics

EXAMPLE = "--model models/smollm2-warm --data data/smollm2/train.parquet"


def product_rate(shape: Shape, dtype: torch.dtype, rows: int, rounds: int) -> float:
    """Return the operations per second of the products of one layer with `rows` tokens."""
    sizes = [(shape.hidden, shape.intermediate), (shape.intermediate, shape.hidden)]
    sizes += [(shape.hidden, shape.heads * shape.head_dim)] * 2
    pairs = [(torch.randn(rows, k).to(dtype), torch.randn(n, k).to(dtype)) for k, n in sizes]
    rates = []
    for _ in range(rounds):
        began = time.perf_counter()
        for left, right in pairs:
            torch.nn.functional.linear(left, right)
        done = sum(2 * rows * right.numel() for _, right in pairs)
        rates.append(done / (time.perf_counter() - began))
    return statistics.median(rates[rounds // 10 :])


def main(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    parser.add_argument("--model", required=True, help="a folder")
    parser.add_argument("--data", required=True, help="a .parquet of questions")
    parser.add_argument("--example", default="smollm2", help="whose settings are used")
    parser.add_argument("--steps", type=int, default=3, help="the first is not counted")
    parser.add_argument("--rounds", type=int, default=100, help="of the products")
    parser.add_argument("--out", type=Path, default=Path("runs/bench_model"), help="the run")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="of the training")
    given = parser.parse_intermixed_args(arguments)
    command = [sys.executable, "-m", "recipe.train", given.example, f"recipe.run_dir={given.out}"]
    command += [f"recipe.model_path={given.model}", f"data.train_files=[{given.data}]"]
    command += [
        f"data.val_files=[{given.data}]",
        "trainer.test_freq=-1",
        "trainer.val_before_train=false",
    ]
    command += [f"trainer.total_training_steps={given.steps}", "trainer.save_freq=-1"]
    subprocess.run([*command, *given.overrides], check=True)
    config, lines = read_config(given.out), read_metrics(given.out)[1:]
    shape, rollout = shape_of(given.model), config["actor_rollout_ref"]["rollout"]
    questions, responses = config["data"]["train_batch_size"], rollout["n"]
    dtype = getattr(torch, rollout["dtype"])
    rate = {
        rows: product_rate(shape, dtype, rows, given.rounds)
        for rows in (questions * responses, 1024)
    }
    print(
        f"{dtype} products: {', '.join(f'{r} rows {v / 1e9:.0f}' for r, v in rate.items())} GFLOP/s"
    )
    print("| part | seconds | GFLOP/s | share |\n|---|---|---|---|")
    for part in ("gen", "old_log_prob", "update_actor"):
        seconds, done = [], []
        for line in lines:
            tokens = questions * (
                line["prompt_length/mean"] + responses * line["response_length/mean"]
            )
            signal = 1 - line["train/no_signal_groups"]
            passes = 2 + 4 * signal if part == "update_actor" else 2
            seconds.append(line[f"timing_s/{part}"])
            done.append(passes * shape.parameters * tokens)
        reached = sum(done) / sum(seconds)
        best = rate[questions * responses if part == "gen" else 1024]
        mean = statistics.mean(seconds)
        print(f"| {part} | {mean:.1f} | {reached / 1e9:.0f} | {reached / best:.0%} |")
