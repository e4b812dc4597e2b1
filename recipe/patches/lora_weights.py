"""LoRA: weights for the engine in the actor's precision, float32.

With ``lora.merge=true`` verl 0.9.1 adds the adapter to the weights and casts each to bfloat16. An
engine in float32 then samples with other weights than the actor's, and a small adapter may vanish
by rounding. Without LoRA verl sends float32, and every engine casts to its own dtype, as here.
"""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import wrapt


@wrapt.when_imported("verl.workers.engine.fsdp.transformer_impl")
def adapt(module: ModuleType) -> None:
    """Replace the generator of merged weights by one that does not cast."""

    def merged(wrapped: Any, engine: Any, args: Any, kwargs: Any) -> Iterator[tuple[str, Any]]:
        try:
            with module.merged_lora_context(engine.module, backup_adapters=True):
                params = module.normalize_peft_param_name(engine.module.state_dict())
                for name, param in module.convert_weight_keys(params, engine.module).items():
                    weight = param
                    if isinstance(param, module.DTensor):  # with offload_policy it is elsewhere
                        weight = param.to(module.get_device_id()).full_tensor()
                    # A copy: at the end the start model's weights return to this memory.
                    yield name, weight.detach().clone()
        finally:
            if engine._is_offload_param:
                module.offload_fsdp_model_to_cpu(engine.module)

    wrapt.wrap_function_wrapper(module, "FSDPEngine._merged_lora_per_tensor_param", merged)
