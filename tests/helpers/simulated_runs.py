"""The simulator on the configuration and data of a real run, to compare their steps."""

import copy
import itertools
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from omegaconf import OmegaConf, open_dict

from recipe.config.compose import compose_config
from recipe.lab.simulator import Simulator
from recipe.trainer.question_stats import QuestionStats

SHARED = Path(__file__).resolve().parents[1] / "recipe" / "shared_run.py"


def simulator(run: Path, out: Path) -> Simulator:
    """The run before its first step; its tensors go to `out`."""
    config: Any = OmegaConf.load(run / "config.yaml")
    config.recipe.run_dir, config.recipe.save_tensors_every = str(out), 1
    return Simulator(config)


def shared_steps(run: Path, out: Path, methods: list[str], overrides: list[str]) -> Iterator[dict]:
    """The metrics of each step of a run that methods share (tests/recipe/shared_run.py)."""
    settings = runpy.run_path(str(SHARED))["settings"]
    made = simulator(run, out)
    # As there, the rollouts keep the settings of the first method.
    made.config = copy.deepcopy(made.config)
    for before, method in itertools.pairwise(["", *methods]):
        if method != before:
            config = compose_config("toy_methods", settings(method, overrides))
            with open_dict(made.config):
                made.config.recipe = config.recipe
                made.config.recipe.run_dir, made.config.recipe.save_tensors_every = str(out), 1
                made.config.actor_rollout_ref.actor = config.actor_rollout_ref.actor
            made.source.stats = QuestionStats(config.recipe)
            made.actor.configure(made.config)
        yield made.step()


def differences(run: Path, out: Path, step: int, real: dict, found: dict) -> dict[str, float]:
    """The largest difference of each column of tensors/ and of the update's metrics."""
    columns, others = (np.load(p / "tensors" / f"step_{step}.npz") for p in (run, out))
    assert sorted(columns) == sorted(others)
    largest = {}
    for name in columns:
        one, other = columns[name], others[name]
        assert one.shape == other.shape, name
        number = one.dtype.kind == "f"
        largest[name] = float(abs(one - other).max() if number else (one != other).mean())
    for key in ("actor/loss", "actor/grad_norm", "train/accuracy", "train/entropy"):
        largest[key] = abs(real[key] - found[key])
    return largest
