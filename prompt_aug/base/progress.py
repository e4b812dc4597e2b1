"""Progress of long work: a line at least every 15 seconds."""

import sys
import threading
import time
from collections.abc import Collection, Iterator
from typing import TypeVar

EVERY = 15.0  # maximum seconds without a line
POLL = 0.25  # seconds between two checks of the time
T = TypeVar("T")
_active: list["Progress"] = []  # nested stages: only the innermost prints
_spoke = time.monotonic()  # when any stage printed last, or the process started


def duration(seconds: float) -> str:
    """Format as ``8 s``, ``4 min 10 s``, ``2 h 05 min`` or ``3 d 04 h``."""
    total = round(seconds)
    for size, unit, part, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if total >= size:
            return f"{total // size} {unit} {total % size // part:02d} {small}"
    return f"{total // 60} min {total % 60:02d} s" if total >= 60 else f"{total} s"


class Progress:
    """Context manager of one stage of a command; counts `update` calls up to `total`.

    A thread prints the line, so that a stage without `update` calls also reports. The estimate is
    elapsed / done * (total - done).
    """

    def __init__(self, title: str, total: int | None = None, unit: str = "") -> None:
        self.title, self.total, self.unit = title, total, unit
        self.done, self.began = 0, time.monotonic()
        self.note = ""  # ends the line
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._speak, name="progress", daemon=True)

    def update(self, count: int = 1) -> None:
        """Count `count` more units as done."""
        self.done += count

    def say(self, text: str) -> None:
        """Print a line of its own."""
        global _spoke
        _spoke = time.monotonic()
        print(text, file=sys.stderr, flush=True)

    def line(self) -> str:
        """Return counts, time so far and, after the first unit, the time left."""
        passed = time.monotonic() - self.began
        if not self.total:
            return f"{self.title}: {duration(passed)} so far"
        parts = [f"{self.done}/{self.total} {self.unit}".rstrip(), f"{duration(passed)} so far"]
        if self.done:
            parts.append(f"{duration(passed / self.done * (self.total - self.done))} left")
        parts += [self.note] if self.note else []
        return f"{self.title}: {', '.join(parts)}"

    def __enter__(self) -> "Progress":
        _active.append(self)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        _active.remove(self)
        self._over.set()
        self._thread.join()

    def _speak(self) -> None:
        while not self._over.wait(POLL):
            if _active[-1:] == [self] and time.monotonic() - _spoke >= EVERY:
                self.say(self.line())


def track(items: Collection[T], title: str, unit: str) -> Iterator[T]:
    """Yield each item and count it in a `Progress`."""
    with Progress(title, len(items), unit) as bar:
        for item in items:
            yield item
            bar.update()
