"""FSDP engines on the CPU; verl imports them through ``actor_rollout_ref.model.external_lib``.

verl imports ``external_lib`` where it creates a model's config: for the actor in its worker
process, for the critic in the driver. The critic's worker unpickles `CriticModelConfig`
(``critic.model._target_`` of `config/machine/cpu.yaml`), which imports this module.
"""

from dataclasses import dataclass

from verl.workers.config.model import HFModelConfig

from recipe.patches.cpu import adapters

adapters.register_engines()
adapters.adapt_offload()


@dataclass
class CriticModelConfig(HFModelConfig):
    """verl's config, unchanged."""
