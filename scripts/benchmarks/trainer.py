"""Time that our trainer adds to a step: verl's methods and ours alternate within one run.

The first eleven steps generate with the methods of verl's synchronous trainer. Every later step
replays the eleventh's rollouts (verl's skip.rollout_tq). The learning rate is 1e-30, so that these
steps do equal work. They come in pairs, one with verl's methods and one with ours (advantages,
weights, group statistics, metrics.jsonl, rollouts/); the order within a pair alternates. Engine,
agent loop, reward and data are the same. The first two pairs warm up.

Prints median seconds, the ratio of the replayed pairs, and the ratio for a step that generates.
The intervals cover the median with 95 % confidence (order statistics of the pairs).
"""

import json
import math
import os
import statistics
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

EXAMPLE = "--steps 132"
GENERATING = 11
WARM_UP = 2


def is_ours(step: int) -> bool:
    """Return True for our steps: after GENERATING the order is verl, ours, ours, verl, verl, ..."""
    return step > GENERATING and (step - GENERATING - 1) % 4 in (1, 2)


def measure(method: str, steps: int, out: Path) -> list[float]:
    """Train with the paired trainer and return the seconds of every step."""
    from recipe.config.compose import compose_config
    from recipe.preflight.checks import check, prepare
    from recipe.trainer import launch

    scripts = str(Path(__file__).resolve().parents[1])
    paths = [scripts, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ["VERL_USE_EXTERNAL_MODULES"] = "recipe.plugin,benchmarks.paired"
    sys.path.insert(0, scripts)
    replayed = str(list(range(GENERATING, steps + 1))).replace(" ", "")
    settings = [f"method={method}", f"recipe.run_dir={out}", "trainer.save_freq=-1"]
    settings += [f"trainer.total_training_steps={steps}", "trainer.test_freq=-1"]
    settings += ["actor_rollout_ref.actor.optim.lr=1e-30", "skip.rollout_tq.enable=true"]
    settings += [f"skip.rollout_tq.dump_dir={out / 'dump'}", "skip.rollout_tq.action=repeat"]
    settings += [f"skip.rollout_tq.steps={replayed}"]
    config = compose_config("toy_methods", settings)
    launch.set_environment(config)
    prepare(config, check(config))
    config.trainer.v1.trainer_mode = "paired"
    launch.run(config)
    lines = [json.loads(line) for line in (out / "paired.jsonl").read_text().splitlines()]
    return [line["seconds"] for line in lines]


def interval(values: list[float]) -> tuple[float, float]:
    """Return the 95 % confidence interval of the median by order statistics."""
    n = len(values)
    below = [sum(math.comb(n, i) for i in range(k + 1)) / 2**n for k in range(n)]
    k = max(0, sum(p <= 0.025 for p in below) - 1)
    return sorted(values)[k], sorted(values)[n - 1 - k]


def report(seconds: list[float]) -> str:
    """Return the figures of the pairs after the warm-up."""
    whole = statistics.median(seconds[2 : GENERATING - 1])
    numbered = list(enumerate(seconds, start=1))[GENERATING:]
    pairs = [
        {is_ours(step): value for step, value in two}
        for two in zip(numbered[::2], numbered[1::2], strict=False)
    ][WARM_UP:]
    verl, ours = ([pair[side] for pair in pairs] for side in (False, True))
    extra = [o - s for s, o in zip(verl, ours, strict=True)]
    ratios = [o / s for s, o in zip(verl, ours, strict=True)]
    low, high = interval(ratios)
    less, more = (1 + seconds / whole for seconds in interval(extra))
    return (
        f"{len(pairs)} pairs of replayed steps: verl {statistics.median(verl):.3f} s, ours "
        f"{statistics.median(ours):.3f} s, ratio {statistics.median(ratios):.3f} "
        f"({low:.3f} to {high:.3f})\n"
        f"of a step that generates, {whole:.3f} s: {statistics.median(extra):.3f} s more, ratio "
        f"{1 + statistics.median(extra) / whole:.3f} ({less:.3f} to {more:.3f})"
    )


def main(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    parser.add_argument("--steps", type=int, default=132, help="of the run")
    parser.add_argument("--method", default="cw_grpo", help="in recipe/config/method")
    parser.add_argument("--out", type=Path, default=Path("runs/bench_trainer"), help="for the run")
    given = parser.parse_args(arguments)
    if (given.out / "paired.jsonl").exists():
        parser.error(f"--out {given.out}: holds an earlier run. Choose another folder.")
    print(report(measure(given.method, given.steps, given.out.resolve())))
