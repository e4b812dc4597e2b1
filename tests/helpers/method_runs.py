"""Real trainings of the toy twins, two at a time where the memory allows, for end-to-end tests."""

import os
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from recipe import run_folder

ROOT = Path(__file__).resolve().parents[2]


class Runner:
    """Starts runs in a pool; the first wait for a run is the wait for its result."""

    def __init__(self, base: Path) -> None:
        room = psutil.virtual_memory().available > 16 * 2**30  # a run takes up to 7 GiB
        self.base, self.pool = base, ThreadPoolExecutor(2 if room else 1)
        self.futures: dict[str, Future[tuple[Any, list[dict[str, Any]]]]] = {}

    @property
    def small(self) -> list[str]:
        """A toy world that is made in seconds."""
        return [
            *("recipe.toy.updates=60", "recipe.toy.train_questions=80"),
            *("recipe.toy.validation_questions=20", "recipe.toy.test_questions=20"),
            # So young a model is never right: it is paid for being short, so there is a signal.
            *("recipe.reward.overlong.enable=true", "recipe.reward.overlong.buffer=80"),
            f"recipe.toy.cache={self.base / 'cache'}",
        ]

    def start(
        self, name: str, example: str, *overrides: str, steps: int = 2, after: str = ""
    ) -> None:
        """Queue a run, or with `after` the same folder once more when that one has ended."""
        folder = self.base / name.partition(",")[0]
        command = [sys.executable, "-m", "recipe.train", f"{example}/toy", *self.small]
        command += [f"recipe.run_dir={folder}", f"trainer.total_training_steps={steps}"]
        earlier = self.futures.get(after)
        self.futures[name] = self.pool.submit(self._call, [*command, *overrides], earlier)

    def start_tour(self, methods: list[str]) -> None:
        script = ROOT / "tests" / "recipe" / "touring_trainer.py"
        command = [sys.executable, str(script), *methods, "--", *self.small]
        command += [f"recipe.run_dir={self.base / 'tour'}"]
        command += ["recipe.save_tensors_every=1"]
        self.futures["tour"] = self.pool.submit(self._call, command)

    def _call(self, command: list[str], earlier: Any = None) -> tuple[Any, list[dict[str, Any]]]:
        if earlier is not None:
            earlier.result()
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=1200, check=False, env=environment
        )
        folder = next(Path(a.partition("=")[2]) for a in command if a.startswith("recipe.run_dir"))
        return done, run_folder.read_metrics(folder)

    def finish(self, name: str, code: int = 0) -> list[dict[str, Any]]:
        """The metrics of a run that ended with `code`, as they were then."""
        done, metrics = self.futures[name].result()
        assert done.returncode == code, done.stdout[-3000:] + done.stderr[-6000:]
        return metrics

    def text(self, name: str) -> str:
        done, _ = self.futures[name].result()
        return done.stdout + done.stderr

    def arrays(self, name: str, step: int = 1) -> Any:
        return np.load(self.base / name / "tensors" / f"step_{step}.npz")
