"""The user's terminal, kept apart from what libraries print: that goes into a file.

verl, Ray and vLLM print thousands of lines at a start, from Python, from C++ and from child
processes, so nothing short of the file descriptors themselves keeps them off the terminal. What
workers print, on any node, Ray prints in this process with Python: there, repeats are counted.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from recipe.run.repeats import Collapsed, Repeats


@contextlib.contextmanager
def diverted(log: Path) -> Iterator[TextIO]:
    """Append all that this process and its children print to `log`; yields the standard output.

    What is written to the yielded file reaches the user; at the end everything does again. A line
    that Python prints over and over is counted instead (`recipe.run.repeats`).
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(log.open("ab"))
        saved = {1: os.dup(1), 2: os.dup(2)}
        for number, copy in saved.items():
            stack.callback(_restore, number, copy)
        shown = stack.enter_context(_text(saved[1]))
        _flush()  # what Python still holds was meant for the terminal
        for number in saved:
            os.dup2(file.fileno(), number)
        out, err = (Collapsed(stream, Repeats()) for stream in (sys.stdout, sys.stderr))
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        for collapsed in (out, err):
            stack.callback(collapsed.end)
        yield shown


def _text(descriptor: int) -> TextIO:
    """A file of its own on `descriptor`, which stays open when this one is closed."""
    return open(
        descriptor, "w", encoding=sys.stdout.encoding or "utf-8", errors="replace", closefd=False
    )


def _restore(number: int, copy: int) -> None:
    _flush()  # what Python still holds belongs to the log
    os.dup2(copy, number)
    os.close(copy)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a closed pipe or file
            stream.flush()
