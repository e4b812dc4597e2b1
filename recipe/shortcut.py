"""The short form ``python -m recipe.train METHOD --model NAME --data NAME``.

It prepares the questions once, holds some of them out, and stands for a longer command, which it
prints. The settings are those of examples/own and config/scale/one_node.yaml.
"""

import re
import shlex
import sys
from pathlib import Path

from prompt_aug.base.errors import UsageError
from prompt_aug.prepare.__main__ import main as prepare
from recipe.config.compose import example_names, group_names

EXAMPLE = "own"
HELD_OUT = 200  # questions, evaluated before, during and after the training


def expand(name: str, model: str | None, data: str | None, overrides: list[str]) -> list[str]:
    """Return the arguments of the long form: the example, then its overrides.

    `name` is a method, or an example whose model or data is replaced. Raises UsageError for another
    name, and for data that cannot be prepared.
    """
    example, more = name, []
    if name in group_names("method"):
        example, more = EXAMPLE, [f"method={name}"]
        if model is None or data is None:
            raise UsageError(
                f"{name}: --model and --data go together. Name both, or an example: "
                "`python -m recipe.train --list` shows them."
            )
    elif name not in example_names() and not Path(name, "config.yaml").is_file():
        raise UsageError(f"{name}: no method. Known are {', '.join(group_names('method'))}.")
    if model is not None:
        more.append(f"recipe.model_path={quoted(model)}")
    if data is not None:
        train, held_out = (quoted(str(path)) for path in prepared(data))
        more += [f"data.train_files=[{train}]", f"data.val_files=[{held_out}]"]
    long = [example, *more, *overrides]
    print(f"recipe.train: stands for: python -m recipe.train {shlex.join(long)}", file=sys.stderr)
    return long


def quoted(path: str) -> str:
    """Return a path as hydra reads it: in quotes if its syntax lacks a character."""
    if re.fullmatch(r"[\w./:-]+", path, re.ASCII):
        return path
    return "'" + path.replace("'", r"\'") + "'"


def prepared(data: str) -> tuple[Path, Path]:
    """Return the files of training and of held-out questions, made from `data` where missing.

    `data` is a file, a folder, a hub id or a preset of `prompt_aug.prepare`.
    """
    name = re.sub(r"\W+", "_", Path(data).stem if Path(data).exists() else data).strip("_").lower()
    train = Path("data") / name / "train.parquet"
    held_out = train.with_suffix(".validation.parquet")
    if not (train.exists() and held_out.exists()):
        command = [data, str(train), "--validation", str(HELD_OUT), "--no-benchmarks"]
        print(f"recipe.train: python -m prompt_aug.prepare {shlex.join(command)}", file=sys.stderr)
        if prepare(command):
            raise UsageError(f"--data {data}: not prepared, for the reason above.")
    return train, held_out
