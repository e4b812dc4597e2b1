"""Progress of a training on the terminal: a line for each stage of its start and for each step.

`diverted` sends the output of libraries to the run's log: verl, Ray and vLLM print thousands of
lines at a start, from Python, from C++ and from child processes.

The trainer is another process, perhaps on another node. It appends each finished stage to
logs/start.jsonl of the run folder and each step's metrics to metrics.jsonl. The launching process
reads both files and prints them.
"""

import contextlib
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from omegaconf import DictConfig

from prompt_aug.base.commands import text_output
from prompt_aug.base.files import GONE, WriteError, append_lines, read_lines, write_text
from prompt_aug.base.progress import EVERY, duration
from recipe.run.folder import RunFolder, read_metrics

# The stages of a start in order: what is printed after one, and while it is under way.
STAGES = {
    "verl imported": "importing verl",
    "trainer process started": "starting Ray and the trainer's process",
    "model and vLLM engine loaded": "loading questions, model and vLLM engine",
    "weights sent to the engine": "sending the weights to the engine",
}
TRAINING = "training"  # recorded after the last stage, with the `step` before the first one
VALIDATED = "validated"  # recorded before the first step, with the `metrics` of verl's validation
HUNG = "hung"  # recorded by the watchdog, with its reason `why`, before it ends the trainer
POLL = 0.25  # seconds


def reached(run_dir: Path, stage: str, **more: Any) -> None:
    """Record that a stage of the start is done; the launching process and the trainer call it."""
    if not run_dir.is_dir():  # the trainer's process writes here first
        raise WriteError(f"{run_dir} {GONE}")
    append_lines(RunFolder(run_dir).start, [{"stage": stage, **more}])


def find(run_dir: Path, stage: str) -> dict[str, Any] | None:
    """Return the record of a stage of the last start, or None."""
    records = read_lines(RunFolder(run_dir).start)
    return next((record for record in records if record["stage"] == stage), None)


def validations(metrics: dict[str, Any]) -> list[str]:
    """Return "validation SOURCE ACCURACY" for each source of questions in `metrics`."""
    return [
        f"validation {key.removeprefix('val/').removesuffix('/accuracy')} {accuracy:.3f}"
        for key, accuracy in metrics.items()
        if key.startswith("val/") and key.endswith("/accuracy") and "/part/" not in key
    ]


def step_line(lines: list[dict[str, Any]], total: int) -> str:
    """Return the line for the last of `lines`; the first step does not count for the time left."""
    last = lines[-1]

    def value(key: str) -> float:
        return float(last.get(key, math.nan))

    seconds = value("timing_s/step")
    speed = value("perf/total_num_tokens") / seconds if seconds else math.nan
    parts = [
        f"reward {value('critic/score/mean'):.3f}",
        f"accuracy {value('train/accuracy'):.3f}",
        f"entropy {value('train/entropy'):.3f}",
        f"no signal {value('train/no_signal_groups'):.2f}",
        f"tokens/s {speed:,.0f}",
        f"seconds {seconds:.1f}",
        *validations(last),
    ]
    norm = last.get("actor/grad_norm")
    if norm != norm:  # NaN
        parts.append("an update left out: its gradient is not finite")
    if len(lines) > 1:
        spent = last["train/wall_seconds"] - lines[0]["train/wall_seconds"]
        mean = spent / (last["step"] - lines[0]["step"])
        parts.append(f"left {duration(mean * (total - last['step']))}")
    return f"step {last['step']}/{total}: " + ", ".join(parts)


class Follower:
    """Prints what the trainer has written since the last `look`, then the work under way."""

    def __init__(self, config: DictConfig, out: TextIO) -> None:
        self.folder, self.out = RunFolder(Path(config.recipe.run_dir)), out
        self.total = int(config.trainer.total_training_steps)
        self.plan = (
            f"{self.total} steps of {config.data.train_batch_size} questions x "
            f"{config.actor_rollout_ref.rollout.n} responses"
        )
        self.validates = bool(config.trainer.get("val_before_train", True))
        self.began = self.since = self.said = time.monotonic()
        self.stages = 0  # lines of logs/start.jsonl that were shown
        self.step: int | None = None  # the last one shown; at first the one resumed from
        self.lines: list[dict[str, Any]] = []  # metrics of the steps that were shown
        self.size = -1  # of metrics.jsonl
        write_text(self.folder.start, "")
        self.folder.end.unlink(missing_ok=True)

    def say(self, text: str) -> None:
        self.said = time.monotonic()
        print(text, file=self.out, flush=True)

    def look(self) -> None:
        now = time.monotonic()
        for record in read_lines(self.folder.start)[self.stages :]:
            self.stages += 1
            if record["stage"] == TRAINING:
                self.step = int(record["step"])
                after, took = f" after step {self.step}" if self.step else "", now - self.began
                self.say(f"training{after}: {self.plan}; the start took {duration(took)}")
            elif record["stage"] == VALIDATED:
                self.say("before training: " + ", ".join(validations(record["metrics"])))
            elif record["stage"] in STAGES:
                number = list(STAGES).index(record["stage"]) + 1
                took = now - self.since
                self.say(f"start {number}/{len(STAGES)}: {record['stage']} ({took:.1f} s)")
            self.since = now
        if self.step is not None:
            self._show_steps(self.step, now)
        if now - self.said >= EVERY and (work := self._work()):
            self.say(f"{work}: {duration(now - self.since)} so far")

    def _show_steps(self, last: int, now: float) -> None:
        size = self.folder.metrics.stat().st_size if self.folder.metrics.exists() else 0
        if size == self.size:  # a step takes seconds or minutes, its file may be long
            return
        self.size = size
        for line in read_metrics(self.folder.root):
            if line["step"] > last:
                self.lines.append(line)
                self.say(step_line(self.lines, self.total))
                self.step, self.since = line["step"], now
                cut = [x for x in self.lines if x.get("train/truncated", 0.0) > 0.5]
                if cut == [line]:  # once
                    share = f"train/truncated={line['train/truncated']:.2f}"
                    self.say(f"note: {share}: most responses. Raise data.max_response_length.")

    def _work(self) -> str:
        """The stage or step under way; "" between the last stage and the first step."""
        if self.step is None:
            rest = list(STAGES.values())[self.stages :]
            if not rest and self.validates:
                return "start: validation before training"
            return f"start: {rest[0]}" if rest else ""
        if self.step < self.total:
            return f"step {self.step + 1}/{self.total}"
        return "end: waiting for the processes"


@contextlib.contextmanager
def follow(config: DictConfig, out: TextIO) -> Iterator[Callable[[str], None]]:
    """Show the run on `out` in a thread; yield a function that prints a line there."""
    follower, stop = Follower(config, out), threading.Event()

    def show() -> None:
        with contextlib.suppress(OSError):  # the run folder may be gone, as the trainer will report
            last = False
            while not last:
                last = stop.wait(POLL)
                follower.look()

    thread = threading.Thread(target=show, name="progress", daemon=True)
    thread.start()
    try:
        yield follower.say
    finally:
        stop.set()
        thread.join()


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
        terminal = stack.enter_context(text_output(saved[1]))
        flush()  # to the terminal
        for number in saved:
            os.dup2(file.fileno(), number)
        yield terminal
