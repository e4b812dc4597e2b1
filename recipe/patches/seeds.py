"""Random weights that are added to the start model, drawn from the seed.

verl draws a critic's value head and LoRA's A from an unseeded generator. Two runs with one seed
would differ from the first step. Here the engine's seed draws them:
`actor_rollout_ref.actor.fsdp_config.seed` and `critic.fsdp.seed`, by default `recipe.seed`.
"""

from types import ModuleType
from typing import Any

import torch
import wrapt


@wrapt.when_imported("verl.workers.engine.fsdp.transformer_impl")
def adapt(module: ModuleType) -> None:
    """Seed the generator while verl's engine loads a model and while it adds an adapter."""

    def seeded(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        with torch.random.fork_rng(devices=[]):  # verl builds the model on the CPU
            torch.manual_seed(engine.engine_config.seed)
            return wrapped(*args, **kwargs)

    wrapt.wrap_function_wrapper(module, "FSDPEngine._build_module", seeded)
    wrapt.wrap_function_wrapper(module, "FSDPEngine._build_lora_module", seeded)
