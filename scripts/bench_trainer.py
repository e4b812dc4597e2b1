"""What our trainer adds to a step: verl's own methods and ours in turns, within one run.

    python scripts/bench_trainer.py [--steps 132] [--method cw_grpo] [--out runs/bench_trainer]

One real run. The first eleven steps generate, with the methods of verl's synchronous trainer; the
eleventh's rollouts are kept (verl's skip.rollout_tq), and every step after it replays them at a
learning rate of 1e-30, which changes no weight, so that all of those do the same work. They come
in pairs, one with verl's methods and one with ours (advantages, weights, group statistics,
metrics.jsonl, rollouts/), the order within a pair changing from pair to pair. Engine, agent loop,
reward and data are the same.

Seconds are from the start of a step to the end of its records. Prints the medians; the ratio of
the pairs, whose steps do not generate (an upper bound of what a whole step feels); and the ratio
for a whole step: one that generates, and with what the pairs differ by. The intervals hold the
median with 95 % confidence (order statistics of the pairs). The first two pairs warm up.

verl loads this file in every process of the run (VERL_USE_EXTERNAL_MODULES), which is how the
trainer "paired" becomes known where verl looks it up.
"""

import json
import math
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from prompt_aug.commands import make_parser

GENERATING = 11
WARM_UP = 2


def is_ours(step: int) -> bool:
    """Who does this step: verl up to GENERATING, then verl, ours, ours, verl, verl, ours, ..."""
    return step > GENERATING and (step - GENERATING - 1) % 4 in (1, 2)


def register() -> None:
    """Register the trainer "paired": ours, with verl's own methods in some of the steps."""
    from verl.trainer.ppo.v1.trainer_base import register_trainer
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    from recipe.trainer.trainer import RecipeTrainer

    @register_trainer("paired")
    class PairedTrainer(RecipeTrainer):
        def owner(self) -> Any:
            return RecipeTrainer if is_ours(self.global_steps) else PPOTrainerSync

        def on_step_begin(self) -> None:
            self.began = time.perf_counter()
            super().on_step_begin()

        def _compute_advantage(self, *args: Any, **kwargs: Any) -> Any:
            return self.owner()._compute_advantage(self, *args, **kwargs)

        def _update_actor(self, *args: Any, **kwargs: Any) -> Any:
            return self.owner()._update_actor(self, *args, **kwargs)

        def _compute_metrics(self, *args: Any, **kwargs: Any) -> None:
            self.owner()._compute_metrics(self, *args, **kwargs)
            line = {"step": self.global_steps, "seconds": time.perf_counter() - self.began}
            with (self.run_dir / "paired.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")


def measure(method: str, steps: int, out: Path) -> list[float]:
    """Seconds of every step."""
    from recipe.config.compose import compose_config
    from recipe.preflight.checks import check, prepare
    from recipe.trainer import launch

    here = Path(__file__).resolve()
    paths = [str(here.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ["VERL_USE_EXTERNAL_MODULES"] = f"recipe.plugin,{here.stem}"
    sys.path.insert(0, str(here.parent))
    settings = [f"recipe.run_dir={out}", f"trainer.total_training_steps={steps}"]
    settings += ["trainer.save_freq=-1", "trainer.test_freq=-1"]
    settings += [
        "actor_rollout_ref.actor.optim.lr=1e-30",
        f"skip.rollout_tq.dump_dir={out / 'dump'}",
    ]
    settings += ["skip.rollout_tq.enable=true", "skip.rollout_tq.action=repeat"]
    settings += [f"skip.rollout_tq.steps={list(range(GENERATING, steps + 1))}".replace(" ", "")]
    config = compose_config("toy_methods", [f"method={method}", *settings])
    launch.set_environment(config)
    prepare(config, check(config))
    config.trainer.v1.trainer_mode = "paired"
    launch.run(config)
    lines = [json.loads(line) for line in (out / "paired.jsonl").read_text().splitlines()]
    return [line["seconds"] for line in lines]


def interval(values: list[float]) -> tuple[float, float]:
    """Two of the values that hold their median with 95 % confidence (binomial order statistics)."""
    n = len(values)
    below = [sum(math.comb(n, i) for i in range(k + 1)) / 2**n for k in range(n)]
    k = max(0, sum(p <= 0.025 for p in below) - 1)
    return sorted(values)[k], sorted(values)[n - 1 - k]


def report(seconds: list[float]) -> str:
    """The figures of the pairs after the warm-up."""
    whole = statistics.median(seconds[2 : GENERATING - 1])
    numbered = list(enumerate(seconds, start=1))[GENERATING:]
    pairs = [
        {is_ours(step): value for step, value in two}
        for two in zip(numbered[::2], numbered[1::2], strict=False)
    ][WARM_UP:]
    stock, ours = ([pair[side] for pair in pairs] for side in (False, True))
    extra = [o - s for s, o in zip(stock, ours, strict=True)]
    ratios = [o / s for s, o in zip(stock, ours, strict=True)]
    low, high = interval(ratios)
    less, more = (1 + seconds / whole for seconds in interval(extra))
    return (
        f"{len(pairs)} pairs of replayed steps: verl {statistics.median(stock):.3f} s, ours "
        f"{statistics.median(ours):.3f} s, ratio {statistics.median(ratios):.3f} "
        f"({low:.3f} to {high:.3f})\n"
        f"of a step that generates, {whole:.3f} s: {statistics.median(extra):.3f} s more, ratio "
        f"{1 + statistics.median(extra) / whole:.3f} ({less:.3f} to {more:.3f})"
    )


def main() -> None:
    parser = make_parser(
        "python scripts/bench_trainer.py",
        __doc__,
        example="python scripts/bench_trainer.py --steps 132",
    )
    parser.add_argument("--steps", type=int, default=132, help="of the one run")
    parser.add_argument("--method", default="cw_grpo", help="in recipe/config/method")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/bench_trainer"), help="where the run goes"
    )
    given = parser.parse_args()
    if (given.out / "paired.jsonl").exists():
        parser.error(f"{given.out} holds an earlier run: move it away, or choose another --out")
    print(report(measure(given.method, given.steps, given.out.resolve())))


if __name__ == "__main__":
    main()
elif "VERL_USE_EXTERNAL_MODULES" in os.environ:
    register()
