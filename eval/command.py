"""Options and error handling that the commands of `eval` share."""

import argparse
from collections.abc import Callable, Sequence

from prompt_aug.base.commands import run


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Add ``--settings``, which names one evaluation of a run."""
    parser.add_argument(
        "--settings", help="a folder in RUN/eval (default: the one with most steps)"
    )


def run_command(
    parser: argparse.ArgumentParser,
    arguments: Sequence[str] | None,
    command: Callable[[argparse.Namespace], None],
    saved: str,
) -> int:
    """Parse the options, run `command`, and return the exit code. Ctrl-C prints `saved`."""
    options = parser.parse_args(arguments)
    name = parser.prog.removeprefix("python -m ")
    hint = f"{saved}; the same command continues from there"
    return run(name, lambda: command(options), interrupted=hint)
