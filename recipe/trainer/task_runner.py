"""verl's task runner, the process of the trainer, which registers our trainer first."""

from pathlib import Path
from typing import Any

import ray
from omegaconf import DictConfig
from verl.trainer.main_ppo import TaskRunnerV1

from recipe.rollout import server
from recipe.run import progress

# A class under @ray.remote cannot be subclassed; this is the decorated class.
_Runner: Any = TaskRunnerV1.__ray_metadata__.modified_class


class RecipeTaskRunner(_Runner):
    """verl's task runner for the trainers of this project.

    Overrides of verl:
      run   registers trainer and rollout server; rejects a second run on one Ray cluster
    """

    def run(self, config: DictConfig) -> None:
        import recipe.trainer.asynchronous  # noqa: F401

        progress.reached(Path(config.recipe.run_dir), "trainer process started")
        server.register()
        # Before verl's run, whose tq.init silently joins an existing queue.
        refuse_shared_queue()
        super().run(config)


def refuse_shared_queue() -> None:
    """Raise RuntimeError if another run on this Ray cluster has the TransferQueue."""
    try:
        ray.get_actor("TransferQueueController", namespace="transfer_queue")
    except ValueError:  # there is none
        return
    raise RuntimeError(
        "another verl run uses the TransferQueue of this Ray cluster, and the two would train on "
        "each other's rollouts. Wait for its end, or unset RAY_ADDRESS so that this run starts its "
        "own Ray (one Ray cluster per run)."
    )
