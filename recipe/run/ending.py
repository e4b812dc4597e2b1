"""Report how a run ended: the first cause, what is saved, where to look, and how to resume."""

import contextlib
import errno
import os
import re
import traceback
from pathlib import Path

from omegaconf import DictConfig

from prompt_aug.base.commands import python_command
from prompt_aug.base.errors import UserError
from prompt_aug.base.files import GONE, LOCK, FileError, is_held, read_json, write_json, write_text
from recipe.machine import host
from recipe.run import checkpoints, folder, progress

BEGINS = "=== "  # first characters of the line with which a start begins in logs/train.log
# The words of a full disk or quota: the system's, and torch.save's, which drops them.
TORCH_SAVE = r"PytorchStreamWriter failed writing|unexpected pos \d+ vs \d+"
FULL_DISK = re.compile("|".join([*map(os.strerror, (errno.ENOSPC, errno.EDQUOT)), TORCH_SAVE]))
# Ray's prefix of a line, as "(name pid=1, ip=1.2.3.4)", and vLLM's own.
PRINTED_BY = re.compile(r"^(?:\([^()]*pid=[^()]*\) ?)+(?:ERROR \S+ \S+ \[[^\]]*\] )?")
RAISED = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b")  # at no indentation
# Ray's description of a dead actor, a line each, below the first line of its error.
ACTOR = re.compile(r"^\s+(class_name|pid|ip): (\S+)", re.MULTILINE)
FULL = 2**26  # with fewer free bytes, any foreign error but a hang is taken for a full disk


def record(run: folder.RunFolder, code: int, message: str) -> None:
    """Write logs/end.json. A killed run has none, because every start deletes it."""
    with contextlib.suppress(OSError):  # a full disk, which the message is about
        write_json(run.end, {"code": code, "message": message})


def state_of(run: folder.RunFolder, *, done: bool, begun: bool) -> str:
    """Return the state, one of those in `recipe.runs`, of a run with all (`done`) or some steps."""
    try:
        code = read_json(run.end)["code"]
    except (FileError, KeyError):  # ended by a signal, or by an older version
        code = None
    # Of another user's lock it is not known whether it is held.
    if is_held(run.root) and (code is None or os.access(run.root / LOCK, os.W_OK)):
        return "running"
    if code == 1:
        return "failed"
    if done:
        return "done"
    if code is not None:
        return "stopped"
    return "killed" if run.start.exists() else "stopped" if begun else "ready"


def own_words(error: BaseException) -> str:
    """Return the message of one of our errors; Ray's copy has it as `cause`."""
    return str(getattr(error, "cause", error))


def how_to_go_on(config: DictConfig) -> str:
    """Say what a stopped run has saved and what the same command does next."""
    run_dir = config.recipe.run_dir
    saved = checkpoints.tracked_step(Path(config.trainer.default_local_dir))
    done = max((line["step"] for line in folder.read_metrics(Path(run_dir))), default=0)
    if saved:
        first, count = saved + 1, done - saved
        lost = f"steps {first} to {done} are lost; " if count > 1 else f"step {done} is lost; "
        return (
            f"{lost if count > 0 else ''}step {saved} is saved in {run_dir}: the same command "
            "continues from there"
        )
    every = f"trainer.save_freq={config.trainer.save_freq}"
    if done:
        return f"{done} steps were done and none was saved ({every}): the same command starts anew"
    return "no step was done: the same command starts from the beginning"


def next_commands(config: DictConfig) -> str:
    """Return the commands that export, evaluate and report a finished run, one per line.

    Without `eval.benchmarks` the run's own validation questions are evaluated.
    """
    if not checkpoints.tracked_step(Path(config.trainer.default_local_dir)):
        return (
            f"trainer.save_freq={config.trainer.save_freq}: no step was saved, so there is nothing "
            "to export or evaluate. Set it above 0: the same command then trains anew."
        )
    where = Path(config.recipe.run_dir)
    here = where.relative_to(Path.cwd()) if where.is_relative_to(Path.cwd()) else where
    own = f"validation={folder.RunFolder(here).data('test')}"
    benchmark = [] if config.eval.benchmarks else ["--benchmark", own]
    commands = (["recipe.export", here], ["eval.sweep", here, *benchmark], ["eval.report", here])
    return "next:\n" + "\n".join(f"  {python_command(*words)}" for words in commands)


def explain(error: BaseException, config: DictConfig) -> str:
    """Return the cause of a failed run, where to look and what to do; write logs/error.txt."""
    run = folder.RunFolder(Path(config.recipe.run_dir))
    if not run.root.is_dir():
        return f"{run.root} {GONE}"
    resume = how_to_go_on(config)
    if isinstance(error, UserError):
        return f"{own_words(error)}\n{resume}"
    if hung := progress.find(run.root, progress.HUNG):
        return f"{hung['why']}\n{resume}"
    text = "".join(traceback.format_exception(error))
    with contextlib.suppress(OSError):  # a full disk
        write_text(run.error, text)
    found = [line.strip() for line in text.splitlines() if FULL_DISK.search(line)]
    saves = Path(config.trainer.default_local_dir)  # perhaps on another disk
    full = [path for path in (saves, run.root) if host.free_gib(path) * 2**30 < FULL]
    if found or full:
        saving = found and re.search(TORCH_SAVE, found[-1])
        place = f"the disk of {[*full, saves if saving else run.root][0]}, or your quota there"
        place = f"a disk ({found[-1]}), perhaps {place}," if found else place
        return f"{place} is full: free some room, then start the same command again\n{resume}"
    printed = first_error(run.log) if run.log.exists() else None
    before = f"\nthe first error printed: {printed}" if printed else ""
    return (
        f"the run stopped: {first_cause(error)}{before}\n"
        f"all that was printed is in {run.log}, the traceback in {run.error}\n{resume}"
    )


def first_cause(error: BaseException) -> str:
    """Return class and message of the error that began a chain, in one line.

    The text of a remote error ends with its traceback. A dead actor is named with process and node.
    """
    while (cause := getattr(error, "cause", None) or error.__cause__) is not None:
        error = cause
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "Traceback" in str(error) and lines:
        return lines[-1]
    actor, which = dict(ACTOR.findall(str(error))), ""
    if "class_name" in actor:
        which = f" ({actor['class_name']}, pid {actor.get('pid')} on {actor.get('ip')})"
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}{which}"


def first_error(log: Path) -> str | None:
    """Return the last line of the first traceback of the last start in `log`, with its number."""
    first: str | None = None
    inside = False
    with log.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            text = PRINTED_BY.sub("", line.rstrip())
            if line.startswith(BEGINS):
                first, inside = None, False
            elif first is None and text.startswith("Traceback (most recent call last)"):
                inside = True
            elif inside and RAISED.match(text):
                first, inside = f"{text[:300]} (line {number})", False
    return first
