"""What the commands of this package share: options, refusals in one line, an end by Ctrl-C."""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from prompt_aug.base.commands import run
from prompt_aug.base.progress import Progress


def text(value: str) -> str:
    """A text that is not empty: an unset shell variable must not become the current folder."""
    if not value.strip():
        raise argparse.ArgumentTypeError("it is empty: is a shell variable unset?")
    return value


def path(value: str) -> Path:
    """A path that is not empty."""
    return Path(text(value))


def existing(value: str) -> Path:
    """A folder that is there."""
    folder = path(value)
    if not folder.is_dir():
        raise argparse.ArgumentTypeError(f"{value} is not a folder")
    return folder


def add_settings(parser: argparse.ArgumentParser) -> None:
    """The option of every command that reads the scores of one evaluation of a run."""
    parser.add_argument("--settings", type=text, help="a folder in RUN/eval (default: the fullest)")


def run_command(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    command: Callable[[argparse.Namespace], None],
    saved: str,
) -> int:
    """Run `command` on the parsed options; the exit code. `saved` is printed after Ctrl-C."""
    options = parser.parse_args(arguments)

    def carried_out() -> int:
        with Progress(parser.prog.removeprefix("python -m ")):
            command(options)
        return 0

    return run(
        parser.prog.removeprefix("python -m "),
        carried_out,
        interrupted=f"{saved}; the same command continues from there",
    )
