"""What ``--dry-run`` says of the disk, by hand: 12 bytes for each of 1,543,714,304 parameters."""

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf, open_dict

from prompt_aug.prompts import Prompts
from recipe.errors import ConfigError
from recipe.preflight.dry_run import checkpoints, describe, hours

MATH_1B = "Qwen/Qwen2.5-Math-1.5B"


# (trainer.max_actor_ckpt_to_keep, recipe.keep_every, recipe.keep_best, text)
KEPT: list[tuple[int | None, int | None, str | None, str]] = [
    # steps 10, 20 ... 90, 95: ten of 18.52 GB
    (None, None, None, "10, one every 10 steps; 18.52 GB each, at most 185.2 GB in all"),
    # 90 and 95, and a third while it is not yet whole
    (2, None, None, "of which 2 are kept; 18.52 GB each, at most 55.6 GB in all"),
    # 90 and 95, and 40 and 80 for good
    (2, 40, None, "of which 4 are kept; 18.52 GB each, at most 92.6 GB in all"),
    (2, 40, "val/x/accuracy", "of which 5 are kept; 18.52 GB each, at most 111.1 GB in all"),
    # nothing is ever deleted, so the best needs no room of its own
    (20, None, "val/x/accuracy", "10, one every 10 steps; 18.52 GB each, at most 185.2 GB"),
]
UNKNOWN = (None, None, None, "10, one every 10 steps; 12 bytes a parameter each")


@pytest.mark.parametrize(
    ("model", "case"), [("someone/model", UNKNOWN), *((MATH_1B, case) for case in KEPT)]
)
def test_kept_checkpoints(toy_config: Any, model: str, case: tuple[Any, ...]) -> None:
    config, (last, every, best, text) = toy_config.copy(), case
    config.trainer.save_freq, config.trainer.max_actor_ckpt_to_keep = 10, last
    config.recipe.keep_every, config.recipe.keep_best = every, best
    config.actor_rollout_ref.model.path = model
    assert text in checkpoints(config, steps=95)
    assert checkpoints(config, steps=90).startswith("9, one every 10 steps")
    config.trainer.save_freq = -1
    assert checkpoints(config, steps=95).startswith("none (trainer.save_freq=-1)")


def test_hours_are_measured_or_estimated_or_unknown(toy_config: Any, tmp_path: Path) -> None:
    config = toy_config.copy()
    config.recipe.run_dir = str(tmp_path)
    assert hours(config, 24).startswith("unknown")
    with open_dict(config):
        config.trainer.device, config.recipe.model_path = "cuda", MATH_1B
    assert "estimated as by recipe.plan" in hours(config, 24)
    steps = "".join(f'{{"step": {i}, "timing_s/step": {i}}}\n' for i in (1, 2, 9))
    (tmp_path / "metrics.jsonl").write_text(steps)
    assert hours(config, 1800) == "1, at 2.0 s a step as in the run folder"


def small(config: Any, folder: Path) -> None:
    with open_dict(config):
        config.recipe.run_dir = str(folder / "run")
        config.data.train_batch_size = config.actor_rollout_ref.actor.ppo_mini_batch_size = 4


def test_the_steps_are_those_of_the_limited_questions(toy_config: Any, tmp_path: Path) -> None:
    config = toy_config.copy()
    config.recipe.augment.format = "published"
    small(config, tmp_path)
    with open_dict(config):
        config.data.train_max_samples, config.data.max_prompt_length = 8, 1000
        config.trainer.total_epochs, config.trainer.total_training_steps = 1, 24
    text = describe(config, Prompts.from_config(config))
    assert "8 for training (0 too long), 64 for validation" in text and "first prompt" in text
    assert "steps          2\n" in text and " 64 to come" in text and "updates        1 " in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.config  # starts a worker process
@pytest.mark.parametrize(
    ("key", "value", "named"),
    [
        ("recipe.reward.verifiers", {"toy_arithmetic": "nomodule.check"}, "nomodule"),
        ("recipe.reward.verifiers", {"nowhere": "own_verifiers.even"}, "data_source nowhere"),
        ("recipe.source_weights", {"nowhere": 1.0}, "are toy_arithmetic"),
        ("recipe.keep_best", "val/nowhere/accuracy", "val/toy_arithmetic/accuracy"),
        ("data.max_prompt_length", 5, "all 2048 questions"),
    ],
)
def test_what_the_questions_show_is_refused(
    toy_config: Any, tmp_path: Path, key: str, value: Any, named: str
) -> None:
    config = toy_config.copy()
    small(config, tmp_path)
    OmegaConf.update(config, key, value, force_add=True)
    with pytest.raises(ConfigError, match=named):
        describe(config, Prompts.from_config(config))
