"""verl's task runner, in whose process the trainer lives, with our trainer registered first."""

from typing import Any

from omegaconf import DictConfig
from verl.trainer.main_ppo import TaskRunnerV1

# A class under @ray.remote cannot be subclassed; this is the class it was made from.
_Runner: Any = TaskRunnerV1.__ray_metadata__.modified_class


class RecipeTaskRunner(_Runner):
    """Registers ``recipe_sync`` in the process that looks it up."""

    def run(self, config: DictConfig) -> None:
        import recipe.trainer  # noqa: F401

        super().run(config)
