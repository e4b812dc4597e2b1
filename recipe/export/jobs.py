"""Export jobs of a run: its steps, their dtype, which are done. Imports neither torch nor verl."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prompt_aug.base.errors import UserError
from prompt_aug.base.files import FileError, digests, read_json
from recipe.run.checkpoints import TRACKER, saved_steps, shard_paths, step_folder, tracked_step
from recipe.run.folder import RunFolder, select

DTYPES = {"float32": 4, "bfloat16": 2}  # bytes of an element
ALIASES = {"fp32": "float32", "float": "float32", "bf16": "bfloat16"}


class ExportError(UserError):
    """A run, or a step of it, cannot be exported."""


class MismatchError(ExportError):
    """Shards that cannot be read, do not belong together, or differ from the merged model."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lora:
    """The adapter of a run: its scale is alpha / rank."""

    rank: int
    alpha: int
    start_model: str


Sources = dict[int, Path | None]  # step -> the folder of its shards; None: the start model


def find(run: Path) -> tuple[Sources, list[str]]:
    """Return what a run has to export, and a note for each unfinished checkpoint.

    verl records a checkpoint after writing it, so a step above the recorded one is incomplete. A
    finished one that was damaged later is an error of its step, not a note.
    """
    folder = RunFolder(run).checkpoints
    latest = tracked_step(folder) or 0
    sources: Sources = {0: None}
    notes = []
    for step in saved_steps(folder):
        path = step_folder(folder, step)
        if step > latest:
            notes.append(f"{path} is ignored: {TRACKER} does not reach it ({latest}), so not whole")
        elif step:
            sources[step] = path / "actor"
    if len(sources) == 1:
        notes.append(f"note: {run} has no saved step, so the start model alone is exported")
    return sources, notes


def choose(run: Path, sources: Sources, steps: Sequence[int] | None) -> Sources:
    """Return those of `steps`, None: all; ExportError for a step neither here nor done."""
    wanted = sorted(sources if steps is None else set(steps))
    lacking = [step for step in wanted if step not in sources]
    if missing := [step for step in lacking if not RunFolder(run).manifest(step).is_file()]:
        raise ExportError(f"{run} has no whole checkpoint of the steps {missing}: {list(sources)}")
    return {step: sources[step] for step in wanted if step in sources}


def choose_dtype(config: dict[str, Any], source: Path, stated: str | None) -> str:
    """Return `stated`, else the dtype of the rollouts, else that of the saved config.json."""
    value = stated or select(config, "actor_rollout_ref.rollout.dtype")
    if value in (None, "auto"):
        path = source / "huggingface" / "config.json"
        model = read_json(path) if path.is_file() else {}
        value = model.get("dtype") or model.get("torch_dtype")
    value = ALIASES.get(str(value), str(value))
    if value not in DTYPES:
        raise ExportError(f"dtype {value} is not one of {', '.join(DTYPES)}: state it with --dtype")
    return value


def lora_of(config: dict[str, Any], source: Path) -> Lora | None:
    """Return the run's adapter, None without LoRA; ExportError if the checkpoint's differs."""
    model = select(config, "actor_rollout_ref.model") or {}
    rank, alpha = model.get("lora_rank") or 0, model.get("lora_alpha") or 0
    path = source / "lora_train_meta.json"
    saved = read_json(path) if path.is_file() else {}
    if not rank and not path.is_file():
        return None
    if (saved.get("r"), saved.get("lora_alpha")) != (rank, alpha):
        raise ExportError(
            f"{path}: r={saved.get('r')} and lora_alpha={saved.get('lora_alpha')}, but config.yaml "
            f"has {rank} and {alpha}: the scale of the adapter is not known"
        )
    return Lora(rank=rank, alpha=alpha, start_model=str(model["path"]))


def is_done(run: Path, step: int, source: Path | None, dtype: str | None) -> bool:
    """Return True if the manifest exists and still belongs to these shards.

    A resumed training may have written the step again, or a copy was restored: shards that changed
    after the manifest are compared by their sha256. ExportError if it exists with another dtype.
    """
    path = RunFolder(run).manifest(step)
    if not path.is_file():
        return False
    try:
        manifest = read_json(path)
    except FileError:
        return False
    if source is None:
        return True
    if dtype and manifest.get("dtype") != dtype:
        raise ExportError(
            f"{path.parent} is done as {manifest.get('dtype')}: delete it to have it as {dtype}"
        )
    shards = shard_paths(source, "model")
    # Not st_mtime, which `rsync -a`, `cp -p` and tar set back.
    if all(shard.stat().st_ctime <= path.stat().st_ctime for shard in shards):
        return True
    return bool(manifest.get("shards") == digests(shards, source))
