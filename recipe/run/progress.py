"""What a training shows: a line for every stage of its start, then one for every step, or a bar.

The trainer is another process, perhaps on another node: it says in logs/start.jsonl of the run
folder which stage it has reached, and in metrics.jsonl what a step gave. The launching process
reads both and shows them: plain lines in a file, a bar on a terminal.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from omegaconf import DictConfig
from tqdm import tqdm

from prompt_aug.files import append_lines, read_lines, write_text
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
STILL = 60.0  # seconds between lines about a stage under way, without a terminal
BAR = "{desc} {percentage:3.0f}%|{bar:12}| {n_fmt}/{total_fmt} {postfix}"


def reached(run_dir: Path, stage: str, **more: Any) -> None:
    """Say that a stage of the start is done; by the launching process and by the trainer."""
    append_lines(RunFolder(run_dir).start, [{"stage": stage, **more}])


# ------------------------------------------------------------------------- lines


def duration(seconds: float) -> str:
    """``8 s``, ``4 min 10 s``, ``2 h 05 min``, ``3 d 04 h``."""
    whole = round(seconds)
    for size, unit, part, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min")):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // part:02d} {small}"
    return f"{whole // 60} min {whole % 60:02d} s" if whole >= 60 else f"{whole} s"


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
    """Stages and steps as plain lines: for a file or a pipe."""

    def __init__(self, out: TextIO, total: int) -> None:
        self.out, self.total, self.told = out, total, 0.0

    def say(self, text: str) -> None:
        print(text, file=self.out, flush=True)

    def under_way(self, stage: str, seconds: float) -> None:
        if seconds - self.told >= STILL:
            self.told = seconds
            self.say(f"start: still {STAGES[stage]} after {duration(seconds)}")

    def done(self, stage: str, seconds: float) -> None:
        self.told = 0.0
        number = f"{list(STAGES).index(stage) + 1}/{len(STAGES)}"
        self.say(f"start {number}: {stage} ({seconds:.1f} s)")

    def training(self, step: int, text: str) -> None:
        self.say(text)

    def step(self, lines: list[dict[str, Any]]) -> None:
        self.say(describe(lines, self.total))

    def close(self) -> None:
        pass


class Bar(Lines):
    """The same on a terminal: stages under way count their seconds, steps move a bar."""

    def __init__(self, out: TextIO, total: int) -> None:
        super().__init__(out, total)
        self.bar = tqdm(total=total, file=out, bar_format="{desc}", dynamic_ncols=True, leave=True)

    def say(self, text: str) -> None:
        self.bar.clear()
        super().say(text)
        self.bar.refresh()

    def under_way(self, stage: str, seconds: float) -> None:
        self.bar.set_description_str(f"{STAGES[stage]} ... {seconds:.0f} s")

    def training(self, step: int, text: str) -> None:
        self.bar.bar_format = BAR
        self.bar.set_description_str("training", refresh=False)
        self.bar.n = self.bar.initial = step
        self.say(text)

    def step(self, lines: list[dict[str, Any]]) -> None:
        shown = {k: v for k, v in numbers(lines[-1]).items() if k not in ("tokens/s", "seconds")}
        left = time_left(lines, self.total)
        parts = [f"left {duration(left)}"] if left is not None else []
        parts += [f"{name} {value}" for name, value in shown.items()]
        self.bar.set_postfix_str(", ".join(parts), refresh=False)
        self.bar.update(lines[-1]["step"] - self.bar.n)
        if held_out := validation(lines[-1]):
            self.say(f"step {lines[-1]['step']}: {held_out}")

    def close(self) -> None:
        self.bar.close()


class Follower:
    """Reads what the trainer has written since the last look and shows it."""

    def __init__(self, config: DictConfig, out: TextIO) -> None:
        self.folder = RunFolder(Path(config.recipe.run_dir))
        steps = int(config.trainer.total_training_steps)
        self.shown = (Bar if out.isatty() else Lines)(out, steps)
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
        if self.from_step is None and self.stages < len(STAGES):
            self.shown.under_way(list(STAGES)[self.stages], now - self.since)
        elif self.from_step is not None:
            self._steps()

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
        self.shown.training(
            step, f"training{after}: {self.plan}; the start took {duration(now - self.began)}"
        )

    def _steps(self) -> None:
        size = self.folder.metrics.stat().st_size if self.folder.metrics.exists() else 0
        if size == self.size:  # a step takes seconds or minutes, its file may be long
            return
        self.size = size
        last = self.lines[-1]["step"] if self.lines else self.from_step
        for line in read_metrics(self.folder.root):
            if line["step"] > last:
                self.lines.append(line)
                self.shown.step(self.lines)


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
