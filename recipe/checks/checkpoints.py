"""From which checkpoint a run goes on, before anything starts."""

from pathlib import Path

from omegaconf import DictConfig

from recipe.run import checkpoints


def check_checkpoints(config: DictConfig) -> list[str]:
    """Mend verl's tracker, refuse what cannot be gone on from; returns what to tell the user."""
    trainer = config.trainer
    folder = Path(trainer.default_local_dir)
    saved = config.actor_rollout_ref.actor.checkpoint.save_contents
    told = checkpoints.repair(folder, saved)
    checkpoints.check_ranks(folder, trainer.nnodes * trainer.n_gpus_per_node)
    return told
