"""Every arm of every experiment composes and passes the checks of the launch."""

import functools
from pathlib import Path
from typing import Any

import pytest
from composed import composed

from recipe.lab.experiment import Arm, load_experiment, names
from recipe.preflight.checks import validate
from recipe.toy import build as toy

pytestmark = pytest.mark.config

ARMS = [(name, arm.name) for name in names() for arm in load_experiment(name).arms]


def composed_arm(name: str, arm: Arm, seed: int) -> Any:
    set_seed = f"recipe.seed={seed}"
    return composed(f"laboratory/{name}", set_seed, f"recipe.toy.world={arm.world}", *arm.set)


@functools.cache
def start_of(name: str, world: str, seed: int) -> Path:
    """Where the first arm of an experiment in that world finds its questions and start model."""
    arm = next(a for a in load_experiment(name).arms if a.world == world)
    config = composed_arm(name, arm, seed)
    return toy.folder_of(config, validate(config).bank)


@pytest.mark.parametrize(("name", "arm"), ARMS, ids=str)
def test_an_arm_would_start_with_as_many_responses_as_the_others(name: str, arm: str) -> None:
    experiment = load_experiment(name)
    chosen = experiment.arm(arm)
    config = composed_arm(name, chosen, seed=1000)
    start = toy.folder_of(config, validate(config).bank)
    assert start == start_of(name, chosen.world, 1000) != start_of(name, chosen.world, 1001)
    assert config.recipe.toy.updates is None  # the world says how long its start model learns
    assert config.data.train_batch_size * config.actor_rollout_ref.rollout.n == 64
    assert config.trainer.total_training_steps == experiment.steps
    assert config.trainer.save_freq == experiment.save_every
