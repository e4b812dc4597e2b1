"""The notebook: well formed, without outputs, and its commands are those of scripts/smollm2.sh.

Its cells are not executed here: they take a GPU or half an hour on two cores.
"""

import ast
import json
import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from page_commands import Command, commands_of

from recipe.config.compose import compose_config

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = json.loads((ROOT / "examples" / "smollm2.ipynb").read_text("utf-8"))
CODE = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
SHELL = re.compile(r"^[!%](?:.*\\\n)*.*$", re.MULTILINE)


def commands() -> list[Command]:
    lines = [line[1:] for cell in CODE for line in SHELL.findall("".join(cell["source"]))]
    return commands_of("```\n" + "\n".join(lines) + "\n```\n")


def test_the_notebook_is_well_formed() -> None:
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in NOTEBOOK["cells"]}) == len(NOTEBOOK["cells"])
    for cell in CODE:
        assert cell["outputs"] == [] and cell["execution_count"] is None
        ast.parse(SHELL.sub("", "".join(cell["source"])))


def test_its_commands_are_those_of_the_script() -> None:
    script = (ROOT / "scripts" / "smollm2.sh").read_text("utf-8")
    assert [command.name for command in commands()] == [
        *("scripts/smollm2.py", "scripts/smollm2.py"),
        *("recipe.train", "recipe.export", "eval.sweep", "eval.report"),
    ]
    for command in commands():
        called = command.name if command.name.endswith(".py") else f"-m {command.name}"
        assert f'"$python" {called} {command.arguments[0]}'.removesuffix(" runs/notebook") in script


@pytest.mark.config
def test_its_training_is_the_example_with_two_steps() -> None:
    (train,) = (c for c in commands() if c.name == "recipe.train")
    example, *overrides = train.arguments
    ours, usual = compose_config(example, overrides), compose_config(example, [])
    changed = {text.partition("=")[0] for text in overrides} - {"method"}
    assert len(changed) == 5
    for key in changed:
        assert OmegaConf.select(ours, key) != OmegaConf.select(usual, key), key
    assert ours.trainer.total_training_steps == ours.trainer.save_freq == 2
