"""Kill a real run at random moments, and record each kill. Run by hand, on the CPU.

    python tests/drills/kills.py --count 60 --record FILE --folder FOLDER [--seconds 540]
    python tests/drills/kills.py --record FILE --table          # print the record

The toy task with 8 responses a step, in one run folder of FOLDER: each start resumes the run killed
before. The process and the moment of a kill are a function of the seed and of the number of lines
in the record, so a call continues where the last one ended; after `--seconds` no kill begins. A
line holds what was killed, at which step and moment, how the run ended, after how long, and in
`wrong` what must not be. Exit code 1 if any line has something wrong.

One of the kills fills the disk, so FOLDER should be a small file system of its own:
`mount -t tmpfs -o size=2g tmpfs FOLDER`.

After every end: the launching process has ended within `ENDS` seconds, no process of the run is
left, metrics.jsonl has every step once, and there is a complete checkpoint. After every start: at
most `save_freq` steps are lost, none at a SIGTERM, and steps that are trained again have the same
questions, rollouts and templates as before. No question is trained twice in an epoch.

With `--window` the trainer is asynchronous, with `--separate` its engine has a device of its own.
Groups that were finished before the checkpoint are
then trained as they were: the step after it has their responses again (`kept` counts them).
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from prompt_aug.base.files import append_lines, read_json, read_lines, write_json
from recipe.run import checkpoints, processes
from recipe.run import folder as run_folder

ENDS = 150.0  # Ray takes up to 60 s to notice that its head died
STARTS = 600.0
HANG = 45
SAVE_FREQ = 2
SMALL = [
    *("data.train_max_samples=24", "data.val_max_samples=8", "data.train_batch_size=2"),
    *("actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.rollout.n=4"),
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8",
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8",
    *("trainer.total_training_steps=1000", "trainer.test_freq=-1"),
    *(f"trainer.save_freq={SAVE_FREQ}", "trainer.max_actor_ckpt_to_keep=3"),
    # Fewer than the 16 responses in flight, so that a checkpoint holds groups in all states.
    "actor_rollout_ref.rollout.max_num_seqs=12",
]
EPOCH = 12  # steps
# A kind of process by how its command line begins; Ray renames its actors.
KINDS = {
    "task runner": "ray::TaskRunnerV1",
    "FSDP worker": "ray::WorkerDict",
    "engine": "VLLM::EngineCore",
    "engine's server": "ray::vLLMHttpServer",
    "rollout worker": "ray::GroupedAgentLoopWorker",
    "reward worker": "ray::RewardLoopWorker",
    "queue": "ray::TransferQueueController",
    "queue's storage": "ray::SimpleStorageUnit",
    "raylet": "raylet",
    "Ray's head": "gcs_server",
    "reaper": "recipe.run.processes",
}
# (what, process, moment); moments: start, step, saving, weights.
PLAN = [
    *(("KILL", "launcher", "step"), ("KILL", "engine", "weights")),
    *(("KILL", "FSDP worker", "saving"), ("TERM", "launcher", "step")),
    *(("STOP", "engine", "step"), ("cut lines", "launcher", "step")),
    *(("KILL", "reward worker", "step"), ("KILL", "task runner", "saving")),
    ("KILL", "raylet", "step"),
    *(("STOP", "reward worker", "step"), ("KILL", "launcher", "saving")),
    *(("KILL", "Ray's head", "step"), ("TERM", "launcher", "saving")),
    ("full disk", "launcher", "saving"),
    *(("KILL", "queue's storage", "step"), ("KILL", "launcher", "weights")),
    ("KILL", "rollout worker", "step"),
    *(("KILL", "launcher", "start"), ("STOP", "engine", "weights")),
    *(("KILL", "queue", "step"), ("TERM", "launcher", "start")),
    *(("KILL", "FSDP worker", "weights"), ("KILL", "reaper", "step")),
    *(("KILL", "engine's server", "step"), ("TERM", "launcher", "weights")),
    *(("KILL", "FSDP worker", "step"), ("KILL", "task runner", "step")),
]


@dataclass(kw_only=True)
class Kill:
    """A line of the record."""

    number: int
    what: str
    process: str
    moment: str
    resumed: int = 0  # the step from which the run resumed
    done: int = 0  # the last line at the moment of the kill
    saved: int = 0  # the last complete checkpoint after the end
    kept: int | None = None  # responses that the checkpoint held and a step trained again
    exit: int | None = None
    seconds: float = 0.0  # until the end
    message: str = ""
    wrong: list[str] = field(default_factory=list)


class Drill:
    """The run, its folder and its launching process."""

    def __init__(self, folder: Path, settings: list[str], slow: float) -> None:
        hang = f"recipe.rollout.hang_seconds={HANG * slow:.0f}"
        self.settings, self.slow = [*SMALL, hang, *settings], slow
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.run = folder, folder / "run"
        self.saves = self.run / "checkpoints"
        self.log = folder / "last.log"
        self.process: subprocess.Popen[bytes]
        self.sockets = ""  # pattern of the sockets of weights

    def start(self) -> None:
        where = [f"recipe.run_dir={self.run}"]
        with self.log.open("wb") as file:
            command = [sys.executable, "-m", "recipe.train", "toy", *where, *self.settings]
            self.process = subprocess.Popen(command, stdout=file, stderr=file)

    def lines(self) -> list[int]:
        return [int(line["step"]) for line in run_folder.read_metrics(self.run)]

    def wait(self, condition: Callable[[], Any], seconds: float, every: float = 0.1) -> Any:
        """The true value of the condition; None when the time or the run is over."""
        end = time.monotonic() + self.slow * seconds
        while time.monotonic() < end and self.process.poll() is None:
            if value := condition():
                return value
            time.sleep(every)
        return None

    def find(self, kind: str) -> list[int]:
        """The processes of a kind that belong to the run."""
        if kind == "launcher":
            return [self.process.pid]
        if kind == "reaper":
            return [c.pid for c in _children(psutil.Process(self.process.pid)) if _is(c, kind)]
        return [p.pid for p in processes.marked(str(self.run)) if _is(p, kind)]

    def responses(self, step: int) -> list[list[Any]]:
        lines = read_lines(run_folder.RunFolder(self.run).rollouts(step))
        return [[x[n] for n in ("uid", "rollout", "response", "versions")] for x in lines]

    def held(self) -> list[list[Any]]:
        """The responses of the step after the checkpoint whose groups the checkpoint holds."""
        saved = checkpoints.tracked_step(self.saves) or 0
        path = run_folder.RunFolder(self.run).rollouts(saved + 1)
        data = checkpoints.step_folder(self.saves, saved) / checkpoints.DATA
        if not (path.exists() and data.exists() and _written(path) > _written(data)):
            return []  # that step was not trained from this checkpoint
        newest: dict[str, int] = {}  # version of the weights; a step starts with that of the last
        for uid, _, _, versions in self.responses(saved + 1):
            newest[uid] = max(newest.get(uid, 0), *(version for version, _ in versions))
        return [x for x in self.responses(saved + 1) if newest[x[0]] < saved]

    def saving(self) -> bool:
        """Return whether a checkpoint is being written."""
        there = checkpoints.saved_steps(self.saves)
        return bool(there) and there[-1] > (checkpoints.tracked_step(self.saves) or 0)

    def handing_over(self) -> bool:
        """Return whether the socket of the weights exists."""
        return any(self.sockets and Path("/tmp").glob(self.sockets))

    def reach(self, moment: str, chance: random.Random) -> str:
        """Wait for the moment; return the one that was reached."""
        if moment == "start":
            self.wait(lambda: False, chance.uniform(2, 60))
            return moment
        # A start restores the line of its checkpoint's step; that is not a step of this start.
        before = max([0, checkpoints.tracked_step(self.saves) or 0, *self.lines()])
        self.wait(lambda: max(self.lines(), default=0) > before, STARTS, every=1)
        # A step takes about a second from here on, so the kill falls into any of the next ones.
        if moment == "step":
            self.wait(lambda: False, chance.uniform(0, 3))
            return moment
        marks = processes.marked(str(self.run))
        ids = {p.environ().get("RECIPE_RUN_ID", "") for p in marks if _is(p, "FSDP worker")}
        self.sockets = f"rl-colocate-zmq-{next(iter(ids), 'none')}-*"
        now = {"saving": self.saving, "weights": self.handing_over}[moment]
        return moment if self.wait(now, 60, every=0.001) else "step"

    def end(self, kill: Kill) -> None:
        """Wait for the end, and check what is left."""
        began = time.monotonic()
        try:
            seconds = ENDS + (2 * HANG if kill.what == "STOP" else 0)
            kill.exit = self.process.wait(self.slow * seconds)
        except subprocess.TimeoutExpired:
            kill.wrong.append("the launching process did not end")
            self.process.kill()
        kill.seconds = round(time.monotonic() - began, 1)
        kill.message = _told(self.log)
        if kill.process == "reaper":  # only the next start can clean up
            left = processes.marked(str(self.run))
            kill.message = f"{len(left)} processes are left to the next start"
            return
        if kill.exit == 0:
            kill.wrong.append("exit code 0")
        end = time.monotonic() + 20
        while (left := processes.marked(str(self.run))) and time.monotonic() < end:
            time.sleep(0.5)
        if left:
            kill.wrong.append(f"left: {sorted({_command(p)[0] for p in left if _command(p)})}")
            processes.end(str(self.run))

    def look(self, kill: Kill) -> None:
        """Check the folder between two starts."""
        steps = self.lines()
        if steps != list(range(1, len(steps) + 1)):
            kill.wrong.append(f"lines of metrics.jsonl: {steps}")
        kill.done = max(steps, default=0)
        saved = checkpoints.saved_steps(self.saves)
        folders = {step: checkpoints.step_folder(self.saves, step) for step in saved}
        full = [step for step, folder in folders.items() if not checkpoints.damage(folder)]
        kill.saved = max(full, default=0)
        if kill.done >= SAVE_FREQ + 1 and not full:
            kill.wrong.append("no whole checkpoint")

    def compare(self, kill: Kill) -> None:
        """Compare the draws of steps that are trained again; store those of new steps."""
        path, run = self.folder / "drawn.json", run_folder.RunFolder(self.run)
        records = read_json(path) if path.exists() else {}
        for step in sorted({*map(int, records), *run.rollout_steps()}):
            lines = read_lines(run.rollouts(step))
            drawn = sorted([x["uid"], x["rollout"], x["template"]] for x in lines)
            if records.setdefault(str(step), drawn) != drawn and step <= kill.done:
                kill.wrong.append(f"step {step} has other questions or templates than before")
        write_json(path, records)
        for first in range(1, kill.done + 1, EPOCH):
            steps = range(first, min(first + EPOCH, kill.done + 1))
            uids = [uid for n in steps for uid in {uid for uid, _, _ in records[str(n)]}]
            if len(uids) > len(set(uids)):
                kill.wrong.append(f"a question was trained twice in steps {first} to {steps[-1]}")


def _written(path: Path) -> float:
    return path.stat().st_mtime


def _seen(look: Callable[[], list[Any]]) -> list[Any]:
    """What psutil shows of a process; [] if it has ended."""
    try:
        return look()
    except psutil.Error:
        return []


def _command(process: psutil.Process) -> list[str]:
    return _seen(process.cmdline)


def _children(process: psutil.Process) -> list[psutil.Process]:
    return _seen(lambda: process.children(recursive=True))


def _is(process: psutil.Process, kind: str) -> bool:
    command, wanted = _command(process), KINDS[kind]
    if wanted.startswith("ray::"):
        return bool(command) and command[0].startswith(wanted)
    return wanted in command or Path((command or [""])[0]).name == wanted


def _told(log: Path) -> str:
    """The last message of the command about its end."""
    lines = log.read_text(errors="replace").splitlines()
    own = [i for i, line in enumerate(lines) if line.startswith("recipe.train: ")]
    return " ".join(lines[own[-1] :])[:400] if own else ""


def kill_training(drill: Drill, kill: Kill, chance: random.Random) -> None:
    """Start, wait for the moment, kill, check."""
    held = drill.held()
    drill.start()
    steps_before = max(drill.lines(), default=0)
    kill.moment = drill.reach(kill.moment, chance)
    if kill.what == "full disk":
        fill(drill, kill)
    else:
        name = "KILL" if kill.what == "cut lines" else kill.what
        pids = drill.find(kill.process) if drill.process.poll() is None else []
        if not pids:
            kill.wrong.append(f"no {kill.process}: ended by itself")
        for pid in pids[:1] if kill.process != "reaper" else [*pids, drill.process.pid]:
            os.kill(pid, getattr(signal, f"SIG{name}"))
        drill.end(kill)
    drill.look(kill)
    resumed(drill, kill, steps_before, held)
    drill.compare(kill)
    if kill.what == "TERM" and kill.moment != "start" and kill.saved < kill.done:
        kill.wrong.append(f"{kill.done} steps were done, {kill.saved} are saved")
    if kill.what == "TERM" and kill.exit != 75:
        kill.wrong.append(f"exit code {kill.exit}")
    # Ray may report a stopped actor first.
    if kill.what == "STOP" and not re.search("hang_seconds|unavailable", kill.message):
        kill.wrong.append("the reason is not told")
    if kill.what == "cut lines":
        cut_last_lines(drill)


def resumed(drill: Drill, kill: Kill, steps_before: int, held: list[list[Any]]) -> None:
    """Record the step from which this start resumed, and check what it trained first."""
    before = read_json(drill.folder / "saved.json")["saved"] if steps_before else 0
    kill.resumed = before
    if steps_before - before > SAVE_FREQ:
        kill.wrong.append(f"{steps_before - before} steps were lost")
    if kill.moment != "start" and kill.done <= before and not kill.wrong:
        kill.wrong.append(f"did not get beyond step {before}")
    if held and kill.done > before:
        kill.kept = len(held)
        again = drill.responses(before + 1)
        if not all(response in again for response in held):
            kill.wrong.append(f"step {before + 1} generated finished groups again")
    write_json(drill.folder / "saved.json", {"saved": kill.saved})


def cut_last_lines(drill: Drill) -> None:
    """Truncate the last line, as a crash of the machine may."""
    path = run_folder.RunFolder(drill.run).metrics
    full = path.read_bytes()
    path.write_bytes(full[: -len(full.splitlines()[-1]) // 2])


def fill(drill: Drill, kill: Kill) -> None:
    """Fill the disk of the run folder until the run ends."""
    left = psutil.disk_usage(str(drill.run)).free
    filler = drill.run / "filler"
    if left > 2**32:
        kill.wrong.append("not on a small disk of its own")
    else:
        with filler.open("wb") as file:
            while left > 2**20:
                file.write(b"\0" * 2**20)
                file.flush()
                left = psutil.disk_usage(str(drill.run)).free
    drill.end(kill)
    filler.unlink(missing_ok=True)
    if "disk" not in kill.message:
        kill.wrong.append("the reason is not told")


def table(record: Path) -> str:
    """The record as Markdown."""
    rows = ["| # | what | moment | gone on from | done | saved | exit | s | told | wrong |"]
    rows.append("|---|---|---|---:|---:|---:|---:|---:|---|---|")
    for k in read_lines(record):
        message = k["message"].replace("|", "/").replace("recipe.train: ", "")[:110]
        cells = [k["number"], f"{k['what']} {k['process']}", k["moment"], k["resumed"], k["done"]]
        cells += [k["saved"], k["exit"], k["seconds"], message, "; ".join(k["wrong"]) or "-"]
        rows.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=60)
    parser.add_argument("--record", type=Path, required=True)
    parser.add_argument("--folder", type=Path, help="default: beside the record")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no kill after these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slow", type=float, default=1, help="times longer waits: a busy machine")
    parser.add_argument("--window", type=float, help="of the asynchronous trainer")
    parser.add_argument("--separate", action="store_true", help="with --window")
    parser.add_argument("--table", action="store_true", help="print the record")
    options = parser.parse_args()
    began, record = time.monotonic(), options.record.resolve()
    mode = "separate_async" if options.separate else "colocate_async"
    settings = ["actor_rollout_ref.rollout.nnodes=1"] if options.separate else []
    if options.window is not None:
        settings += [f"trainer.v1.trainer_mode=recipe_{mode}"]
        settings += [f"trainer.v1.{mode}.num_warmup_batches={options.window}"]
    folder = options.folder or record.with_name(record.name + ".d")
    drill = Drill(folder.resolve(), settings, options.slow)
    while not options.table and time.monotonic() - began < options.seconds:
        number = len(read_lines(record))
        if number >= options.count:
            break
        what, process, moment = PLAN[number % len(PLAN)]
        kill = Kill(number=number, what=what, process=process, moment=moment)
        chance = random.Random(f"{options.seed} {number}")
        kill_training(drill, kill, chance)
        append_lines(record, [asdict(kill)], sync=True)
        print(json.dumps(asdict(kill)), flush=True)
    if options.table:
        print(table(record))
    return int(any(line["wrong"] for line in read_lines(record)))


if __name__ == "__main__":
    sys.exit(main())
