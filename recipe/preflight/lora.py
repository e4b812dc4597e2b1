"""Rules about LoRA: what verl 0.9.1 trains, and how its engine gets the weights."""

from collections.abc import Iterator

from recipe.config.shapes import Shape
from recipe.preflight.rules import MODEL, A, Check, Rule, Setup

# Linear layers of the decoders that `Shape` knows, by their names in transformers.
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
TARGETS, EXCLUDED = f"{MODEL}.target_modules", f"{MODEL}.exclude_modules"


def adapted(s: Setup) -> list[str]:
    """Return the layers with an adapter."""
    targets = s.get(TARGETS)
    chosen = LAYERS if targets == "all-linear" else targets
    return [name for name in chosen if name not in (s.get(EXCLUDED) or ())]


def adapter_size(s: Setup, shape: Shape) -> int:
    """Return the parameters that are trained with LoRA; 0 without it."""
    return shape.adapter(s.model.lora_rank, adapted(s)) if s.model.lora_rank else 0


def layers(s: Setup) -> Iterator[str]:
    """An adapter has layers, whose names are known."""
    targets, excluded = s.get(TARGETS), s.get(EXCLUDED)
    lists = [[] if targets == "all-linear" else targets, excluded or []]
    if not s.model.lora_rank:
        return
    if not all(isinstance(names, list) for names in lists):
        why = "text is a pattern for PEFT"
    elif unknown := [str(name) for names in lists for name in names if name not in LAYERS]:
        why = f"unknown are {', '.join(unknown)}"
    elif not adapted(s):
        why = "no layer is left"
    else:
        return
    yield s.said(
        f"{TARGETS} {EXCLUDED}", f"{why}. Set all-linear, or a list of {', '.join(LAYERS)}."
    )


LORA: list[Check] = [
    layers,
    Rule(
        f"{MODEL}.lora.merge {MODEL}.lora_rank",
        lambda s: bool(s.model.lora.merge) != bool(s.model.lora_rank),
        "with LoRA the engine gets the weights with the adapter added, which is what is exported "
        "and tested here; without it the key has no effect. Set "
        f"{MODEL}.lora.merge=true together with {MODEL}.lora_rank, or neither.",
    ),
    Rule(
        f"{MODEL}.lora_rank {A}.strategy",
        lambda s: s.model.lora_rank and s.actor.strategy != "fsdp2",
        f"LoRA is tested only with fsdp2. Set {A}.strategy=fsdp2.",
    ),
    Rule(
        f"{MODEL}.lora_rank {A}.fsdp_config.model_dtype",
        lambda s: (
            s.model.lora_rank and s.actor.fsdp_config.model_dtype not in (None, "float32", "fp32")
        ),
        "verl would keep the adapter in the same 16 bits, in which most updates are lost. Set "
        f"{A}.fsdp_config.model_dtype=fp32.",
    ),
]
