"""What a launch makes of its checkpoints; the rules themselves are tests/recipe/run's."""

import copy
from pathlib import Path
from typing import Any

import pytest
from omegaconf import open_dict

from recipe.checks.checkpoints import check_checkpoints, check_keeping
from recipe.errors import ConfigError


def test_a_tracker_without_its_checkpoint_is_refused(toy_config: Any, tmp_path: Path) -> None:
    config = copy.deepcopy(toy_config)
    with open_dict(config):
        config.trainer.default_local_dir = str(tmp_path)
    assert check_checkpoints(config) == []
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("50")
    with pytest.raises(ConfigError, match="names step 50, but no whole checkpoint"):
        check_checkpoints(config)


def test_the_best_checkpoint_of_a_run_without_validations_is_refused(toy_config: Any) -> None:
    config = copy.deepcopy(toy_config)
    config.trainer.test_freq = -1
    check_keeping(config)
    config.recipe.keep_best = "val/toy/accuracy"
    with pytest.raises(ConfigError, match=r"trainer\.test_freq=-1: no checkpoint is validated"):
        check_keeping(config)
    config.trainer.test_freq = 1
    check_keeping(config)
