"""Lines that are printed over and over, shown with a count in place of all of them.

An engine that dies raises one error for every rollout, and each time it is a hundred lines: 85,000
in 15 s, among which the first, which says why, is hard to find. A line is taken for a repeat of one
that differs from it in its numbers alone. Up to `FREE` of them within `QUIET` seconds are let
through: steps, tables and settings stay as they are. Above that one is shown each time that their
number has doubled, until none has come for `QUIET` seconds. So the first of every line is there,
and a million repeats of it add 65 lines.
"""

import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

QUIET = 10.0  # seconds without a line after which it is a new one
FREE = 50  # times that a line may come in that time
MOST = 10_000  # lines that are counted apart; those beyond are counted together
LONGEST = 100_000  # characters without an end of line, as a progress bar prints them
# What Ray puts before a line that a process printed: (name pid=1, ip=1.2.3.4)
SOURCE = re.compile(r"^(?:\([^()]*pid=[^()]*\) ?)+")
NUMBER = re.compile(r"\w*\d\w*")
WORD = re.compile(r"[^\W\d_]")


@dataclass(slots=True)
class Seen:
    """A line that has come before: the latest of its repeats, and since when there are any."""

    line: str
    since: float
    last: float
    count: int = 0
    left_out: bool = False  # since it was told

    def told(self) -> list[str]:
        self.left_out = False
        return [f"... repeated {self.count} times: {self.line}"]


class Repeats:
    """What to print of a stream of lines; `clock` counts seconds and never goes back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.seen: dict[str, Seen] = {}
        self.swept = clock()
        self.shown = True  # the line before: one without words, as ^^^^^, is treated like it

    def see(self, line: str) -> list[str]:
        """The lines to print now that `line` has come: itself, a count, or nothing."""
        said = SOURCE.sub("", line)
        if not WORD.search(said):
            return [line] if self.shown else []
        now, before = self.clock(), self._sweep()
        kind = NUMBER.sub("#", said)
        if kind not in self.seen and len(self.seen) >= MOST:
            kind = ""
        seen = self.seen.get(kind)
        if seen and self._over(seen, now):
            before += seen.told() if seen.left_out else []
            seen = None
        if seen is None:
            seen = self.seen[kind] = Seen(line, now, now)
        seen.line, seen.last, seen.count = line, now, seen.count + 1
        self.shown = seen.count <= FREE
        if self.shown:
            return [*before, line]
        seen.left_out = True
        doubled = seen.count & (seen.count - 1) == 0
        return [*before, *(seen.told() if doubled else [])]

    def end(self) -> list[str]:
        """The numbers of what was left out last."""
        told = [text for seen in self.seen.values() if seen.left_out for text in seen.told()]
        self.seen.clear()
        return told

    def _over(self, seen: Seen, now: float) -> bool:
        """Whether the next such line is a new one, and not one more of these."""
        return now - (seen.since if seen.count <= FREE else seen.last) > QUIET

    def _sweep(self) -> list[str]:
        """Forget what is over, from time to time; the numbers of what was left out of it."""
        now = self.clock()
        if now - self.swept <= QUIET:
            return []
        self.swept = now
        over = {kind: seen for kind, seen in self.seen.items() if self._over(seen, now)}
        self.seen = {kind: seen for kind, seen in self.seen.items() if kind not in over}
        return [text for seen in over.values() if seen.left_out for text in seen.told()]


class Collapsed:
    """A text stream in which `Repeats` stand for the lines that are written to it."""

    def __init__(self, stream: TextIO, repeats: Repeats) -> None:
        self.stream, self.repeats = stream, repeats
        self.lock = threading.RLock()
        self.part = ""  # of a line whose end is still to come

    def write(self, text: str) -> int:
        with self.lock:
            *lines, self.part = (self.part + text).split("\n")
            for line in lines:
                self._put(self.repeats.see(line))
            if len(self.part) > LONGEST:
                self.stream.write(self.part)
                self.part = ""
        return len(text)

    def flush(self) -> None:
        self.stream.flush()

    def end(self) -> None:
        """Write what is held back."""
        with self.lock:
            self._put([*([self.part] if self.part else []), *self.repeats.end()])
            self.part = ""
            self.flush()

    def _put(self, lines: list[str]) -> None:
        for line in lines:
            self.stream.write(f"{line}\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)
