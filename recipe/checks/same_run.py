"""Whether a run folder holds the run that a configuration describes, so that it can resume."""

from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from recipe.errors import ConfigError
from recipe.run.folder import RunFolder

STEPS = "trainer.total_training_steps"
# Keys that may differ when a run is resumed: how often to save, where to log, memory; and STEPS
# where the learning rate does not depend on it.
FREE = (
    "recipe.run_dir",  # a run folder may be renamed or moved
    "recipe.method",  # a name; the keys that the method sets are compared
    "trainer.default_local_dir",
    "trainer.save_freq",
    "trainer.test_freq",
    "trainer.logger",
    "eval",
    "recipe.min_free_gib",
    "recipe.save_rollouts_every",
    "recipe.worker_logs",
    "recipe.keep_every",
    "recipe.rollout.hang_seconds",
    "recipe.keep_best",
    "recipe.save_tensors_every",
    "recipe.dynamic_sampling",  # what a run that ended for lack of a signal asks to change
    "ray_kwargs",
    # Memory: what a run that ran out of it has to lower; results change by rounding alone.
    "actor_rollout_ref.rollout.gpu_memory_utilization",
    "actor_rollout_ref.rollout.max_num_seqs",
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu",
    "actor_rollout_ref.rollout.log_prob_max_token_len_per_gpu",
    "actor_rollout_ref.ref.log_prob_max_token_len_per_gpu",
    "trainer.max_actor_ckpt_to_keep",
)


def check_same_run(config: DictConfig, folder: RunFolder) -> None:
    """Refuse a folder where another experiment, by its config.yaml, has done a step."""
    path = folder.config
    if not path.is_file() or not folder.metrics.exists():
        return
    try:
        before = OmegaConf.load(path)
    except (yaml.YAMLError, UnicodeError) as error:
        raise ConfigError(
            f"{path} cannot be read, so nothing says which run the folder holds: restore it from a "
            "copy, or choose another folder with recipe.run_dir=..."
        ) from error
    if not isinstance(before, DictConfig):
        raise ConfigError(
            f"{path} holds no settings: restore it from a copy, or choose another folder with "
            "recipe.run_dir=..."
        )
    now = OmegaConf.create(OmegaConf.to_container(config, resolve=True))
    for free in (*FREE, STEPS) if _steps_are_free(config) else FREE:
        for side in (before, now):
            OmegaConf.update(side, free, None, force_add=True)
    if before != now:
        keys = _differing(OmegaConf.to_container(before), OmegaConf.to_container(now))
        raise ConfigError(
            f"the run folder {folder.root} holds a run with other settings "
            f"({', '.join(keys[:5])}): choose another folder with recipe.run_dir=..., "
            "or move this one away"
        )


def _steps_are_free(config: DictConfig) -> bool:
    """Whether the learning rate of a step is the same however many steps a run has."""
    optim = config.actor_rollout_ref.actor.optim
    by_share = optim.lr_warmup_steps <= 0 and optim.lr_warmup_steps_ratio > 0
    return optim.lr_scheduler_type == "constant" and not by_share


def _differing(a: Any, b: Any, prefix: str = "") -> list[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        keys = sorted({*a, *b}, key=str)
        return [k for key in keys for k in _differing(a.get(key), b.get(key), f"{prefix}{key}.")]
    return [] if a == b else [prefix.rstrip(".")]
