"""Every training command that a README shows composes and passes the launch checks."""

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest
from composed import composed
from omegaconf import DictConfig, OmegaConf
from page_commands import SHOWN, command_of, fenced_lines

from recipe.config.compose import EXAMPLES
from recipe.errors import ConfigError
from recipe.preflight.checks import validate
from recipe.preflight.resume import same_run
from recipe.preflight.rules import Setup, refuse
from recipe.run.folder import RunFolder

pytestmark = pytest.mark.config

READMES = [EXAMPLES.parent / "README.md", *sorted(EXAMPLES.rglob("README.md"))]
# These READMEs train nothing, or with a script.
NO_TRAINING = ("examples", "toy", "rephrase_math", "published_checkpoints")


def trainings(text: str) -> list[tuple[str, ...]]:
    """Return example and overrides of the training commands in fenced blocks.

    Not those of the short form with --model, which tests/recipe/test_sizes.py expands.
    """
    found = [command_of(line) for line in fenced_lines(text) if SHOWN.search(line)]
    commands = [
        command.arguments for command in found if command and command.name == "recipe.train"
    ]
    return [arguments for arguments in commands if "--model" not in arguments]


def launched(command: tuple[str, ...]) -> DictConfig:
    """Return the configuration of a command; ConfigError if it would not start."""
    config = composed(*command)
    validate(config)
    return config


COMMANDS = list(dict.fromkeys(c for p in READMES for c in trainings(p.read_text("utf-8"))))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_training_of_a_readme_would_start(command: tuple[str, ...]) -> None:
    assert launched(command).trainer.total_training_steps > 0


def check_folders(commands: Iterable[tuple[str, ...]], scratch: Path) -> None:
    """Raise ConfigError if two commands share a run folder and are not the same run."""
    by_folder = defaultdict(list)
    for command in commands:
        config = composed(*command)
        by_folder[config.recipe.run_dir].append(config)
    folder = RunFolder(scratch)
    folder.metrics.touch()
    for first, *others in by_folder.values():
        OmegaConf.save(first, folder.config)
        for other in others:
            moved = OmegaConf.merge(other, {"recipe": {"run_dir": str(folder.root)}})
            refuse([same_run], Setup(moved))


def test_commands_that_share_a_run_folder_are_one_run(tmp_path: Path) -> None:
    check_folders(COMMANDS, tmp_path)
    first = ("cw_grpo", "recipe.run_dir=runs/x")
    check_folders([first, first], tmp_path)
    with pytest.raises(ConfigError, match=r"trainer\.total_training_steps"):
        check_folders([first, (*first, "trainer.total_training_steps=200")], tmp_path)


def test_no_readme_is_skipped() -> None:
    for path in READMES[1:]:
        assert bool(trainings(path.read_text("utf-8"))) != (path.parent.name in NO_TRAINING), path
    assert {"prompt_aug", "toy_methods", "lora"} <= {example for example, *_ in COMMANDS}
    assert any("trainer.nnodes=2" in command for command in COMMANDS)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("recipe.augment.mode", "recipe.augment.mdoe", "mdoe"),
        ("train prompt_aug", "train prompt_agu", "prompt_agu"),
        ("format_weight=0", "format_weight=0 trainer.v1.trainer_mode=sync", "trainer_mode"),
        ("format_weight=0", "format_weight=0 data.train_batch_size=100", "train_batch_size"),
        ("[qwen-math]", "[qwen-math, abel]", "recipe.augment.templates"),
    ],
)
def test_an_outdated_command_fails(old: str, new: str, named: str) -> None:
    *_, last = fenced_lines((EXAMPLES / "dapo" / "README.md").read_text("utf-8"))
    assert old in last
    (command,) = trainings(f"```\n{last.replace(old, new)}\n```\n")
    with pytest.raises(ConfigError, match=named):
        launched(command)
