"""Checkpoints of a run: validate them, choose one to resume from, delete surplus ones.

verl 0.9.1 writes ``global_step_N/actor/{model,optim,extra_state}_world_size_W_rank_R.pt`` from
every rank, then ``global_step_N/data.pt``, then overwrites ``latest_checkpointed_iteration.txt``
(the tracker) in place. It trusts the tracker: without it, or without the folder it names, verl
silently starts from scratch; with a truncated shard, every start fails. So `repair` checks the
folders before every start.
"""

import os
import shutil
import zipfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from prompt_aug.base.files import FileError, MissingFileError, read_json, write_text
from prompt_aug.typed import Positive, read_record, stored
from recipe.errors import ConfigError
from recipe.run.folder import CHECKPOINT, append_metrics, numbered, read_metrics

TRACKER = "latest_checkpointed_iteration.txt"
STATE = "recipe_state.json"  # counts and statistics of the trainer, beside verl's files
RANKS = "fsdp_config.json"  # in actor or critic: how many ranks saved it
RATES = dict[str, float]
STATISTICS = {"shortest": dict[str, int], "pass_rates": RATES, "predicted": RATES}
STATE_TYPES = {
    **{"batches_fetched": int, "optimizer_steps": int, "wall_seconds": float},
    **{"kl_in_reward": float | None, "line": dict[str, Any]},
    "question_stats": stored(**STATISTICS, question_of=dict[str, str]),
}
DATA = "data.pt"  # the state of the data loader, which verl writes after all shards
DELETED = ".deleted_"  # prefix of a folder that is being deleted
# Key of verl's save_contents, whose default keys.yaml requires -> how its files begin.
SHARDS = {"model": "model", "optimizer": "optim", "extra": "extra_state"}


def step_folder(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"{CHECKPOINT}{step}"


def saved_steps(checkpoints: Path) -> list[int]:
    """Return the steps whose folders exist, whole or not, in ascending order."""
    return list(numbered(checkpoints, CHECKPOINT))


def tracked_step(checkpoints: Path) -> int | None:
    """Return the step in the tracker; None if it is missing or truncated."""
    try:
        return int((checkpoints / TRACKER).read_text())
    except (FileNotFoundError, ValueError):
        return None


def saved_ranks(folder: Path) -> int | None:
    """Return how many ranks saved ``global_step_N/actor`` or ``critic``, None if unknown."""
    types = {"world_size": Positive, "fsdp_size": int | None}
    try:
        return read_record(folder / RANKS, "world_size", **types)["world_size"]
    except (FileError, OSError):
        return None


def shard_name(kind: str, ranks: int, rank: int) -> str:
    """Return verl's file name of one rank in ``global_step_N/actor``; `kind` is in `SHARDS`."""
    return f"{SHARDS[kind]}_world_size_{ranks}_rank_{rank}.pt"


def shard_paths(folder: Path, kind: str) -> list[Path]:
    """Return the files of one kind in ``global_step_N/actor``, of any number of ranks."""
    return sorted(folder.glob(f"{SHARDS[kind]}_world_size_*_rank_*.pt"))


def shard_damage(folder: Path, kinds: Iterable[str]) -> str | None:
    """Return why the shards of `kinds`, keys of `SHARDS`, cannot be loaded, or None."""
    ranks = saved_ranks(folder / "actor")
    if ranks is None:
        return "actor/fsdp_config.json is missing or damaged"
    names = [f"actor/{shard_name(kind, ranks, rank)}" for kind in kinds for rank in range(ranks)]
    return next((why for name in names if (why := _archive_damage(folder, name))), None)


def _archive_damage(folder: Path, name: str) -> str | None:
    """Return why a zip file of torch.save is unusable, or None; `changed` finds changed bytes."""
    if not (folder / name).is_file():
        return f"{name} is missing"
    return None if zipfile.is_zipfile(folder / name) else f"{name} is cut"


def changed(paths: Iterable[Path]) -> str | None:
    """Return which part differs from the CRC-32 that torch.save wrote, or None; reads all files.

    torch.load does not compare them. This takes as long as torch.load, in several threads.
    """

    def check(path: Path) -> str | None:
        try:
            with zipfile.ZipFile(path) as archive:
                part = archive.testzip()
        except (zipfile.BadZipFile, RuntimeError, ValueError, EOFError) as error:
            return f"{path.name} is damaged: {error}"
        return part and f"{part} in {path.name} differs from its checksum"

    with ThreadPoolExecutor(8) as threads:
        return next(filter(None, threads.map(check, paths)), None)


def damage(folder: Path) -> str | None:
    """Return why a checkpoint cannot be resumed from, or None."""
    if not folder.is_dir():
        return "there is no such folder"
    if why := shard_damage(folder, SHARDS) or _archive_damage(folder, DATA):
        return why
    try:
        read_record(folder / STATE, "batches_fetched", **STATE_TYPES)
    except MissingFileError:
        return f"{STATE} is missing"
    except FileError:
        return f"{STATE} is damaged"
    return None


def repair(checkpoints: Path) -> list[str]:
    """Make the tracker name the checkpoint to resume from; return messages for the user.

    That is the tracked checkpoint if it is complete, else the newest complete one before it, else
    the newest complete one. Without any checkpoint, or if a kill truncated the first one, the run
    starts from scratch. Raises ConfigError if the tracker exists and no checkpoint is complete.
    """
    for folder in checkpoints.glob(f"{DELETED}*"):
        shutil.rmtree(folder, ignore_errors=True)
    tracked = tracked_step(checkpoints)
    bad = {n: damage(step_folder(checkpoints, n)) for n in saved_steps(checkpoints)}

    def choose() -> int | None:
        complete = [step for step, why in bad.items() if why is None]
        if tracked in complete:
            return tracked
        before = [step for step in complete if tracked is None or step < tracked]
        return max(before or complete, default=None)

    while (chosen := choose()) is not None:
        files = step_folder(checkpoints, chosen).rglob("*.pt")
        if (why := changed(files)) is None:
            break
        bad[chosen] = why
    if chosen is None:
        if not (checkpoints / TRACKER).exists():
            return [f"step {n} is not whole ({why}): starting over" for n, why in bad.items()]
        damages = "; ".join(f"step {n}: {why}" for n, why in bad.items())
        state = f"names step {tracked}" if tracked is not None else "is there"
        raise ConfigError(
            f"{checkpoints / TRACKER} {state}, but no whole checkpoint is left "
            f"({damages or f'no folder {CHECKPOINT}*'}). Put one back from a copy, or choose "
            "another recipe.run_dir to start from scratch"
        )
    if chosen == tracked:
        return []
    write_text(checkpoints / TRACKER, str(chosen))
    if tracked is None:
        return [f"no legible {TRACKER}: going on from step {chosen}, the newest whole checkpoint"]
    why = bad.get(tracked) or "its folder is missing"
    return [
        f"the checkpoint of step {tracked} is not whole ({why}): going on from step {chosen}, the "
        "newest whole one before it"
    ]


def _link(source: str, target: str) -> None:
    """Make a hard link; on another disk a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def adopt(source: Path, checkpoints: Path) -> None:
    """Copy the checkpoint `source`, as hard links, and make it the one to resume from."""
    step = source.name.removeprefix(CHECKPOINT)
    copy = checkpoints / f"{DELETED}{step}"  # deleted by `repair` if it is left behind
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(source, copy, copy_function=_link)
    copy.rename(checkpoints / source.name)
    write_text(checkpoints / TRACKER, step)


def restore_line(run_dir: Path, checkpoints: Path) -> list[str]:
    """Append the tracked step's line if a kill came after its save; return a message about it.

    The line has ``restored``, and no metric that is computed after the save: times, lengths,
    validation.
    """
    step = tracked_step(checkpoints) or 0
    path = step_folder(checkpoints, step) / STATE
    line = read_json(path).get("line") if path.is_file() else None
    lines = read_metrics(run_dir)
    if not line or (lines and lines[-1]["step"] >= step):
        return []
    append_metrics(run_dir, step, {**line, "restored": True})
    return [f"the line of step {step} in metrics.jsonl has only the metrics from before its save"]


def begin(folder: Path) -> None:
    """Mark `folder` as not whole, or a kill would leave shards of two runs beside ``data.pt``."""
    (folder / DATA).unlink(missing_ok=True)
    for path in folder.rglob("*"):  # verl writes into existing files, which runs may share
        if path.is_file() and path.stat().st_nlink > 1:
            path.unlink()


def surplus(
    steps: Iterable[int], tracked: int | None, last: int | None, every: int | None, best: int | None
) -> list[int]:
    """Return the steps to delete; none without `last`.

    Keeps the newest `last`, multiples of `every`, `best`, `tracked` (the one to resume from) and
    the steps after it, which are incomplete or of an abandoned branch.
    """
    if not last or tracked is None:
        return []
    older = sorted(step for step in steps if step <= tracked)
    kept = {*older[-last:], tracked, best}
    return [step for step in older if step not in kept and not (every and step % every == 0)]


def delete(checkpoints: Path, steps: Iterable[int]) -> None:
    """Delete checkpoints. Each is renamed first, so that a kill leaves none half deleted."""
    for step in steps:
        gone = checkpoints / f"{DELETED}{step}"
        step_folder(checkpoints, step).rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
