"""What ``--dry-run`` says of the disk, by hand: 12 bytes for each of 1,543,714,304 parameters."""

import copy
from typing import Any

import pytest
from omegaconf import open_dict

from recipe.checks.dry_run import checkpoints

MATH_1B = "Qwen/Qwen2.5-Math-1.5B"


@pytest.mark.parametrize(
    ("last", "every", "best", "told"),
    [
        # steps 10, 20 ... 90, 95: ten of 18.52 GB
        (None, None, None, "10, one every 10 steps; 18.52 GB each, at most 185.2 GB in all"),
        # 90 and 95, and a third while it is not yet whole
        (2, None, None, "of which 2 are kept; 18.52 GB each, at most 55.6 GB in all"),
        # 90 and 95, and 40 and 80 for good
        (2, 40, None, "of which 4 are kept; 18.52 GB each, at most 92.6 GB in all"),
        (2, 40, "val/x/accuracy", "of which 5 are kept; 18.52 GB each, at most 111.1 GB in all"),
        # nothing is ever deleted, so the best needs no room of its own
        (20, None, "val/x/accuracy", "10, one every 10 steps; 18.52 GB each, at most 185.2 GB"),
    ],
)
def test_kept_checkpoints(
    toy_config: Any, last: int | None, every: int | None, best: str | None, told: str
) -> None:
    config = copy.deepcopy(toy_config)
    with open_dict(config):
        config.trainer.save_freq = 10
        config.trainer.max_actor_ckpt_to_keep = last
        config.recipe.keep_every, config.recipe.keep_best = every, best
        config.actor_rollout_ref.model.path = MATH_1B
    assert told in checkpoints(config, steps=95)


def test_without_a_model_or_checkpoints(toy_config: Any) -> None:
    config = copy.deepcopy(toy_config)
    config.trainer.save_freq = 10
    config.actor_rollout_ref.model.path = "someone/model"
    assert checkpoints(config, steps=10).startswith("1, one every 10 steps; 12 bytes a parameter")
    config.trainer.save_freq = -1
    assert checkpoints(config, steps=10).startswith("none (trainer.save_freq=-1)")
