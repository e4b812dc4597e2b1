"""What our trainer adds to a step: verl's own methods and ours in turns, within one run.

    python scripts/bench_trainer.py [--steps 60] [--example cw_grpo/toy] [--out runs/bench_trainer]

One real run whose odd steps use the methods of verl's synchronous trainer and whose even steps
use ours: advantages, weights, group statistics, metrics.jsonl, rollouts/. Engine, agent loop,
reward and data are the same for both, so a pair of neighbouring steps differs in the trainer
alone. Seconds are from the start of a step to the end of its records; the first two pairs warm
up. Prints the medians, the median ratio of the pairs, and the interval of their middle half.

verl loads this file in every process of the run (VERL_USE_EXTERNAL_MODULES), which is how the
trainer "paired" becomes known where verl looks it up.
"""

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

WARM_UP = 2


def register() -> None:
    """Register the trainer "paired": ours, with verl's own methods in odd steps."""
    from verl.trainer.ppo.v1.trainer_base import register_trainer
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    from recipe.trainer import RecipeTrainer

    @register_trainer("paired")
    class PairedTrainer(RecipeTrainer):
        def owner(self) -> Any:
            return PPOTrainerSync if self.global_steps % 2 else RecipeTrainer

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


def measure(example: str, steps: int, out: Path) -> list[float]:
    """Seconds of every step, stock and ours in turns."""
    from recipe import train
    from recipe.composition import compose_config

    here = Path(__file__).resolve()
    paths = [str(here.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.environ["VERL_USE_EXTERNAL_MODULES"] = f"recipe.plugin,{here.stem}"
    sys.path.insert(0, str(here.parent))
    settings = [f"recipe.run_dir={out}", f"trainer.total_training_steps={steps}"]
    settings += ["trainer.save_freq=-1", "trainer.test_freq=-1"]
    config = compose_config(example, settings)
    train.set_environment(config)
    train.prepare(config)
    config.trainer.v1.trainer_mode = "paired"
    train.run(config)
    lines = [json.loads(line) for line in (out / "paired.jsonl").read_text().splitlines()]
    return [line["seconds"] for line in lines]


def report(seconds: list[float]) -> str:
    """The figures of the pairs after the warm-up."""
    pairs = list(zip(seconds[::2], seconds[1::2], strict=False))[WARM_UP:]
    ratios = [ours / stock for stock, ours in pairs]
    low, middle, high = statistics.quantiles(ratios, n=4)
    stock, ours = (statistics.median(side) for side in zip(*pairs, strict=True))
    return (
        f"{len(pairs)} pairs of steps: verl {stock:.3f} s, ours {ours:.3f} s (medians), "
        f"ratio {middle:.3f} (middle half {low:.3f} to {high:.3f})"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--example", default="cw_grpo/toy")
    parser.add_argument("--out", type=Path, default=Path("runs/bench_trainer"))
    given = parser.parse_args()
    if (given.out / "paired.jsonl").exists():
        parser.error(f"{given.out} holds an earlier run: move it away, or choose another --out")
    print(report(measure(given.example, given.steps, given.out.resolve())))


if __name__ == "__main__":
    main()
elif "VERL_USE_EXTERNAL_MODULES" in os.environ:
    register()
