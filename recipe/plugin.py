"""The one entry point of `verl.plugins`: loaded at the end of ``import verl``, in every process.

It must stay light (it is imported by engine processes too): it keeps the weights of two runs on
one machine apart, keeps log-probabilities in float32 where flash-attn is not installed, sends the
weights of LoRA in float32, and with ``VERL_PLATFORM=cpu`` makes verl run there. verl swallows an
exception of an entry point, so `recipe.train` also names this module in
``VERL_USE_EXTERNAL_MODULES``, where an exception stops the process with its own traceback, and
`recipe.doctor` imports it by itself.
"""

from recipe.patches import (
    cpu,
    logprobs,  # noqa: F401  (hooks into verl when imported)
    lora_weights,  # noqa: F401  (hooks into verl when imported)
    weight_socket,  # noqa: F401  (hooks into verl when imported)
)

if cpu.requested():
    import recipe.patches.cpu.cpu_platform  # noqa: F401  (registers the platform "cpu")
    from recipe.patches.cpu import adapters

    adapters.adapt_process_group()
    adapters.adapt_vllm_version()
