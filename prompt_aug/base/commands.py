"""Shared parts of the commands: help, tables, errors in one line.

An error begins with the module that was run, as in ``eval.sweep: ...``. Exit codes: 0 done, 1
failed, 2 wrong usage, 130 interrupted.
"""

import argparse
import contextlib
import errno
import gc
import io
import shlex
import sys
import urllib.parse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from prompt_aug.base.errors import UsageError, UserError
from prompt_aug.base.files import used
from prompt_aug.base.progress import Progress

INTERRUPTED = 130  # 128 + SIGINT, as shells have it


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Keeps the text as written and adds the default of each option."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        shown = action.default not in (None, False, [], argparse.SUPPRESS)
        stated = "%(default)" in (text := action.help or "")
        return f"{text} (default: %(default)s)" if shown and not stated else action.help


class Parser(argparse.ArgumentParser):
    """Parser that formats errors as `run_command` does, with the example instead of the usage."""

    def run(self, arguments: Any, command: Callable[[Any], int | None], saved: str) -> int:
        """Parse the options, then run the command, which the same call continues after Ctrl-C."""
        options, name = self.parse_args(arguments), self.prog.removeprefix("python -m ")
        hint = f"{saved}; the same command continues from there"
        return run_command(name, lambda: command(options), interrupted=hint)

    def error(self, message: str) -> NoReturn:
        name = self.prog.removeprefix("python -m ")
        self.exit(2, f"{name}: {message}\n{self.epilog}\nAll options: {self.prog} --help\n")


def nonempty_path(value: str) -> Path:
    """Return a path for the `type` of an argument; an empty one would be the working folder."""
    if not value.strip():
        raise argparse.ArgumentTypeError("it is empty: is a shell variable unset?")
    if value.startswith("~"):
        raise argparse.ArgumentTypeError("the shell did not expand ~. Use $HOME.")
    return Path(value)


def existing(value: str) -> Path:
    """Return an existing folder, for the `type` of an argument."""
    if not nonempty_path(value).is_dir():
        raise argparse.ArgumentTypeError(f"{value} is not a folder")
    return Path(value)


def make_parser(prog: str, description: str | None, *, example: str) -> Parser:
    """Return a parser with an example, without abbreviated options.

    An abbreviation could change its meaning when an option is added.
    """
    return Parser(
        prog=prog,
        description=(description or "").replace("``", ""),
        epilog=f"example:\n  {example}",
        formatter_class=_Formatter,
        allow_abbrev=False,
    )


class _Steps(argparse.Action):
    """Action that parses ``10 20`` or ``10,20`` to [10, 20], and ``all`` to None."""

    def __call__(self, parser: Any, namespace: Any, values: Any, *_: Any) -> None:
        parts = [part for text in values for part in text.split(",")]
        if not (parts == ["all"] or all(p.isascii() and p.isdecimal() for p in parts)):
            parser.error(f"--steps {' '.join(values)}: neither 'all' nor steps like 10 20")
        setattr(namespace, self.dest, None if parts == ["all"] else [int(part) for part in parts])


def add_steps(parser: argparse.ArgumentParser) -> None:
    """Add ``--steps``, for the commands that work on the checkpoints of a run."""
    parser.add_argument(
        "--steps",
        nargs="+",
        action=_Steps,
        metavar="N",
        help="these steps only, as 10 20 or 10,20 (default: all)",
    )


def in_columns(
    table: Sequence[Sequence[str]], *, left: Sequence[str] = (), rule: bool = False
) -> str:
    """Return a table for a terminal; its first row is the header, underlined with `rule`.

    Columns are right-aligned, except the first and those named in `left`.
    """
    head = table[0]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    sides = [str.ljust if name == head[0] or name in left else str.rjust for name in head]
    rows = [
        "  ".join(side(c, w) for side, c, w in zip(sides, row, widths, strict=True)).rstrip()
        for row in table
    ]
    under = ["  ".join("-" * width for width in widths)] if rule else []
    return "\n".join([rows[0], *under, *rows[1:]])


def run_command(
    name: str, command: Callable[[], int | None], *, interrupted: str, progress: bool = True
) -> int:
    """Run `command` and return its exit code; print UserError and OSError without traceback.

    `name` is the module. `interrupted` is printed after Ctrl-C: what is kept, how to continue.
    `progress=False` is for a command that prints its own progress throughout.
    """
    used.clear()  # another command of this process may make folders anew
    collect_rarely()
    outlive_readers()
    try:
        with Progress(name) if progress else contextlib.nullcontext():
            return command() or 0
    except (UserError, OSError, ExceptionGroup) as raised:
        error: Exception = raised
        while isinstance(error, ExceptionGroup):  # of tasks
            error = error.exceptions[0]
        if not isinstance(error, UserError | OSError):
            raise
        print(f"{name}: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        print(f"{name}: interrupted; {interrupted}", file=sys.stderr)
        return INTERRUPTED


class _Output(io.FileIO):
    """Output that is lost once its reader is gone, a pipe (``| head``) or a terminal."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data)
        except OSError as error:
            if error.errno not in (errno.EPIPE, errno.EIO):
                raise
            return len(data)


def text_output(number: int) -> io.TextIOWrapper:
    """Return a text stream to an open descriptor, which stays open and may lose its reader."""
    buffered = io.BufferedWriter(_Output(number, "wb", closefd=False))
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return io.TextIOWrapper(buffered, encoding, "backslashreplace", line_buffering=True)


def outlive_readers() -> None:
    """Replace the standard streams by `text_output`: who reads them must not change the work."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream and stream is getattr(sys, f"__{name}__"):
            setattr(sys, name, text_output(stream.fileno()))


def python_command(*words: object) -> str:
    """Return ``python -m WORDS``, quoted for a shell: every command that a user may paste."""
    return f"python -m {shlex.join(map(str, words))}"


def collect_rarely() -> None:
    """Raise the number of new objects between two garbage collections; the default is 700.

    Imports allocate millions of objects that stay. Looking for garbage among them takes a fifth of
    a process's start.
    """
    gc.set_threshold(100_000)


def at_least(least: int, options: argparse.Namespace, *names: str) -> None:
    """Reject options that are given and less than `least`. Raises UsageError."""
    for name in names:
        value = getattr(options, name)
        if value is not None and not value >= least:
            raise UsageError(f"--{name.replace('_', '-')}={value}: less than {least}")


def check_url(options: argparse.Namespace, *names: str) -> None:
    """Reject options that are not http or https URLs. Raises UsageError."""
    for name in names:
        check_one_url(f"--{name.replace('_', '-')}", getattr(options, name))


def check_one_url(name: str, url: str | None) -> None:
    """Reject a URL with a password or another secret, which files would hold. Raises UsageError."""
    if url is None:
        return
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port  # is checked when it is read
    except ValueError as error:
        raise UsageError(f"{name}={url}: {error}. Use one like http://localhost:8000/v1.") from None
    if any(mark in url for mark in "@?#"):
        raise UsageError(
            f"{name}: has a user name, password or query. Remove it and set OPENAI_API_KEY."
        )
    if parts.scheme not in ("http", "https") or not parts.netloc or " " in url:
        raise UsageError(f"{name}={url}: not a URL. Use one like http://localhost:8000/v1.")
