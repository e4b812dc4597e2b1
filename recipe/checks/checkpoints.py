"""Which checkpoints a run keeps, and from which it resumes, before anything starts."""

from pathlib import Path

from omegaconf import DictConfig

from recipe.errors import ConfigError
from recipe.run import checkpoints


def check_keeping(config: DictConfig) -> None:
    """Refuse to keep the best checkpoint of a run in which nothing is scored."""
    key, every = config.recipe.keep_best, config.trainer.test_freq
    if key and every <= 0:
        raise ConfigError(
            f"recipe.keep_best={key} with trainer.test_freq={every}: no checkpoint is validated, "
            "so none is the best. Set trainer.test_freq, or recipe.keep_best=null"
        )


def check_checkpoints(config: DictConfig) -> list[str]:
    """Repair verl's tracker, refuse what cannot be resumed; returns messages for the user."""
    trainer = config.trainer
    folder = Path(trainer.default_local_dir)
    saved = config.actor_rollout_ref.actor.checkpoint.save_contents
    told = checkpoints.repair(folder, saved)
    checkpoints.check_ranks(folder, trainer.nnodes * trainer.n_gpus_per_node)
    return told
