"""Rules about a run folder that holds a run: it resumes only as the same experiment."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from prompt_aug.prompts import Prompts
from recipe.config.compose import flat
from recipe.preflight.rules import SHORT, Check, Setup
from recipe.run import checkpoints
from recipe.run.folder import RunFolder

STEPS = "trainer.total_training_steps"
# Keys and sections that may differ when a run is resumed, since they change no result but for
# rounding: names and places, how often to save and log, memory, engines and workers; and STEPS
# where the learning rate does not depend on it.
FREE = (
    "eval ray_kwargs global_profiler recipe.run_dir recipe.method recipe.min_free_gib "
    "recipe.save_rollouts_every recipe.save_tensors_every recipe.worker_logs recipe.keep_every "
    "recipe.keep_best recipe.rollout.hang_seconds recipe.dynamic_sampling reward.num_workers "
    "recipe.reward.verifier_limits "
    "trainer.default_local_dir trainer.save_freq trainer.test_freq trainer.val_before_train "
    "trainer.logger trainer.project_name trainer.experiment_name trainer.max_actor_ckpt_to_keep "
    "{A}.ppo_max_token_len_per_gpu {A}.profiler {A}.fsdp_config.param_offload "
    "{A}.fsdp_config.optimizer_offload {A}.fsdp_config.offload_policy "
    "{REF}.log_prob_max_token_len_per_gpu {REF}.profiler {REF}.fsdp_config.param_offload "
    "{REF}.fsdp_config.offload_policy {MODEL}.enable_gradient_checkpointing "
    "{MODEL}.enable_activation_offload {R}.log_prob_max_token_len_per_gpu {R}.profiler "
    "{R}.gpu_memory_utilization {R}.max_num_seqs {R}.tensor_model_parallel_size {R}.enforce_eager "
    "{R}.free_cache_engine {R}.enable_sleep_mode {R}.agent.num_workers"
).format(**SHORT).split()  # fmt: skip


def has_steps(folder: RunFolder) -> bool:
    return folder.config.is_file() and folder.metrics.exists()


def same_run(s: Setup) -> Iterator[str]:
    """The run folder is new, or its config.yaml differs in operational keys alone."""
    folder = RunFolder(Path(s.recipe.run_dir))
    if not has_steps(folder):
        return
    remedy = "choose another folder with recipe.run_dir=..."
    try:
        before: Any = OmegaConf.load(folder.config)
    except (yaml.YAMLError, UnicodeError):
        before = None
    if not isinstance(before, DictConfig):
        yield f"{folder.config}: not a readable configuration. Restore it from a copy, or {remedy}"
        return
    old = dict(flat(OmegaConf.to_container(before)))
    now = dict(flat(OmegaConf.to_container(s.config, resolve=True)))
    free = [*FREE, STEPS] if steps_are_free(s) else FREE
    keys = [
        key
        for key in sorted({*old, *now})
        if old.get(key) != now.get(key)
        and not any(key == name or key.startswith(f"{name}.") for name in free)
    ]
    if keys:
        yield (
            f"recipe.run_dir={folder.root}: the folder holds a run with other settings "
            f"({', '.join(keys[:5])}). Set them back, {remedy}, or move this one away."
        )


def steps_are_free(s: Setup) -> bool:
    """Return True where the learning rate of a step does not depend on the number of steps."""
    optim = s.actor.optim
    by_share = optim.lr_warmup_steps <= 0 and optim.lr_warmup_steps_ratio > 0
    return optim.lr_scheduler_type == "constant" and not by_share


def same_prompts(s: Setup) -> Iterator[str]:
    """The templates are those of the run's earlier steps."""
    folder = RunFolder(Path(s.recipe.run_dir))
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


RESUME: list[Check] = [same_run, same_prompts]


def repair_checkpoints(config: DictConfig) -> list[str]:
    """Let verl's tracker name a whole checkpoint; returns messages for the user.

    ConfigError where none can be resumed from. Writes, so it is no check.
    """
    trainer = config.trainer
    folder = Path(trainer.default_local_dir)
    told = checkpoints.repair(folder, config.actor_rollout_ref.actor.checkpoint.save_contents)
    checkpoints.check_ranks(folder, trainer.nnodes * trainer.n_gpus_per_node)
    return told
