"""From which checkpoint a run goes on, before anything starts."""

from pathlib import Path

from omegaconf import DictConfig

from recipe.errors import ConfigError
from recipe.run import checkpoints


def check_checkpoints(config: DictConfig) -> list[str]:
    """Mend verl's tracker, refuse what cannot be gone on from; returns what to tell the user."""
    trainer, saving = config.trainer, config.actor_rollout_ref.actor.checkpoint
    if saving.get("async_save"):
        raise ConfigError(
            "actor_rollout_ref.actor.checkpoint.async_save=true: with it verl 0.9.1 writes no "
            "tracker, and the run would start anew after every end; leave it false"
        )
    if trainer.resume_mode == "resume_path":
        folder = Path(trainer.resume_from_path)
        if why := checkpoints.damage(folder, saving.save_contents):
            raise ConfigError(f"trainer.resume_from_path: {folder} is no whole checkpoint: {why}")
        return []
    if trainer.resume_mode != "auto":
        return []
    folder = Path(trainer.default_local_dir)
    told = checkpoints.repair(folder, saving.save_contents)
    checkpoints.check_ranks(folder, trainer.nnodes * trainer.n_gpus_per_node)
    return told
