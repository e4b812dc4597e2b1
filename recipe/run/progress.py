"""What a training shows: a line for every stage of its start, then one for every step.

The trainer is another process, perhaps on another node. It appends the stage that it has reached
to logs/start.jsonl of the run folder, and a step's metrics to metrics.jsonl. The launching process
reads both and prints them.
"""

import contextlib
import math
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from omegaconf import DictConfig

from prompt_aug.base.files import append_lines, read_lines, write_text
from prompt_aug.base.progress import EVERY, duration
from recipe.run.folder import RunFolder, read_metrics

# The stages of a start in order: what is said when one is done, and while it is under way.
STAGES = {
    "verl imported": "importing verl",
    "Ray started": "starting Ray",
    "trainer process started": "starting the trainer's process",
    "questions loaded": "loading the questions",
    "worker processes started": "starting the worker processes",
    "model loaded": "loading the model",
    "vLLM engine started": "starting the vLLM engine",
    "weights sent to the engine": "sending the weights to the engine",
}
TRAINING = "training"  # after the last stage: steps begin, the first one is `step` + 1
POLL = 0.25  # seconds


def reached(run_dir: Path, stage: str, **more: Any) -> None:
    """Say that a stage of the start is done; by the launching process and by the trainer."""
    append_lines(RunFolder(run_dir).start, [{"stage": stage, **more}])


# ------------------------------------------------------------------------- lines


def time_left(lines: list[dict[str, Any]], total: int) -> float | None:
    """Seconds until step `total`: the mean wall time between the steps of this start; None of one.

    The time before the first of them is that of the start, and the first step compiles.
    """
    if len(lines) < 2:
        return None
    first, last = lines[0], lines[-1]
    seconds = last["train/wall_seconds"] - first["train/wall_seconds"]
    return seconds / (last["step"] - first["step"]) * (total - last["step"])


def numbers(m: dict[str, Any]) -> dict[str, str]:
    """What is shown of a step, by name."""

    def value(key: str) -> float:
        return float(m.get(key, math.nan))

    seconds = value("timing_s/step")
    return {
        "reward": f"{value('critic/score/mean'):.3f}",
        "accuracy": f"{value('train/accuracy'):.3f}",
        "entropy": f"{value('train/entropy'):.3f}",
        "no signal": f"{value('train/no_signal_groups'):.2f}",
        "tokens/s": f"{value('perf/total_num_tokens') / seconds:,.0f}" if seconds else "nan",
        "seconds": f"{seconds:.1f}",
    }


def validation(m: dict[str, Any]) -> str:
    """The held-out accuracies of a step, "" where it had none."""
    found = {k: v for k, v in m.items() if k.startswith("val/") and k.endswith("/accuracy")}
    return ", ".join(f"held out {k.split('/')[1]} {v:.3f}" for k, v in found.items())


def describe(lines: list[dict[str, Any]], total: int) -> str:
    """The line of the last of `lines`, the steps of this start."""
    left = time_left(lines, total)
    parts = [f"{name} {value}" for name, value in numbers(lines[-1]).items()]
    parts += [validation(lines[-1])] * bool(validation(lines[-1]))
    parts += [] if left is None else [f"left {duration(left)}"]
    return f"step {lines[-1]['step']}/{total}: " + ", ".join(parts)


# ------------------------------------------------------------------------- showing them


class Lines:
    """Stages and steps as lines, and what is under way.

    On a terminal the work under way is the last line, rewritten at every look. Elsewhere it is a
    line of its own whenever nothing was said for `EVERY` seconds.
    """

    def __init__(
        self, out: TextIO, total: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.out, self.total, self.clock, self.last = out, total, clock, clock()
        self.erase = "\r\033[K" if out.isatty() else ""

    def say(self, text: str) -> None:
        self.last = self.clock()
        print(f"{self.erase}{text}", file=self.out, flush=True)

    def under_way(self, text: str) -> None:
        if self.erase:
            room = shutil.get_terminal_size().columns - 1
            print(f"{self.erase}{text[:room]}", end="", file=self.out, flush=True)
        elif self.clock() - self.last >= EVERY:
            self.say(text)

    def done(self, stage: str, seconds: float) -> None:
        number = f"{list(STAGES).index(stage) + 1}/{len(STAGES)}"
        self.say(f"start {number}: {stage} ({seconds:.1f} s)")

    def close(self) -> None:
        print(self.erase, end="", file=self.out, flush=True)


class Follower:
    """Reads what the trainer has written since the last look and shows it."""

    def __init__(self, config: DictConfig, out: TextIO) -> None:
        self.folder = RunFolder(Path(config.recipe.run_dir))
        steps = int(config.trainer.total_training_steps)
        self.shown = Lines(out, steps)
        self.plan = (
            f"{steps} steps of {config.data.train_batch_size} questions x "
            f"{config.actor_rollout_ref.rollout.n} responses"
        )
        self.began = self.since = time.monotonic()
        self.stages = 0  # lines of logs/start.jsonl that were shown
        self.from_step: int | None = None  # the steps of this start come after it
        self.lines: list[dict[str, Any]] = []  # of the steps that were shown
        self.size = -1
        self.printed = self.folder.log.stat().st_size if config.recipe.worker_logs else None
        write_text(self.folder.start, "")
        self.folder.end.unlink(missing_ok=True)

    def look(self) -> None:
        now = time.monotonic()
        if self.printed is not None:
            self._printed(self.printed)
        for record in read_lines(self.folder.start)[self.stages :]:
            self.stages += 1
            if record["stage"] == TRAINING:
                self._begin(int(record["step"]), now)
            else:
                self.shown.done(record["stage"], now - self.since)
            self.since = now
        if self.from_step is not None:
            self._steps(now)
        if under_way := self._under_way():
            self.shown.under_way(f"{under_way}: {duration(now - self.since)} so far")

    def _under_way(self) -> str:
        """The stage or step that has begun at `since`; "" between the last stage and step 1."""
        if self.from_step is None:
            rest = list(STAGES.values())[self.stages :]
            return f"start: {rest[0]}" if rest else ""
        done, total = self.lines[-1]["step"] if self.lines else self.from_step, self.shown.total
        return f"step {done + 1}/{total}" if done < total else "end: waiting for the processes"

    def _printed(self, start: int) -> None:
        """Show the whole lines that logs/train.log has got since."""
        with self.folder.log.open("rb") as file:
            file.seek(start)
            lines, end, _ = file.read().rpartition(b"\n")
        if end:
            self.printed = start + len(lines) + 1
            self.shown.say(lines.decode(errors="replace"))

    def _begin(self, step: int, now: float) -> None:
        self.from_step = step
        after = f" after step {step}" if step else ""
        took = duration(now - self.began)
        self.shown.say(f"training{after}: {self.plan}; the start took {took}")

    def _steps(self, now: float) -> None:
        size = self.folder.metrics.stat().st_size if self.folder.metrics.exists() else 0
        if size == self.size:  # a step takes seconds or minutes, its file may be long
            return
        self.size = size
        last = self.lines[-1]["step"] if self.lines else self.from_step
        for line in read_metrics(self.folder.root):
            if line["step"] > last:
                self.lines.append(line)
                self.shown.say(describe(self.lines, self.shown.total))
                self.since = now


@contextlib.contextmanager
def follow(config: DictConfig, out: TextIO) -> Iterator[Callable[[str], None]]:
    """Show the run on `out` while the body works, in a thread of this process.

    Yields what says a line there in between.
    """
    follower, stop = Follower(config, out), threading.Event()

    def show() -> None:
        # The terminal may be gone (a closed pipe): the training continues without being shown.
        with contextlib.suppress(OSError):
            last = False
            while not last:
                last = stop.wait(POLL)
                follower.look()
            follower.shown.close()

    thread = threading.Thread(target=show, name="progress", daemon=True)
    thread.start()
    try:
        yield follower.shown.say
    finally:
        stop.set()
        thread.join()
