"""Every training command that a README shows composes and passes the launch checks."""

import re
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest
from composed import composed
from omegaconf import DictConfig, OmegaConf
from page_commands import command_of, fenced_lines

from recipe.config.compose import EXAMPLES
from recipe.errors import ConfigError
from recipe.preflight.checks import validate
from recipe.preflight.resume import same_run
from recipe.preflight.rules import Setup, refuse
from recipe.run.folder import RunFolder

pytestmark = pytest.mark.config

READMES = [EXAMPLES.parent / "README.md", *sorted(EXAMPLES.rglob("README.md"))]
TRAINS = re.compile(r"\brecipe\.train\b|\bscripts/.*\btrain(\.sbatch)? ")
# These READMEs train nothing, or with a script.
NO_TRAINING = ("examples", "toy", "rephrase_math", "published_checkpoints")


def training(line: str) -> tuple[str, ...]:
    """Return the example and overrides of a training command; ValueError for an unknown form."""
    command = command_of(line)
    if command is None or command.name != "recipe.train" or not command.arguments:
        raise ValueError(f"no known form: {line}")
    run = [*command.arguments, ""][1]
    if "submit.sh" in line and not run.startswith("recipe.run_dir="):
        raise ValueError(f"the example is not followed by recipe.run_dir=: {line}")
    return command.arguments


def trainings(text: str) -> list[tuple[str, ...]]:
    return [training(line) for line in fenced_lines(text) if TRAINS.search(line)]


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
    assert {"prompt_aug", "toy_bank", "math_smoke"} <= {example for example, *_ in COMMANDS}
    assert any("trainer.nnodes=2" in command for command in COMMANDS)


@pytest.mark.parametrize(
    "line",
    [
        "bash scripts/submit.sh train grpo",
        "bash scripts/submit.sh train recipe.run_dir=runs/x grpo",
        "RUN=runs/x sbatch scripts/train.sbatch grpo",
        "python -m recipe.train",
    ],
)
def test_a_training_of_unknown_form_is_an_error(line: str) -> None:
    with pytest.raises(ValueError, match=re.escape(line)):
        trainings(f"```bash\n{line}\n```\n")


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
    with pytest.raises(ConfigError, match=named):
        launched(training(last.replace(old, new)))
