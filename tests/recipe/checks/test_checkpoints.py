"""What a launch refuses of its checkpoints; the rules themselves are tests/recipe/run's."""

import copy
from pathlib import Path
from typing import Any

import pytest
from omegaconf import open_dict

from recipe.checks.checkpoints import check_checkpoints
from recipe.errors import ConfigError


@pytest.fixture
def config(toy_config: Any, tmp_path: Path) -> Any:
    copied = copy.deepcopy(toy_config)
    with open_dict(copied):
        copied.trainer.default_local_dir = str(tmp_path)
    return copied


def test_a_tracker_without_its_checkpoint_is_refused_unless_it_is_not_read(
    config: Any, tmp_path: Path
) -> None:
    assert check_checkpoints(config) == []
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("50")
    with pytest.raises(ConfigError, match="names step 50, but no whole checkpoint"):
        check_checkpoints(config)
    config.trainer.resume_mode = "disable"
    assert check_checkpoints(config) == []


def test_a_named_checkpoint_must_be_whole(config: Any, tmp_path: Path) -> None:
    config.trainer.resume_mode = "resume_path"
    config.trainer.resume_from_path = str(tmp_path / "global_step_3")
    with pytest.raises(ConfigError, match=r"no whole checkpoint: actor/fsdp_config\.json"):
        check_checkpoints(config)


def test_asynchronous_saving_is_refused(config: Any) -> None:
    with open_dict(config):
        config.actor_rollout_ref.actor.checkpoint.async_save = True
    with pytest.raises(ConfigError, match="writes no tracker"):
        check_checkpoints(config)
