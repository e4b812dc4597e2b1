"""The critic's model on a CPU: ``critic.model._target_`` of `config/machine/cpu.yaml`.

verl imports ``external_lib`` where it creates this config: for the actor in its worker process, for
the critic in the driver. The critic's worker unpickles the config, which imports this module, and
with it the engines for the CPU.
"""

from dataclasses import dataclass

from verl.workers.config.model import HFModelConfig

import recipe.patches.cpu.engines  # noqa: F401


@dataclass
class CriticModelConfig(HFModelConfig):
    """verl's config, unchanged."""
