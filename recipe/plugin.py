"""Entry point of `verl.plugins`: installs the patches at the end of ``import verl``.

Every process loads it, engine processes too, so its imports must stay light. It separates the
weight sockets of two runs on one machine, computes log-probabilities in float32 without flash-attn,
loads critics without it, sends LoRA weights in float32, draws critics' heads and adapters from the
seed, trains every step with a learning rate above 0, and with ``VERL_PLATFORM=cpu`` makes verl run
on a CPU. verl swallows exceptions of an entry point. So `recipe.train` also names this module in
``VERL_USE_EXTERNAL_MODULES``, where an exception stops the process with a traceback, and
`recipe.doctor` imports it separately.
"""

import warnings

from recipe.patches import (
    cpu,
    logprobs,  # noqa: F401  (hooks into verl when imported)
    verl,  # noqa: F401  (hooks into verl when imported)
)

# verl has five of these in every process, of engines that are not supported here.
warnings.filterwarnings("ignore", r"\w+ engine is not available", UserWarning)

if cpu.requested():
    import recipe.patches.cpu.cpu_platform  # noqa: F401  (registers the platform "cpu")
    from recipe.patches.cpu import adapters

    adapters.adapt_process_group()
    adapters.adapt_vllm_version()
