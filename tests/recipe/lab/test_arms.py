"""Every arm of every experiment composes and passes the checks of the launch."""

import pytest
from composed import composed

from recipe.checks import validate
from recipe.lab.experiment import load_experiment, names

pytestmark = pytest.mark.config

ARMS = [(name, arm.name) for name in names() for arm in load_experiment(name).arms]


@pytest.mark.parametrize(("name", "arm"), ARMS, ids=str)
def test_an_arm_would_start_with_as_many_responses_as_the_others(name: str, arm: str) -> None:
    experiment = load_experiment(name)
    chosen = experiment.arm(arm)
    config = composed(f"laboratory/{name}", f"recipe.toy.world={chosen.world}", *chosen.set)
    validate(config)
    assert config.recipe.toy.updates is None  # the world says how long its start model learns
    assert config.data.train_batch_size * config.actor_rollout_ref.rollout.n == 64
    assert config.trainer.total_training_steps == experiment.steps
    assert config.trainer.save_freq == experiment.save_every
