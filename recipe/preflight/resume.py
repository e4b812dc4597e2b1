"""Rules about a run folder that holds a run: it resumes only as the same experiment."""

import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from prompt_aug.base.files import LOCK, FileError, read_json
from prompt_aug.prompts import Prompts
from recipe.config.compose import flat, unread
from recipe.errors import ConfigError
from recipe.preflight.algorithm import PER_MICRO_BATCH
from recipe.preflight.data import limit_steps
from recipe.preflight.functions import own_functions
from recipe.preflight.rules import SHORT, Check, Setup
from recipe.run import checkpoints
from recipe.run.folder import RunFolder, read_config

STEPS = "trainer.total_training_steps"
# Keys that may not change when a run is resumed, because they change its results. After "!" are
# exceptions, which change no result except by rounding: names and places, how often to save and
# log, memory, batches of a forward pass, engines, ranks. The last match applies; a key without a
# match may change. STEPS may change if the learning rate does not depend on it.
ALGORITHM_KEYS = (
    "algorithm.* custom_reward_function.* data.* distillation.* reward.* reward_model.* skip.* "
    "!data.*num_workers !data.*_workers data.dataloader_num_workers !data.use_shm "
    "!data.val_batch_size !reward.num_workers recipe.* "
    "!recipe.guard.* !recipe.name !recipe.method !recipe.run_dir !recipe.min_free_gib "
    "!recipe.model_path "  # {MODEL}.path has the same value
    "!recipe.save_rollouts_every !recipe.save_tensors_every !recipe.worker_logs "
    "!recipe.keep_every !recipe.keep_best !recipe.dynamic_sampling.* "
    "!recipe.rollout.hang_seconds !recipe.rollout.poll_seconds "
    "!recipe.reward.verifier_limits.* trainer.critic_warmup trainer.device "
    "trainer.total_training_steps trainer.total_epochs trainer.v1.trainer_mode {A}.* {MODEL}.* "
    "{REF}.* critic.* !*.profiler.* !*micro_batch_size* !*max_token_len_per_gpu "
    "!*use_dynamic_bsz !*offload* !*ulysses_sequence_parallel_size !*use_torch_compile "
    "!*gradient_checkpointing !*.entropy_checkpointing !*.entropy_from_logits_* !*.fsdp_size "
    "!*.forward_prefetch !*.use_fused_kernels !*.fused_kernel_options.* !*.use_liger "
    "!*.reshard_after_forward !*.wrap_policy.* !*.use_shm !*.use_remove_padding "
    "!*.pad_to_length* !*.dtype {R}.n {R}.temperature {R}.top_* {R}.seed {R}.dtype "
    "{R}.do_sample {R}.ignore_eos {R}.prompt_length {R}.response_length {R}.max_model_len "
    "{R}.calculate_log_probs {R}.logprobs_mode {R}.quantization* {R}.qat* {R}.val_kwargs.* "
    "!{R}.val_kwargs.n {R}.engine_kwargs.* {R}.agent.default_agent_loop {R}.agent.agent_loop_*"
).format(**SHORT).split()  # fmt: skip
MESH = {"actor": f"{SHORT['A']}.fsdp_config.fsdp_size", "critic": "critic.fsdp.fsdp_size"}
# Statistics of a micro-batch enter these losses of verl.
MICRO_BATCHES = ("*micro_batch_size*", "*max_token_len_per_gpu", "*use_dynamic_bsz")


def is_algorithmic(key: str, s: Setup) -> bool:
    """Return True for a key that a resumed run may not change."""
    if key in (STEPS, "trainer.total_epochs"):
        return not steps_are_free(s)
    if s.loss in PER_MICRO_BATCH and any(fnmatchcase(key, x) for x in MICRO_BATCHES):
        return True
    matches = [name for name in ALGORITHM_KEYS if fnmatchcase(key, name.removeprefix("!"))]
    return bool(matches) and not matches[-1].startswith("!")


# Keys that determine the files of a checkpoint: tensors, optimizer, order of the data.
SAVED_KEYS = (
    "{MODEL}.path {MODEL}.lora_rank {MODEL}.target_modules {MODEL}.exclude_modules "
    "{A}.strategy {A}.optim.optimizer {A}.optim.optimizer_impl critic.enable critic.model.path "
    "critic.strategy recipe.curriculum.value_model recipe.one_question recipe.source_weights "
    "algorithm.filter_groups.enable data.train_files data.train_max_samples "
    "data.train_batch_size data.gen_batch_size data.seed data.shuffle data.dataloader_num_workers"
).format(**SHORT).split()  # fmt: skip


def own_folder(s: Setup) -> Iterator[str]:
    """The run folder is new or empty, or holds a run: not the user's data."""
    folder, root = s.folder, s.folder.root
    # A start makes the lock before any other file.
    of_a_run = (root / LOCK, folder.metrics, folder.fork)
    if not root.is_dir() or any(path.exists() for path in of_a_run):
        return
    other = [p.name for p in root.iterdir() if not p.name.startswith((".", "slurm-"))]
    if other:
        yield (
            f"recipe.run_dir={root}: the folder is not empty and holds no run ({sorted(other)[0]} "
            "is there). Choose a new folder."
        )


def same_run(s: Setup) -> Iterator[str]:
    """The run folder is new, or its config.yaml agrees in the keys of the algorithm."""
    folder = s.folder
    if not (folder.config.is_file() and folder.metrics.exists()):
        return
    remedy = "choose another folder with recipe.run_dir=..."
    try:
        before: Any = OmegaConf.create(read_config(folder.root))
    except FileError:
        yield f"{folder.config}: not a readable configuration. Restore it from a copy, or {remedy}"
        return
    old = dict(flat(OmegaConf.to_container(before)))
    config = s.config.copy()
    if folder.data_manifest.is_file():  # as `prepare_data` did at the first start
        train = read_json(folder.data_manifest).get("train", {})
        limit_steps(config, train.get("steps_per_epoch", config.trainer.total_training_steps))
    now = dict(flat(OmegaConf.to_container(config, resolve=True)))
    keys = [
        key
        for key in sorted({*old, *now})
        if old.get(key) != now.get(key)
        and is_algorithmic(key, s)
        and not (unread(before, key) and unread(config, key))
    ]
    saves = Path(s.trainer.default_local_dir)
    tracked = checkpoints.step_folder(saves, checkpoints.tracked_step(saves) or 0)
    for key in other_mesh(tracked, before, s):
        yield f"{key}={now[key]}: the checkpoint of as many ranks has another value. Set it back."
    if keys:
        yield (
            f"recipe.run_dir={folder.root}: the folder holds a run with other settings "
            f"({', '.join(keys[:5])}). Set them back, {remedy}, or move this one away."
        )


def other_mesh(checkpoint: Path, before: Any, s: Setup) -> Iterator[str]:
    """Yield the ``fsdp_size`` keys that prevent loading a checkpoint of as many ranks as the run.

    `before` is the configuration that saved it, unless `recipe.export.shards` has divided it since.
    """
    for role, key in MESH.items():
        path = checkpoint / role
        if checkpoints.saved_ranks(path) != s.gpus:
            continue
        saved = read_json(path / checkpoints.RANKS).get("fsdp_size", OmegaConf.select(before, key))
        if saved is not None and s.shards(saved) != s.shards(s.get(key)):
            yield key


def steps_are_free(s: Setup) -> bool:
    """Return True if the learning rate of a step does not depend on the number of steps."""
    return all(
        optim.lr_scheduler_type == "constant"
        and not (optim.lr_warmup_steps <= 0 and optim.lr_warmup_steps_ratio > 0)
        for optim in [s.actor.optim, *([s.config.critic.optim] * s.critic)]
    )


def same_prompts(s: Setup) -> Iterator[str]:
    """The templates are those of the run's earlier steps."""
    folder = s.folder
    if not (folder.metrics.exists() and folder.prompts.exists()):
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
    folder = s.folder
    if not (folder.metrics.exists() and folder.data_manifest.is_file()):
        return
    before, now = read_json(folder.data_manifest).get("own_functions", {}), own_functions(s)
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
    folder, key = Path(s.trainer.resume_from_path), "trainer.resume_from_path"
    if why := checkpoints.damage(folder, s.actor.checkpoint.save_contents):
        yield f"{key}={folder}: {why}. Name a whole folder RUN/checkpoints/global_step_N."
    config = RunFolder(folder.parent.parent).config
    if not config.is_file():
        return
    before = OmegaConf.create(read_config(folder.parent.parent))
    if keys := [*unlike(before, s.config), *other_mesh(folder, before, s)]:
        yield f"{key}={folder}: it was saved with other values of {', '.join(keys)}. Set them back."


def unlike(before: Any, now: Any) -> list[str]:
    """Return the keys of `SAVED_KEYS` that differ between two configurations."""
    return [
        key for key in SAVED_KEYS if OmegaConf.select(before, key) != OmegaConf.select(now, key)
    ]


RESUME: list[Check] = [own_folder, same_run, same_prompts, same_functions, start_checkpoint]


def take_checkpoint(folder: Path, saves: Path, config: DictConfig) -> None:
    """Copy the checkpoint `folder` into `saves`, so that a run of `config` resumes from it."""
    with checkpoints.adopting(folder, saves) as copy:
        restate(copy, config)


def restate(checkpoint: Path, config: DictConfig) -> None:
    """Write the settings of `config` into the optimizers of a checkpoint."""
    from recipe.export import shards

    for role, section in (("actor", config.actor_rollout_ref.actor), ("critic", config.critic)):
        if (checkpoint / role).is_dir():
            shards.restate(checkpoint / role, {key: section.optim[key] for key in shards.SETTINGS})


def repair_checkpoints(config: DictConfig) -> list[str]:
    """Point verl's tracker to a complete checkpoint, with its line; return messages for the user.

    ConfigError if no checkpoint is complete. Not a check, because it writes files.
    """
    trainer = config.trainer
    folder = Path(trainer.default_local_dir)
    if trainer.resume_mode == "resume_path" and not checkpoints.saved_steps(folder):
        take_checkpoint(Path(trainer.resume_from_path), folder, config)
    told = checkpoints.repair(folder, config.actor_rollout_ref.actor.checkpoint.save_contents)
    restored = checkpoints.restore_line(Path(config.recipe.run_dir), folder)
    return [*told, *restored, *divide_checkpoint(config)]


def divide_checkpoint(config: DictConfig) -> list[str]:
    """Divide the checkpoint to resume from over the ranks of `config`; return a message."""
    folder, trainer = Path(config.trainer.default_local_dir), config.trainer
    ranks, step = trainer.nnodes * trainer.n_gpus_per_node, checkpoints.tracked_step(folder)
    if not step:
        return []
    whole = checkpoints.step_folder(folder, step)
    saved = checkpoints.saved_ranks(whole / "actor")
    if saved in (None, ranks):
        return []
    # The actor last: its number of ranks is the checkpoint's.
    for role, section in (("critic", "critic.fsdp"), ("actor", f"{SHORT['A']}.fsdp_config")):
        path = whole / role
        if not path.is_dir() or checkpoints.saved_ranks(path) == ranks:
            continue
        command = [sys.executable, "-m", "recipe.export.shards", str(path), str(ranks)]
        command += ["--device", trainer.device]
        command += ["--fsdp-size", str(OmegaConf.select(config, f"{section}.fsdp_size"))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise ConfigError(
                f"trainer.nnodes x trainer.n_gpus_per_node={ranks}: the checkpoint of step {step} "
                f"was saved by {saved} ranks and cannot be divided: {last}"
            )
    return [f"the checkpoint of step {step} is divided over {ranks} ranks instead of {saved}"]
