"""Which checkpoints of a run are whole, which one it resumes from, and which may be deleted.

verl 0.9.1 writes ``global_step_N/actor/{model,optim,extra_state}_world_size_W_rank_R.pt`` from
every rank, then ``global_step_N/data.pt``, then overwrites ``latest_checkpointed_iteration.txt``
(the tracker) in place. It believes the tracker: where the folder that it names is gone, or the
tracker is missing, verl silently starts from scratch; where a file is cut, it fails at every start.
So before every start `repair` looks at the folders themselves.
"""

import json
import shutil
import zipfile
from collections.abc import Iterable
from pathlib import Path

from prompt_aug.base.files import write_text
from recipe.errors import ConfigError
from recipe.run.folder import CHECKPOINT, numbered

TRACKER = "latest_checkpointed_iteration.txt"
STATE = "recipe_state.json"  # counts and statistics of the trainer, beside verl's files
DATA = "data.pt"  # the state of the data loader, which verl writes after all shards
DELETED = ".deleted_"  # a folder of this prefix is being deleted
# Key of verl's save_contents -> how its files begin.
SHARDS = {"model": "model", "optimizer": "optim", "extra": "extra_state"}


def step_folder(checkpoints: Path, step: int) -> Path:
    return checkpoints / f"{CHECKPOINT}{step}"


def saved_steps(checkpoints: Path) -> list[int]:
    """The steps of the folders that are there, whole or not, in ascending order."""
    return list(numbered(checkpoints, CHECKPOINT))


def tracked_step(checkpoints: Path) -> int | None:
    """What the tracker says; None where it is missing or was cut."""
    try:
        return int((checkpoints / TRACKER).read_text())
    except (FileNotFoundError, ValueError):
        return None


def world_size(folder: Path) -> int | None:
    """By how many ranks the actor of a checkpoint was saved; None where nothing says it."""
    try:
        return int(json.loads((folder / "actor" / "fsdp_config.json").read_text())["world_size"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def shard_name(kind: str, ranks: int, rank: int) -> str:
    """verl's name of what a rank saves in ``global_step_N/actor``; `kind` is one of `SHARDS`."""
    return f"{SHARDS[kind]}_world_size_{ranks}_rank_{rank}.pt"


def shard_damage(folder: Path, contents: Iterable[str] = tuple(SHARDS)) -> str | None:
    """Why what the ranks saved into a checkpoint cannot be loaded; None where it is whole.

    `contents` is verl's ``checkpoint.save_contents``; an export needs no more than "model".
    """
    ranks = world_size(folder)
    if ranks is None:
        return "actor/fsdp_config.json is missing or cut"
    saved = [kind for kind in contents if kind in SHARDS]
    names = [f"actor/{shard_name(kind, ranks, rank)}" for kind in saved for rank in range(ranks)]
    return next((why for name in names if (why := _archive_damage(folder, name))), None)


def _archive_damage(folder: Path, name: str) -> str | None:
    """Why a file of torch.save in `folder` is not whole.

    It is a zip archive whose directory stands at its end: one that was cut anywhere has none. Only
    that directory is read, so gigabytes are checked in milliseconds, and a changed byte in the
    middle is not seen.
    """
    if not (folder / name).is_file():
        return f"{name} is missing"
    return None if zipfile.is_zipfile(folder / name) else f"{name} is cut"


def damage(folder: Path, contents: Iterable[str] = tuple(SHARDS)) -> str | None:
    """Why a checkpoint cannot be resumed from; None for a whole one. `contents`: `shard_damage`."""
    if why := shard_damage(folder, contents) or _archive_damage(folder, DATA):
        return why
    try:
        json.loads((folder / STATE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"{STATE} is missing"
    except ValueError:
        return f"{STATE} is cut"
    return None


def repair(checkpoints: Path, contents: Iterable[str] = tuple(SHARDS)) -> list[str]:
    """Let the tracker name the checkpoint to resume from; returns messages for the user.

    That is the one it names, if it is whole, else the newest whole one before it; without a legible
    tracker the newest whole one. A run without any checkpoint starts from scratch, also where its
    first one was cut by a kill. ConfigError where a tracker says that there was a checkpoint, and
    none is whole: training from scratch among what is left of it is never what was meant.
    """
    for folder in checkpoints.glob(f"{DELETED}*"):
        shutil.rmtree(folder, ignore_errors=True)
    contents = tuple(contents)
    tracked = tracked_step(checkpoints)
    bad = {n: damage(step_folder(checkpoints, n), contents) for n in saved_steps(checkpoints)}
    if tracked is not None and tracked in bad and bad[tracked] is None:
        return []
    whole = [step for step, why in bad.items() if why is None]
    before = [step for step in whole if tracked is None or step < tracked]
    if not whole:
        if not (checkpoints / TRACKER).exists():
            return [f"step {n} is not whole ({why}): starting over" for n, why in bad.items()]
        raise ConfigError(_nothing_whole(checkpoints, tracked, bad))
    chosen = max(before or whole)
    write_text(checkpoints / TRACKER, str(chosen))
    if tracked is None:
        return [f"no legible {TRACKER}: going on from step {chosen}, the newest whole checkpoint"]
    why = bad.get(tracked, "its folder is missing")
    return [
        f"the checkpoint of step {tracked} is not whole ({why}): going on from step {chosen}, the "
        "newest whole one before it"
    ]


def _nothing_whole(checkpoints: Path, tracked: int | None, bad: dict[int, str | None]) -> str:
    found = "; ".join(f"step {n}: {why}" for n, why in bad.items()) or f"no folder {CHECKPOINT}*"
    said = f"names step {tracked}" if tracked is not None else "is there"
    return (
        f"{checkpoints / TRACKER} {said}, but no whole checkpoint is left ({found}). Put one back, "
        f"choose another recipe.run_dir, or delete {checkpoints} to start from scratch"
    )


def check_ranks(checkpoints: Path, ranks: int) -> None:
    """ConfigError where the checkpoint to resume from is of another number of ranks.

    Every rank of verl's FSDP engine loads the shard with its own number and world size.
    """
    step = tracked_step(checkpoints)
    saved = world_size(step_folder(checkpoints, step)) if step else None
    if saved is not None and saved != ranks:
        raise ConfigError(
            f"trainer.nnodes x trainer.n_gpus_per_node is {ranks}, but the checkpoint of step "
            f"{step} was saved by {saved} ranks, and verl 0.9.1 loads only as many: take {saved}, "
            "or train on from its export: python -m recipe.export, then recipe.model_path=... in "
            "another recipe.run_dir"
        )


def begin(folder: Path) -> None:
    """Before a checkpoint is written into `folder`: what an earlier try left there is not whole.

    Without this a kill among the shards leaves those of two runs beside an old ``data.pt``.
    """
    (folder / DATA).unlink(missing_ok=True)


def size(folder: Path) -> int:
    """Bytes of all files below `folder`."""
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file())


def missing_room(checkpoints: Path) -> int:
    """Bytes that the disk lacks for one more checkpoint of the size of the tracked one; 0: fits."""
    step = tracked_step(checkpoints)
    if step is None:
        return 0
    return max(0, size(step_folder(checkpoints, step)) - shutil.disk_usage(checkpoints).free)


def surplus(
    steps: Iterable[int], tracked: int | None, last: int | None, every: int | None, best: int | None
) -> list[int]:
    """The steps to delete: all but the newest `last`, multiples of `every`, `best` and `tracked`.

    Without `last` none. `tracked` is the step to resume from; steps after it are not whole yet or
    not this run's any more, and are left alone.
    """
    if not last or tracked is None:
        return []
    known = sorted(step for step in steps if step <= tracked)
    kept = {*known[-last:], tracked, best}
    return [step for step in known if step not in kept and not (every and step % every == 0)]


def delete(checkpoints: Path, steps: Iterable[int]) -> None:
    """Delete checkpoints; one that a kill has left half deleted no longer has its name."""
    for step in steps:
        gone = checkpoints / f"{DELETED}{step}"
        step_folder(checkpoints, step).rename(gone)
        shutil.rmtree(gone, ignore_errors=True)
