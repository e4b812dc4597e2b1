"""Export the checkpoints of a run as Hugging Face models.

RUN/checkpoints/global_step_N (FSDP shards) -> RUN/hf/step_N (Hugging Face). verl's merger writes a
temporary folder, which is verified against the shards and renamed; manifest.json is written last. A
step is done when its manifest exists, so after a kill the same command finishes the export. Step 0
is the start model: its manifest names the model, and nothing is copied. With LoRA the adapter is
added to the weights, and also written to adapter/, in PEFT's layout. A run may be exported while it
trains. Tokenizer and configuration must load as those of the start model did when the run began,
and its own files replace them, because transformers 4 cannot read those of transformers 5.
"""

import argparse
import logging
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prompt_aug.base.commands import add_steps, existing, make_parser, run_command
from prompt_aug.base.errors import UserError
from prompt_aug.base.files import FileError, InUseError, digests, lock, read_json, sync, write_json
from prompt_aug.base.progress import Progress
from recipe.export import ExportError, Lora
from recipe.machine import environment, model_files
from recipe.run import checkpoints
from recipe.run.ending import FULL_DISK
from recipe.run.folder import MANIFEST, RunFolder, numbered, read_config, recorded_model, select

DTYPES = ("float32", "bfloat16")
MODEL = "actor_rollout_ref.model.path"
ALIASES = {"fp32": "float32", "float": "float32", "bf16": "bfloat16"}
KEPT = "the steps exported so far stay; the same command continues with the rest"
Sources = dict[int, Path | None]  # step -> the folder of its shards; None: the start model


def find(run: Path) -> tuple[Sources, list[str]]:
    """Return what a run has to export, and a note for each unfinished checkpoint.

    verl records a checkpoint after writing it, so a step above the recorded one is incomplete. A
    finished one that was damaged later is an error of its step, not a note.
    """
    folder = RunFolder(run).checkpoints
    latest = checkpoints.tracked_step(folder) or 0
    sources: Sources = {0: None}
    notes = []
    for step in checkpoints.saved_steps(folder):
        path = checkpoints.step_folder(folder, step)
        if step > latest:
            tracker = checkpoints.TRACKER
            notes.append(f"{path} is ignored: {tracker} does not reach it ({latest}), so not whole")
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
    shards = checkpoints.shard_paths(source, "model")
    # Not st_mtime, which `rsync -a`, `cp -p` and tar set back.
    if all(shard.stat().st_ctime <= path.stat().st_ctime for shard in shards):
        return True
    return bool(manifest.get("shards") == digests(shards, source))


def _discard(folder: Path) -> None:
    if folder.exists():
        # The manifest goes first: a kill between must not leave a half folder that looks done.
        (folder / MANIFEST).unlink(missing_ok=True)
        shutil.rmtree(folder)


def _beside(target: Path) -> Path:
    """Return the temporary folder in which a step is assembled."""
    return target.with_name(f".{target.name}.tmp")


def export_start(run: Path, config: dict[str, Any], accept: Sequence[str]) -> None:
    """Write step 0: a manifest that names the start model, by absolute path or hub id."""
    name = select(config, MODEL)
    if not isinstance(name, str) or not name:
        raise ExportError(f"config.yaml does not say {MODEL}, the start model")
    folder = Path(name).expanduser()
    manifest: dict[str, Any] = {"step": 0, "source": MODEL}
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ExportError(f"{folder} is not a Hugging Face model: config.json is missing")
        if start := recorded_model(run)[0]:
            manifest["accepted"] = model_files.compare(str(folder), start, accept)
        manifest["model_path"] = str(folder.resolve())
        manifest["files"] = digests(model_files.loaded(folder), folder)
    elif folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ExportError(f"the start model {name} is not there")
    else:
        manifest["model_path"] = name
    _discard(RunFolder(run).exported(0))
    write_json(RunFolder(run).manifest(0), manifest)


def check_source(source: Path) -> int:
    """Reject shards that cannot be merged, before verl is imported; return the world size."""
    folder = source.parent
    why, ranks = checkpoints.shard_damage(folder, ["model"]), checkpoints.saved_ranks(source)
    if not (source / "huggingface" / "config.json").is_file():
        why = why or "actor/huggingface/config.json is missing"
    if why or ranks is None:
        raise ExportError(f"{folder}: {why}: the checkpoint is not whole")
    paths = [source / checkpoints.shard_name("model", ranks, rank) for rank in range(ranks)]
    if why := checkpoints.changed(paths):
        raise ExportError(f"{folder}: {why}: the checkpoint is damaged")
    return ranks


def export_step(
    run: Path, config: dict[str, Any], step: int, source: Path, dtype: str, accept: Sequence[str]
) -> None:
    """Merge, verify, rename, write the manifest; raises ExportError or what the merger raises."""
    lora = lora_of(config, source)
    world_size = check_source(source)
    found, start = {}, recorded_model(run)[0]
    if start:  # verl may have lost ends of a turn, so the export gets those of the start model
        allowed = {*accept, model_files.GENERATION}
        found = model_files.compare(str(source / "huggingface"), start, allowed)
    target = RunFolder(run).exported(step)
    beside = _beside(target)
    beside.mkdir(parents=True)
    try:
        parameters = convert(source, beside, dtype, world_size, lora)
        if start and model_files.GENERATION not in accept:
            model_files.write_generation(beside, start)
        if start:
            model_files.restore(beside, start, str(select(config, MODEL)), dtype)
        written = [path for path in beside.rglob("*") if path.is_file()]
        sync(written)  # a manifest must not outlive the files that it vouches for
        manifest = {
            "step": step,
            "dtype": dtype,
            "source": str(source.relative_to(run)),
            "parameters": parameters,
            "world_size": world_size,
            "accepted": {name: found[name] for name in accept if name in found},
            "files": digests(written, beside),
            "shards": digests(checkpoints.shard_paths(source, "model"), source),
        }
        _discard(target)
        beside.rename(target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    write_json(RunFolder(run).manifest(step), manifest)


def convert(source: Path, target: Path, dtype: str, world_size: int, lora: Lora | None) -> int:
    """Merge `source` into `target` and verify it; returns the number of parameters."""
    environment.set_defaults(cpu=environment.gpu_count() == 0)  # before verl is imported
    import torch
    import transformers

    from recipe.export import merge as export_merge
    from recipe.export import verify as export_verify

    transformers.utils.logging.disable_progress_bar()  # one bar for all steps is enough
    transformers.utils.logging.set_verbosity_error()
    # It warns that shards are read without process groups, which is intended here.
    logging.getLogger("torch.distributed.device_mesh").setLevel(logging.ERROR)
    precision = getattr(torch, dtype)
    loader = export_merge.merge(source, target, precision, lora)
    return export_verify.verify(source, target, precision, world_size, loader, lora)


def export_one(
    run: Path, config: dict[str, Any], step: int, source: Path | None, options: argparse.Namespace
) -> None:
    """Export one step, unless it is done; delete what a kill left beside it."""
    shutil.rmtree(_beside(RunFolder(run).exported(step)), ignore_errors=True)
    if is_done(run, step, source, options.dtype):
        return
    if source is None:
        export_start(run, config, options.accept)
    else:
        dtype = choose_dtype(config, source, options.dtype)
        export_step(run, config, step, source, dtype, options.accept)


def export(options: argparse.Namespace) -> int:
    """Export the steps of a run; return 1 if one failed. ExportError if nothing can be done."""
    run, steps, failed = options.run.resolve(), options.steps, False
    config = read_config(run)
    sources, notes = find(run)
    sources = choose(run, sources, steps)
    exports = RunFolder(run).exports
    exports.mkdir(exist_ok=True)
    if not os.access(exports, os.W_OK):
        raise ExportError(f"{exports}: not writable. Make it writable; {KEPT}.")
    notes += filter(None, [recorded_model(run)[1]])
    with Progress("export", len(sources), "steps") as bar:
        for note in notes:
            bar.say(f"recipe.export: {note}")
        for step, source in sources.items():
            why = None
            try:
                # Jobs of an array skip steps that another one holds; a named step is awaited.
                with lock(RunFolder(run).export_lock(step), wait=steps is not None):
                    export_one(run, config, step, source, options)
            except InUseError:
                bar.say(f"recipe.export: step {step}: another export is at work on it")
            except UserError as error:
                why = str(error)
            except Exception as error:  # one bad checkpoint must not stop the others
                if full := FULL_DISK.search(str(error)):  # also in an error of safetensors
                    raise ExportError(f"{exports}: {full[0]}. Make room; {KEPT}.") from error
                logging.getLogger(__name__).error("export failed", exc_info=error)
                why = f"{type(error).__name__}: {error}"
            if why is not None:
                bar.say(f"recipe.export: step {step}: {why}")
                failed = True
            bar.update()
    if not failed:
        done = [p for p in numbered(exports, "step_").values() if (p / MANIFEST).is_file()]
        print(f"recipe.export: {len(done)} exported steps in {exports}")
    return int(failed)


def main(arguments: list[str] | None = None) -> int:
    example = "python -m recipe.export runs/toy --steps 10 20"
    parser = make_parser("python -m recipe.export", __doc__, example=example)
    parser.add_argument("run", metavar="RUN", type=existing, help="the run folder, as runs/demo")
    add_steps(parser)
    parser.add_argument("--dtype", choices=DTYPES, help="default: that of the run's rollouts")
    parser.add_argument("--accept", nargs="+", default=[], choices=model_files.FILES,
        help="files of the checkpoints that may load unlike the start model's")  # fmt: skip
    given = parser.parse_args(arguments)
    return run_command("recipe.export", lambda: export(given), interrupted=KEPT)


if __name__ == "__main__":
    sys.exit(main())
