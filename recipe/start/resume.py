"""Rules about a run folder that holds a run: it resumes only as the same experiment."""

import multiprocessing
import re
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import yaml
from omegaconf import ListConfig, OmegaConf

from prompt_aug.base.files import LOCK, FileError, digests, read_json
from prompt_aug.prompts import Prompts
from recipe.config.base import CONFIG, flat, is_in, known_keys
from recipe.config.compose import is_open
from recipe.config.settings import free_keys
from recipe.config.verl import A, R, off_switch
from recipe.errors import ConfigError
from recipe.machine import host
from recipe.machine.memory import shards
from recipe.run import checkpoints
from recipe.run.folder import CHECKPOINT, RunFolder, read_config
from recipe.start.algorithm import PER_MICRO_BATCH
from recipe.start.attention import KEYS
from recipe.start.functions import own_functions
from recipe.start.questions import last_step, read_manifest
from recipe.start.rules import Check, Setup

STEPS = "trainer.total_training_steps"
MESH = {"actor": f"{A}.fsdp_config.fsdp_size", "critic": "critic.fsdp.fsdp_size"}
TABLE = yaml.load((CONFIG / "resume.yaml").read_text("utf-8"), yaml.CSafeLoader)
FIXED, SAVED, BEFORE = TABLE["fixed"], TABLE["saved"], TABLE["before"]
FREE, MICRO_BATCHES = set(TABLE["free"]), set(TABLE["micro_batches"])


def is_fixed(key: str, s: Setup) -> bool:
    """Return True for a key that a resumed run may not change."""
    if key in (STEPS, "trainer.total_epochs"):
        return not steps_are_free(s)
    free = FREE if s.loss in PER_MICRO_BATCH else FREE | MICRO_BATCHES
    if key == f"{R}.val_kwargs.n" or is_in(key, free_keys()) or free & set(key.split(".")):
        return False
    return is_in(key, FIXED)


def own_folder(s: Setup) -> Iterator[str]:
    """The run folder is new or empty, or holds a run: not the user's data."""
    folder, root = s.folder, s.folder.root
    # A start makes the lock before any other file; a copy may lack it.
    if not root.is_dir() or folder.begun or (root / LOCK).exists():
        return
    files = [p.name for p in root.iterdir() if not p.name.startswith((".", "slurm-"))]
    if folder.checkpoints.is_symlink():  # to another disk
        files.remove(folder.checkpoints.name)
    if files:
        yield (
            f"recipe.run_dir={root}: the folder is not empty and holds no run ({sorted(files)[0]} "
            "is there). Choose a new folder."
        )


def same_run(s: Setup) -> Iterator[str]:
    """The run folder is new, or its config.yaml agrees in all keys that are fixed."""
    folder = s.folder
    if not folder.begun:
        return
    remedy = "choose another folder with recipe.run_dir=..."
    try:
        before: Any = OmegaConf.create(read_config(folder.root))
    except FileError:
        yield f"{folder.config}: not a readable configuration. Restore it from a copy, or {remedy}"
        return
    old = {**BEFORE, **dict(flat(OmegaConf.to_container(before)))}
    config = s.config.copy()
    if folder.data_manifest.is_file():  # as `prepare_data` did at the first start
        train = read_manifest(folder).get("train", {})
        per_epoch = train.get("steps_per_epoch", config.trainer.total_training_steps)
        config.trainer.total_training_steps = last_step(config, per_epoch)
    now = dict(flat(OmegaConf.to_container(config, resolve=True)))
    now |= {key: old.get(key) for key in KEYS if now.get(key) is None}  # null keeps the attention
    keys = [
        key
        for key in sorted({*old, *now})
        if not same(old.get(key), now.get(key), folder.root)
        and (key in known_keys() or is_open(key) or not is_in(key, ["recipe"]))  # or it was removed
        and is_fixed(key, s)
        and not (off_switch(before, key) and off_switch(config, key))
    ]
    saves = Path(s.trainer.default_local_dir)
    tracked = checkpoints.step_folder(saves, checkpoints.tracked_step(saves) or 0)
    for key in other_mesh(tracked, before, s):
        yield f"{key}={now[key]}: the checkpoint of as many ranks has another value. Set it back."
    if keys:
        keys.sort(key=lambda key: not key.startswith("recipe."))
        method, before = now.get("recipe.method"), old.get("recipe.method")
        named = [f"recipe.method={method}, there {before}"] if method != before else []
        yield (
            f"recipe.run_dir={folder.root}: the folder holds a run with other settings "
            f"({', '.join([*named, *keys[:5]])}). Set them back, {remedy}, or move this one away."
        )


def same(old: Any, now: Any, run: Path) -> bool:
    """Return True for equal values, and for paths of equal files, as after a copy or a move.

    If the old path is gone, it must have been at the same place in its checkout or run folder.
    """
    if isinstance(old, list | ListConfig) and isinstance(now, list | ListConfig):
        return len(old) == len(now) and all(same(*pair, run) for pair in zip(old, now, strict=True))
    texts = [x for x in (old, now) if isinstance(x, str) and x.startswith("/")]
    if old == now or len(texts) < 2 or not Path(now).exists():
        return bool(old == now)
    before, path = Path(old), Path(now).resolve()
    if before.exists():
        files = [[p for p in (x, *x.rglob("*")) if p.is_file()] for x in (before, path)]
        return digests(files[0], before) == digests(files[1], path)
    places = [path.relative_to(root) for root in (host.ROOT, run) if path.is_relative_to(root)]
    return any(old.endswith(f"/{place}") for place in places)


def other_mesh(checkpoint: Path, before: Any, s: Setup) -> Iterator[str]:
    """Yield the ``fsdp_size`` keys that prevent loading a checkpoint of as many ranks as the run.

    `before` is the configuration that saved it, unless `recipe.export.shards` has divided it since.
    """
    for role, key in MESH.items():
        path = checkpoint / role
        if checkpoints.saved_ranks(path) != s.gpus:
            continue
        saved = read_json(path / checkpoints.RANKS).get("fsdp_size", OmegaConf.select(before, key))
        if saved is not None and shards(saved, s.gpus) != shards(s.get(key), s.gpus):
            yield key


def steps_are_free(s: Setup) -> bool:
    """Return True if the learning rate of a step does not depend on the number of steps."""
    return all(
        optim.lr_scheduler_type == "constant"
        and not (optim.lr_warmup_steps <= 0 and optim.lr_warmup_steps_ratio > 0)
        for optim in [s.actor.optim, *([s.config.critic.optim] if s.critic else [])]
    )


def lost(path: Path) -> str:
    """Return the message about a file of a begun run that a check needs."""
    return (
        f"{path}: missing, so a resume cannot be compared with earlier steps. Restore it from a "
        "copy, or choose another folder with recipe.run_dir=..."
    )


def same_prompts(s: Setup) -> Iterator[str]:
    """The templates are those of the run's earlier steps."""
    folder = s.folder
    if not folder.begun:
        return
    if not folder.prompts.exists():
        yield lost(folder.prompts)
        return
    before, now = dict(Prompts.read(folder.prompts).bank), dict(s.prompts.bank)
    changed = [n for n in sorted({*before, *now}) if before.get(n) != now.get(n)]
    if changed:
        yield (
            f"recipe.augment.bank={s.recipe.augment.bank}: the templates {', '.join(changed[:5])} "
            f"are not those of the earlier steps of {folder.root} (prompts.yaml there). Restore "
            "the bank, or choose another folder with recipe.run_dir=..."
        )


def same_functions(s: Setup) -> Iterator[str]:
    """The files of the user's verifiers, advantage, weight and loss are those of earlier steps."""
    folder, now = s.folder, own_functions(s)
    if not (folder.begun and now):
        return
    if not folder.data_manifest.is_file():
        yield lost(folder.data_manifest)
        return
    before = read_manifest(folder).get("own_functions", {})
    if changed := [path for path in now if before.get(path, now[path]) != now[path]]:
        yield (
            f"recipe.run_dir={folder.root}: the file of {', '.join(changed)} has changed since the "
            "earlier steps. Restore it, or choose another folder with recipe.run_dir=..."
        )


def start_checkpoint(s: Setup) -> Iterator[str]:
    """The checkpoint of trainer.resume_from_path is whole and fits the settings."""
    saves = Path(s.trainer.default_local_dir)
    if s.trainer.resume_mode != "resume_path" or checkpoints.saved_steps(saves):
        return
    given, key = Path(s.trainer.resume_from_path).absolute(), "trainer.resume_from_path"
    folder = given.resolve()
    if why := checkpoints.damage(folder):
        yield f"{key}={folder}: {why}. Name a whole folder RUN/checkpoints/global_step_N."
    elif not re.fullmatch(rf"{CHECKPOINT}\d+", folder.name):
        yield f"{key}={folder}: its step is not in its name. Rename it to global_step_N."
    runs = (folder.parent.parent, given.parent.parent)  # checkpoints/ may be a link to a disk
    if not (run := next((x for x in runs if RunFolder(x).config.is_file()), None)):
        return
    before = OmegaConf.create(read_config(run))
    if keys := [*unlike(before, s.config), *other_mesh(folder, before, s)]:
        yield f"{key}={folder}: it was saved with other values of {', '.join(keys)}. Set them back."


def unlike(before: Any, now: Any) -> list[str]:
    """Return the keys of `SAVED` that differ between two configurations."""
    run, select = Path(now.recipe.run_dir), OmegaConf.select
    return [key for key in SAVED if not same(select(before, key), select(now, key), run)]


RESUME: list[Check] = [own_folder, same_run, same_prompts, same_functions, start_checkpoint]


def repair_checkpoints(s: Setup) -> list[str]:
    """Point verl's tracker to a complete checkpoint, with its line; return messages for the user.

    ConfigError if no checkpoint is complete. Not a check, because it writes files.
    """
    folder = Path(s.trainer.default_local_dir)
    if s.trainer.resume_mode == "resume_path" and not checkpoints.saved_steps(folder):
        checkpoints.adopt(Path(s.trainer.resume_from_path).resolve(), folder)
    repaired = checkpoints.repair(folder)
    restored = checkpoints.restore_line(s.folder.root, folder)
    return [*repaired, *restored, *divide_checkpoint(s, folder)]


def divide_checkpoint(s: Setup, folder: Path) -> list[str]:
    """Divide the checkpoint to resume from over the ranks of the run; return a message."""
    ranks, step = s.gpus, checkpoints.tracked_step(folder)
    if not step:
        return []
    checkpoint = checkpoints.step_folder(folder, step)
    saved = checkpoints.saved_ranks(checkpoint / "actor")
    if saved in (None, ranks):
        return []
    from recipe.export.shards import reshard  # torch, which few starts need this early

    # The actor last: its number of ranks is the checkpoint's.
    for role in ("critic", "actor"):
        path, size = checkpoint / role, s.get(MESH[role])
        if not path.is_dir() or checkpoints.saved_ranks(path) == ranks:
            continue
        try:
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                pool.submit(reshard, path, ranks, s.trainer.device, size).result()
        except Exception as error:
            raise ConfigError(
                f"trainer.nnodes x trainer.n_gpus_per_node={ranks}: the checkpoint of step {step} "
                f"was saved by {saved} ranks and cannot be divided: {error}"
            ) from error
    return [f"the checkpoint of step {step} is divided over {ranks} ranks instead of {saved}"]
