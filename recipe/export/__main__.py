"""Export: ``python -m recipe.export RUN [--steps 10,20|all] [--dtype float32|bfloat16]``.

RUN/checkpoints/global_step_N (FSDP shards) -> RUN/hf/step_N (Hugging Face), through verl's own
merger into a folder beside, verified against the shards, renamed, manifest.json last. Its presence
is the only "done": killed anywhere and started again, this ends right. Step 0 is the start model;
its manifest names it and copies nothing. Exporting beside a live training is allowed.
"""

import argparse
import logging
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tqdm import tqdm

from prompt_aug.errors import UserError
from prompt_aug.files import InUseError, digests, lock, read_json, sync, write_json
from recipe.export.plan import (
    DTYPES,
    ExportError,
    Job,
    choose,
    choose_dtype,
    find,
    is_done,
    manifest_path,
    read_config,
    select,
)
from recipe.run import environment


def _discard(folder: Path) -> None:
    if folder.exists():
        # The manifest goes first: a kill between must not leave a half folder that looks done.
        (folder / "manifest.json").unlink(missing_ok=True)
        shutil.rmtree(folder)


def export_start(run: Path, config: dict[str, Any]) -> None:
    """Step 0: a manifest that names the start model, by absolute path or hub id."""
    name = select(config, "actor_rollout_ref.model.path")
    if not isinstance(name, str) or not name:
        raise ExportError("config.yaml does not say actor_rollout_ref.model.path, the start model")
    folder = Path(name).expanduser()
    manifest: dict[str, Any] = {"step": 0, "source": "actor_rollout_ref.model.path"}
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise ExportError(f"{folder} is no Hugging Face model: config.json is missing")
        manifest["model_path"] = str(folder.resolve())
        manifest["files"] = digests([p for p in folder.iterdir() if p.is_file()], folder)
    elif folder.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise ExportError(f"the start model {name} is not there")
    else:
        manifest["model_path"] = name
    _discard(manifest_path(run, 0).parent)
    write_json(manifest_path(run, 0), manifest)


def check_source(source: Path, run: Path, dtype: str) -> int:
    """Refuse, before verl is imported, shards that cannot be merged; return the world size."""
    try:
        world_size = int(read_json(source / "fsdp_config.json")["world_size"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ExportError(f"{source}/fsdp_config.json says no world size: {error!r}") from error
    if (source / "lora_train_meta.json").exists():
        raise ExportError(f"{source} is a LoRA checkpoint; only full-parameter ones are exported")
    paths = [source / f"model_world_size_{world_size}_rank_{r}.pt" for r in range(world_size)]
    for path in (*paths, source / "huggingface" / "config.json"):
        if not path.is_file():
            raise ExportError(f"{path} is missing: the checkpoint is not whole")
    wanted = sum(path.stat().st_size for path in paths) * DTYPES[dtype] // DTYPES["float32"]
    free = shutil.disk_usage(run).free
    if free < wanted:
        raise ExportError(f"{free / 2**30:.2f} GiB free in {run}, {wanted / 2**30:.2f} wanted")
    return world_size


def export_step(run: Path, job: Job, dtype: str) -> None:
    """Merge, verify, rename, then the manifest; raises ExportError or what the merger raises."""
    assert job.source is not None
    world_size = check_source(job.source, run, dtype)
    target = manifest_path(run, job.step).parent
    beside = target.with_name(f".{target.name}.tmp")
    _discard(beside)
    beside.mkdir(parents=True)
    try:
        parameters = convert(job.source, beside, dtype, world_size)
        written = [path for path in beside.rglob("*") if path.is_file()]
        sync(written)  # a manifest must not outlive the files that it vouches for
        manifest = {
            "step": job.step,
            "dtype": dtype,
            "source": str(job.source.relative_to(run)),
            "parameters": parameters,
            "world_size": world_size,
            "files": digests(written, beside),
            "shards": digests(list(job.source.glob("model_world_size_*_rank_*.pt")), job.source),
        }
        _discard(target)
        beside.rename(target)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    write_json(target / "manifest.json", manifest)


def convert(source: Path, target: Path, dtype: str, world_size: int) -> int:
    """Merge `source` into `target` and verify it; returns the number of parameters."""
    environment.set_defaults(cpu=not environment.has_gpu())  # before verl is imported
    import torch
    import transformers

    from recipe.export import merge as export_merge
    from recipe.export import verify as export_verify

    transformers.utils.logging.disable_progress_bar()  # one bar for all steps is enough
    transformers.utils.logging.set_verbosity_error()
    # Says that shards are read without process groups; that is what is wanted here.
    logging.getLogger("torch.distributed.device_mesh").setLevel(logging.ERROR)
    precision = getattr(torch, dtype)
    export_verify.load_shards(source, world_size)  # a damaged file is named before the merger runs
    loader = export_merge.merge(source, target, precision)
    return export_verify.verify(source, target, precision, world_size, loader)


def export(run: Path, steps: Sequence[int] | None, dtype: str | None) -> Iterator[str]:
    """Export the steps of a run, None: all; yields one message per step that failed.

    Raises ExportError where nothing can be done at all.
    """
    run = run.resolve()
    config = read_config(run)
    jobs, notes = find(run)
    jobs = choose(run, jobs, steps)
    for note in notes:
        tqdm.write(f"recipe.export: {note}", file=sys.stderr)
    try:
        held = lock(run / "hf")
    except InUseError:
        raise ExportError(f"another export of {run} is at work: wait for it or stop it") from None
    with held, tqdm(jobs, desc="export", unit="step") as bar:
        for leftover in (run / "hf").glob(".step_*.tmp"):  # of a killed export
            shutil.rmtree(leftover)
        for job in bar:
            bar.set_postfix_str(f"step {job.step}")
            try:
                if is_done(run, job, dtype):
                    continue
                if job.source is None:
                    export_start(run, config)
                else:
                    export_step(run, job, choose_dtype(config, job, dtype))
            except Exception as error:  # one bad checkpoint must not cost the others
                detail = str(error) if isinstance(error, ExportError) else _describe(error)
                yield f"step {job.step}: {detail}"


def _describe(error: Exception) -> str:
    if type(error).__name__ == "MismatchError":
        return str(error)
    logging.getLogger(__name__).error("export failed", exc_info=error)
    return f"{type(error).__name__}: {error}"


def parse_steps(text: str) -> list[int] | None:
    """``all`` -> None; ``10,20`` -> [10, 20]."""
    if text == "all":
        return None
    try:
        steps = [int(part) for part in text.split(",")]
    except ValueError:
        steps = [-1]
    if min(steps) < 0:
        raise argparse.ArgumentTypeError(f"'{text}' is not 'all' or a list of steps like 10,20")
    return steps


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m recipe.export", description=__doc__)
    parser.add_argument("run", type=Path, help="the run folder, such as runs/demo")
    parser.add_argument("--steps", type=parse_steps, default=None, help="all (default), or 10,20")
    parser.add_argument("--dtype", choices=list(DTYPES), help="default: that of the run's rollouts")
    parsed = parser.parse_args(arguments)
    failures = []
    try:
        for failure in export(parsed.run, parsed.steps, parsed.dtype):
            failures.append(failure)
            tqdm.write(f"recipe.export: {failure}", file=sys.stderr)
    except (UserError, OSError) as error:
        failures.append(str(error))
        print(f"recipe.export: {error}", file=sys.stderr)
    if failures:
        return 1
    done = sorted((parsed.run / "hf").glob("step_*/manifest.json"))
    print(f"recipe.export: {len(done)} exported steps in {parsed.run}/hf")
    return 0


if __name__ == "__main__":
    sys.exit(main())
