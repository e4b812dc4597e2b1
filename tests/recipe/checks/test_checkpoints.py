"""What a launch makes of its checkpoints; the rules themselves are tests/recipe/run's."""

import copy
from pathlib import Path
from typing import Any

import pytest
from omegaconf import open_dict

from recipe.checks.checkpoints import check_checkpoints
from recipe.errors import ConfigError


def test_a_tracker_without_its_checkpoint_is_refused(toy_config: Any, tmp_path: Path) -> None:
    config = copy.deepcopy(toy_config)
    with open_dict(config):
        config.trainer.default_local_dir = str(tmp_path)
    assert check_checkpoints(config) == []
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("50")
    with pytest.raises(ConfigError, match="names step 50, but no whole checkpoint"):
        check_checkpoints(config)
