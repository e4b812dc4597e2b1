"""A tiny Qwen2 with an adapter of random A and B, as verl builds it."""

from typing import Any

from tiny_model import untrained

RANK, ALPHA = 3, 12


def tuned(**changes: Any) -> Any:
    """A PEFT model; `changes` of the settings of its start model `untrained(**changes)`."""
    import torch
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=RANK, lora_alpha=ALPHA, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    model = get_peft_model(untrained(**changes), config)
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_" in name:
            parameter.data = torch.randn(parameter.shape, generator=generator) / 10
    return model


def logits(model: Any) -> Any:
    """The model's logits of ten tokens."""
    import torch

    with torch.no_grad():
        return model.eval()(torch.arange(10)[None]).logits
