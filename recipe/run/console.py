"""Redirect the output of libraries to the run's log, with repeated lines replaced by counts.

verl, Ray and vLLM print thousands of lines at a start, from Python, from C++ and from child
processes, so the file descriptors themselves are redirected. Ray prints the output of workers on
all nodes with Python in this process; there, repeated lines are replaced by a count.
"""

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

QUIET = 10.0  # seconds without a line after which it counts as new
FREE = 50  # repeats within QUIET seconds that are printed as they are
MOST = 10_000  # kinds of lines that are counted separately; all others share one count
LONGEST = 100_000  # characters without an end of line, as a progress bar prints them
# Ray's prefix of a line that a process printed: (name pid=1, ip=1.2.3.4)
RAY_PREFIX = re.compile(r"^(?:\([^()]*pid=[^()]*\) ?)+")
NUMBER = re.compile(r"\w*\d\w*")
WORD = re.compile(r"[^\W\d_]")


@dataclass(slots=True)
class Repeats:
    """Lines that differ only in their numbers, and the latest of them."""

    line: str
    since: float
    last: float
    count: int = 0
    hidden: bool = False  # True: some were not printed since the last printed count

    def is_over(self, now: float) -> bool:
        return now - (self.since if self.count <= FREE else self.last) > QUIET


class Collapsed:
    """Text stream that prints floods of repeated lines as counts.

    A dead engine raises one error of a hundred lines for every rollout: 85,000 lines in 15 s, in
    which the first one, the cause, is hard to find. `FREE` repeats within `QUIET` seconds are
    printed. After that a count is printed at each power of 2, until `QUIET` seconds pass without a
    repeat. Lines without words, such as ``^^^^``, are treated like the line before.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self.stream, self.clock = stream, clock
        self.lock = threading.RLock()
        self.part = ""  # of a line that has not ended
        self.kinds: dict[str, Repeats] = {}
        self.swept = clock()
        self.shown = True

    def write(self, text: str) -> int:
        with self.lock:
            *lines, self.part = (self.part + text).split("\n")
            for line in lines:
                said = RAY_PREFIX.sub("", line)
                if WORD.search(said):
                    self.shown = self._count(line, NUMBER.sub("#", said))
                if self.shown:
                    self.stream.write(f"{line}\n")
            if len(self.part) > LONGEST:
                self.stream.write(self.part)
                self.part = ""
        return len(text)

    def flush(self) -> None:
        self.stream.flush()

    def end(self) -> None:
        """Write what is held back."""
        with self.lock:
            self.stream.write(f"{self.part}\n" if self.part else "")
            self.part = ""
            self._forget(list(self.kinds))
            self.flush()

    def _count(self, line: str, kind: str) -> bool:
        """Count the line and return whether to print it."""
        now = self.clock()
        if now - self.swept > QUIET:
            self.swept = now
            self._forget([k for k, repeats in self.kinds.items() if repeats.is_over(now)])
        if kind not in self.kinds and len(self.kinds) >= MOST:
            kind = ""
        if kind in self.kinds and self.kinds[kind].is_over(now):
            self._forget([kind])
        repeats = self.kinds.setdefault(kind, Repeats(line, now, now))
        repeats.line, repeats.last, repeats.count = line, now, repeats.count + 1
        if repeats.count <= FREE:
            return True
        repeats.hidden = True
        if repeats.count & (repeats.count - 1) == 0:  # a power of 2
            self._print_count(repeats)
        return False

    def _forget(self, kinds: list[str]) -> None:
        for kind in kinds:
            repeats = self.kinds.pop(kind)
            if repeats.hidden:
                self._print_count(repeats)

    def _print_count(self, repeats: Repeats) -> None:
        repeats.hidden = False
        self.stream.write(f"... repeated {repeats.count} times: {repeats.line}\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextlib.contextmanager
def diverted(log: Path) -> Iterator[TextIO]:
    """Append the output of this process and its children to `log`; yield the standard output."""

    def flush() -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # a closed pipe or file
                stream.flush()

    def restore(number: int, copy: int) -> None:
        flush()  # into the log
        os.dup2(copy, number)
        os.close(copy)

    log.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(log.open("ab"))
        saved = {1: os.dup(1), 2: os.dup(2)}
        for number, copy in saved.items():
            stack.callback(restore, number, copy)
        encoding = sys.stdout.encoding or "utf-8"
        shown = stack.enter_context(
            open(saved[1], "w", encoding=encoding, errors="replace", closefd=False)
        )
        flush()  # to the terminal
        for number in saved:
            os.dup2(file.fileno(), number)
        out, err = Collapsed(sys.stdout), Collapsed(sys.stderr)
        stack.enter_context(contextlib.redirect_stdout(out))
        stack.enter_context(contextlib.redirect_stderr(err))
        stack.callback(out.end)
        stack.callback(err.end)
        yield shown
