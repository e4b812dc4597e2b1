"""Progress of long work: a bar on a terminal, elsewhere a line at least every 15 seconds."""

import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from typing import TextIO, TypeVar

from tqdm import tqdm

EVERY = 15.0  # maximum seconds without a line
BAR = "{desc}: {n_fmt}/{total_fmt} {unit} {percentage:3.0f}%|{bar:12}| left {remaining} {postfix}"
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
    elapsed / done * (total - done). `out` defaults to standard error.
    """

    def __init__(
        self,
        title: str,
        total: int | None = None,
        unit: str = "",
        *,
        out: TextIO | None = None,
        every: float = EVERY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.title, self.total, self.unit = title, total, unit
        self.out, self.every, self.clock = out or sys.stderr, every, clock
        self.done, self.began = 0, clock()
        self.note = ""  # ends the line
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._speak, name="progress", daemon=True)
        self._bar: tqdm | None = None

    def update(self, count: int = 1) -> None:
        """Count `count` more units as done."""
        self.done += count
        if self._bar is not None:
            self._bar.set_postfix_str(self.note, refresh=False)
            self._bar.update(count)

    def say(self, text: str) -> None:
        """Print a line of its own, above the bar if there is one."""
        global _spoke
        _spoke = time.monotonic()
        with tqdm.external_write_mode(file=self.out):
            print(text, file=self.out, flush=True)

    def line(self) -> str:
        """Return counts, time so far and, after the first unit, the time left."""
        passed = self.clock() - self.began
        if not self.total:
            return f"{self.title}: {duration(passed)} so far"
        parts = [f"{self.done}/{self.total} {self.unit}".rstrip(), f"{duration(passed)} so far"]
        if self.done:
            parts.append(f"{duration(passed / self.done * (self.total - self.done))} left")
        parts += [self.note] if self.note else []
        return f"{self.title}: {', '.join(parts)}"

    def __enter__(self) -> "Progress":
        _active.append(self)
        if self.out.isatty() and self.total:
            self._bar = tqdm(
                total=self.total,
                desc=self.title,
                unit=self.unit,
                file=self.out,
                bar_format=BAR,
                dynamic_ncols=True,
            )
        else:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        _active.remove(self)
        self._over.set()
        if self._bar is not None:
            self._bar.close()
        else:
            self._thread.join()

    def _speak(self) -> None:
        while not self._over.wait(min(POLL, self.every)):
            if _active[-1:] == [self] and time.monotonic() - _spoke >= self.every:
                self.say(self.line())


def track(items: Collection[T], title: str, unit: str) -> Iterator[T]:
    """Yield each item and count it in a `Progress`."""
    with Progress(title, len(items), unit) as bar:
        for item in items:
            yield item
            bar.update()
