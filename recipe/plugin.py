"""Entry point of `verl.plugins`: installs the patches at the end of ``import verl``.

Every process loads it, engine processes too, so its imports must stay light. With
``VERL_PLATFORM=cpu`` verl runs on a CPU. verl swallows exceptions of an entry point. So
`recipe.train` also names this module in ``VERL_USE_EXTERNAL_MODULES``, where an exception stops the
process with a traceback, and `recipe.doctor` imports it separately.
"""

import warnings
from types import ModuleType

import wrapt

from recipe.patches import (
    cpu,
    logprobs,  # noqa: F401  (hooks into verl when imported)
    verl,  # noqa: F401  (hooks into verl when imported)
)

# verl has five of these in every process, of engines that are not supported here.
warnings.filterwarnings("ignore", r"\w+ engine is not available", UserWarning)


@wrapt.when_imported("verl.workers.engine.fsdp.transformer_impl")
def register_attention(_: ModuleType) -> None:
    """Register torch_varlen in transformers before verl builds a model."""
    import recipe.actor.varlen  # noqa: F401


if cpu.requested():
    import recipe.patches.cpu.cpu_platform  # noqa: F401  (registers the platform "cpu")
    from recipe.patches.cpu import adapters

    adapters.adapt_process_group()
    adapters.adapt_vllm_version()
