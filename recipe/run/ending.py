"""How a run has ended: the first cause, what is saved, where to look, and how to resume."""

import contextlib
import errno
import os
import re
import shlex
import shutil
import traceback
from pathlib import Path

from omegaconf import DictConfig

from prompt_aug.base.errors import UserError
from prompt_aug.base.files import write_json, write_text
from recipe.run import checkpoints, folder

BEGINS = "=== "  # the line with which a start begins in logs/train.log
# What Ray and vLLM put before a line that a process printed: (name pid=1, ip=1.2.3.4), (EngineCore)
PREFIX = re.compile(r"^(?:\([^()]*pid=[^()]*\) ?)+(?:ERROR \S+ \S+ \[[^\]]*\] )?")
RAISED = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit)\b")  # at no indentation
# How Ray describes a dead actor, a line each, below the first line of its error.
ACTOR = re.compile(r"^\s+(class_name|pid|ip): (\S+)", re.MULTILINE)
FULL = 2**26  # with fewer bytes free, a write that failed did so for lack of room


def record(run: folder.RunFolder, code: int, told: str) -> None:
    """Write logs/end.json; a run that was killed has none, since every start deletes it."""
    with contextlib.suppress(OSError):  # a full disk, which `told` is about
        write_json(run.end, {"code": code, "told": told})


def own_words(error: BaseException) -> str:
    """The message of an error of ours, without the traceback that Ray's copy of it has for text.

    Ray raises what an actor raised as a subclass of that error's class, and keeps it as `cause`.
    """
    return str(getattr(error, "cause", error))


def how_to_go_on(config: DictConfig) -> str:
    """What of a run that has stopped is saved, and what the same command does then."""
    run_dir = config.recipe.run_dir
    saved = checkpoints.tracked_step(Path(config.trainer.default_local_dir))
    done = max((line["step"] for line in folder.read_metrics(Path(run_dir))), default=0)
    if saved:
        return f"step {saved} is saved in {run_dir}: the same command continues from there"
    every = f"trainer.save_freq={config.trainer.save_freq}"
    if done:
        return f"{done} steps were done and none was saved ({every}): the same command starts anew"
    return "no step was done: the same command starts from the beginning"


def next_commands(config: DictConfig) -> str:
    """The commands that export, evaluate and report a finished run, a line each."""
    where = Path(config.recipe.run_dir)
    here = where.relative_to(Path.cwd()) if where.is_relative_to(Path.cwd()) else where
    run = shlex.quote(str(here))
    asked = "" if config.eval.benchmarks else " --benchmark math500"
    commands = (f"recipe.export {run}", f"eval.sweep {run}{asked}", f"eval.report {run}")
    return "next:\n" + "\n".join(f"  python -m {command}" for command in commands)


def explain(error: BaseException, config: DictConfig) -> str:
    """The cause of a run's end as far as its errors and the disk show, where to look, what to do.

    The whole traceback goes to logs/error.txt of the run folder. torch reports a full disk as a
    wrong position in its file, so the room left is looked at too.
    """
    run = folder.RunFolder(Path(config.recipe.run_dir))
    if isinstance(error, UserError):
        return f"{own_words(error)}\n{how_to_go_on(config)}"
    if run.hung.exists():
        return f"{run.hung.read_text(encoding='utf-8')}\n{how_to_go_on(config)}"
    told = "".join(traceback.format_exception(error))
    if shutil.disk_usage(run.root).free < FULL or os.strerror(errno.ENOSPC) in told:
        return (
            f"the disk of {run.root} is full: free some room, then start the same command again\n"
            f"{how_to_go_on(config)}"
        )
    write_text(run.error, told)
    printed = first_error(run.log) if run.log.exists() else None
    before = f"\nthe first error printed: {printed}" if printed else ""
    return (
        f"the run stopped: {first_cause(error)}{before}\n"
        f"all that was printed is in {run.log}, the traceback in {run.error}\n"
        f"{how_to_go_on(config)}"
    )


def first_cause(error: BaseException) -> str:
    """The error that began a chain, as one line: its class and message.

    A remote error's text ends with the traceback of the process in which it happened. Of a dead
    actor its class, process and node are named: most often the kernel has killed it for memory.
    """
    while (cause := getattr(error, "cause", None) or error.__cause__) is not None:
        error = cause
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if "Traceback" in str(error) and lines:
        return lines[-1]
    actor = dict(ACTOR.findall(str(error)))
    which = ""
    if "class_name" in actor:
        which = f" ({actor['class_name']}, pid {actor.get('pid')} on {actor.get('ip')})"
    return f"{type(error).__name__}: {lines[0] if lines else 'no message'}{which}"


def first_error(log: Path) -> str | None:
    """The last line of the first traceback that the last start left in `log`, and where it stands.

    An engine process that dies sends its parent no more than that it is dead: what it died of is
    what it printed.
    """
    found: str | None = None
    inside = False
    with log.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, start=1):
            said = PREFIX.sub("", line.rstrip())
            if line.startswith(BEGINS):
                found, inside = None, False
            elif found is None and said.startswith("Traceback (most recent call last)"):
                inside = True
            elif inside and RAISED.match(said):
                found, inside = f"{said[:300]} (line {number})", False
    return found
