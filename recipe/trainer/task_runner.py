"""verl's task runner, in whose process the trainer lives, with our trainer registered first."""

from pathlib import Path
from typing import Any

import ray
from omegaconf import DictConfig
from verl.trainer.main_ppo import TaskRunnerV1

from recipe.rollout import server
from recipe.run import progress

# A class under @ray.remote cannot be subclassed; this is the class it was made from.
_Runner: Any = TaskRunnerV1.__ray_metadata__.modified_class


class RecipeTaskRunner(_Runner):
    """verl's, for ``recipe_sync``.

    Overrides of verl:
      run   registers trainer and rollout server in the process that looks them up; one run per
            Ray cluster
    """

    def run(self, config: DictConfig) -> None:
        import recipe.trainer.trainer  # noqa: F401

        progress.reached(Path(config.recipe.run_dir), "trainer process started")
        server.register()
        # Before verl's run: its tq.init joins a queue that exists, and says nothing.
        refuse_shared_queue()
        super().run(config)


def refuse_shared_queue() -> None:
    """RuntimeError where another run of this Ray cluster holds TransferQueue.

    It is one named actor per cluster, and a second run would train on the rollouts of the first.
    """
    try:
        ray.get_actor("TransferQueueController", namespace="transfer_queue")
    except ValueError:  # none there
        return
    raise RuntimeError(
        "another verl run holds this Ray cluster's TransferQueue, and the two would train on each "
        "other's rollouts: wait for its end, or unset RAY_ADDRESS so that this run starts its own "
        "Ray (one Ray cluster per run)"
    )
