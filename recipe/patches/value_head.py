"""A critic's value head from the seed.

verl adds a head of random weights to the start model and draws it from an unseeded generator, so
that two runs with one seed would have other values, and with PPO other advantages, from the first
step. Here the engine's seed draws it: ``critic.fsdp.seed``, by default ``recipe.seed``.
"""

from types import ModuleType
from typing import Any

import torch
import wrapt


@wrapt.when_imported("verl.workers.engine.fsdp.transformer_impl")
def adapt(module: ModuleType) -> None:
    """Seed the generator while verl's engine loads a model."""

    def seeded(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Any:
        with torch.random.fork_rng(devices=[]):  # verl builds the model on the CPU
            torch.manual_seed(engine.engine_config.seed)
            return wrapped(*args, **kwargs)

    wrapt.wrap_function_wrapper(module, "FSDPEngine._build_module", seeded)
