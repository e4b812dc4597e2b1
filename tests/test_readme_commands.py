"""Every training command that a README shows composes, and passes the checks of the launch."""

import re
import shlex
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
from composed import composed
from keys_in_text import wrong_keys
from omegaconf import DictConfig, OmegaConf

from recipe.config.compose import EXAMPLES
from recipe.errors import ConfigError
from recipe.preflight.checks import validate
from recipe.preflight.resume import same_run
from recipe.preflight.rules import Setup, refuse
from recipe.run.folder import RunFolder

pytestmark = pytest.mark.config

READMES = [EXAMPLES.parent / "README.md", *sorted(EXAMPLES.rglob("README.md"))]
FENCED = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TRAINS = re.compile(
    r"\brecipe\.train\b|\bscripts/.*\btrain(\.sbatch)? "
)  # what the line of a training has


@dataclass(frozen=True, kw_only=True)
class Command:
    """What `recipe.train` is called with."""

    example: str
    overrides: tuple[str, ...] = ()


def lines_of(text: str) -> list[str]:
    """The lines of all fenced blocks of a README, continued ones joined."""
    return "".join(FENCED.findall(text)).replace("\\\n", " ").splitlines()


def command_of(line: str) -> Command:
    """The command of a line, with what the sbatch file adds; ValueError for another form."""
    words = shlex.split(line, comments=True)
    if words[:3] == ["python", "-m", "recipe.train"] and len(words) > 3:
        return Command(example=words[3], overrides=tuple(words[4:]))
    match words:
        case ["bash", "scripts/submit.sh", "train", example, run, *rest]:
            nodes: list[str] = []
        case ["bash", "scripts/submit.sh", nodes_option, "train", example, run, *rest]:
            nodes = [
                "trainer.nnodes=" + nodes_option.removeprefix("--nodes="),
                "trainer.n_gpus_per_node=8",
            ]
        case _:
            raise ValueError(f"no form that this test knows: {line}")
    if not run.startswith("recipe.run_dir="):
        raise ValueError(f"the example, then recipe.run_dir=: {line}")
    return Command(example=example, overrides=(run, *nodes, *rest))


def commands_of(text: str) -> list[Command]:
    """The training commands of a README."""
    return [command_of(line) for line in lines_of(text) if TRAINS.search(line)]


def launched(command: Command) -> DictConfig:
    """The configuration that the command starts with; ConfigError where it would not start."""
    config = composed(command.example, *command.overrides)
    validate(config)
    return config


# One entry for each distinct command, in the order of the READMEs.
COMMANDS = list(dict.fromkeys(c for p in READMES for c in commands_of(p.read_text("utf-8"))))


def named(command: Command) -> str:
    return " ".join((command.example, *command.overrides))


@pytest.mark.parametrize("command", COMMANDS, ids=named)
def test_a_command_of_a_readme_would_start(command: Command) -> None:
    assert launched(command).trainer.total_training_steps > 0


def check_folders(commands: Iterable[Command], scratch: Path) -> None:
    """ConfigError where the second command of a run folder would be refused there."""
    by_folder = defaultdict(list)
    for command in commands:
        config = launched(command)
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


def test_two_runs_in_one_folder_are_found(tmp_path: Path) -> None:
    """Negative control: Open-RS warms up for a tenth of its steps; with more it is another run."""
    first = Command(example="cw_grpo", overrides=("recipe.run_dir=runs/x",))
    more = ("recipe.run_dir=runs/x", "trainer.total_training_steps=200")
    with pytest.raises(ConfigError, match=r"trainer\.total_training_steps"):
        check_folders([first, Command(example="cw_grpo", overrides=more)], tmp_path)
    check_folders([first, first], tmp_path)


README = """
Text with `python -m recipe.train IGNORED` in a line.

```bash
python -m recipe.train toy   # a run
bash scripts/submit.sh sweep runs/x
```

```
bash scripts/submit.sh train dapo recipe.run_dir=runs/d a.b=1 \\
    'a.c=[x, y]' \\
    d=2
bash scripts/submit.sh --nodes=3 train grpo recipe.run_dir=runs/g e=3
```
"""


def test_commands_are_read_as_the_shell_does() -> None:
    nodes = ("trainer.nnodes=3", "trainer.n_gpus_per_node=8")
    assert commands_of(README) == [
        Command(example="toy"),
        Command(example="dapo", overrides=("recipe.run_dir=runs/d", "a.b=1", "a.c=[x, y]", "d=2")),
        Command(example="grpo", overrides=("recipe.run_dir=runs/g", *nodes, "e=3")),
    ]


def test_no_readme_is_passed_over() -> None:
    for path in READMES[1:]:
        found = commands_of(path.read_text("utf-8"))
        table = path.parent == EXAMPLES  # the index of the examples shows no command
        # The demo has its own test; rephrasing and published checkpoints train nothing.
        other = path.parent.name in ("toy", "rephrase_math", "published_checkpoints")
        assert bool(found) != (table or other), path
    assert {"prompt_aug", "toy_bank", "math_smoke"} <= {c.example for c in COMMANDS}
    assert any("trainer.nnodes=2" in c.overrides for c in COMMANDS)


@pytest.mark.parametrize(
    "line",
    [
        "bash scripts/submit.sh train grpo",
        "bash scripts/submit.sh train recipe.run_dir=runs/x grpo",
        "RUN=runs/x sbatch scripts/train.sbatch grpo",
        "bash scripts/sumbit.sh train grpo recipe.run_dir=runs/x",
        "python -m recipe.train",
    ],
)
def test_a_training_command_of_an_unknown_form_is_not_passed_over(line: str) -> None:
    with pytest.raises(ValueError, match=r"recipe.run_dir=|no form"):
        commands_of(f"```bash\n{line}\n```\n")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("recipe.augment.mode", "recipe.augment.mdoe", "mdoe"),  # a misspelt key
        ("train prompt_aug", "train prompt_agu", "no example 'prompt_agu'"),
        ("format_weight=0", "format_weight=0 method=gropo", "gropo"),
        # and one for each check of the launch
        ("format_weight=0", "format_weight=0 trainer.v1.trainer_mode=sync", "recipe_sync"),
        ("format_weight=0", "format_weight=0 data.train_batch_size=100", "not a multiple"),
        ("[qwen-math]", "[qwen-math, abel]", "wants one name"),
        ("format_weight=0", "format_weight=0 recipe.rephrasings.count=4", "must be a multiple"),
    ],
)
def test_a_command_that_rots_fails(old: str, new: str, said: str) -> None:
    text = (EXAMPLES / "dapo" / "README.md").read_text("utf-8")
    *_, last = lines_of(text)
    assert old in last
    with pytest.raises(ConfigError, match=said):
        launched(command_of(last.replace(old, new)))


PAGES = sorted(
    path
    for folder in ("examples", "recipe", "eval", "prompt_aug", "requirements")
    for path in (EXAMPLES.parent / folder).rglob("*.md")
)


@pytest.mark.parametrize(
    "path", [READMES[0], *PAGES], ids=lambda p: str(p.relative_to(p.parents[2]))
)
def test_every_key_that_a_page_names_exists_in_full(path: Path) -> None:
    assert wrong_keys(path.read_text("utf-8")) == []


def test_wrong_keys_are_seen() -> None:
    text = (
        "`actor.use_dynamic_bsz=true`, `clip_ratio_high=0.28`, `recipe.augment.modes`, `trainer.x` "
        "fine: `actor_rollout_ref.actor.use_dynamic_bsz`, `method=grpo`, `recipe.train`, `a == b`, "
        "`ray_kwargs.ray_init.any`, `metrics.jsonl`, `prompt_aug.grading.grade`, `name`"
    )
    assert wrong_keys(text) == [
        "actor.use_dynamic_bsz",
        "clip_ratio_high",
        "recipe.augment.modes",
        "trainer.x",
    ]
