"""Rules about LoRA: what verl 0.9.1 trains, and how its engine gets the weights."""

from recipe.config.shapes import Shape
from recipe.preflight.rules import Check, Rule, Setup, table

# Linear layers of the decoders that `Shape` knows, by their names in transformers.
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def adapted(s: Setup) -> list[str]:
    """Return the layers with an adapter."""
    targets = s.get("{MODEL}.target_modules")
    chosen = LAYERS if targets == "all-linear" else targets
    return [name for name in chosen if name not in (s.get("{MODEL}.exclude_modules") or ())]


def adapter_size(s: Setup, shape: Shape) -> int:
    """Return the parameters that are trained with LoRA; 0 without it."""
    return shape.adapter(s.model.lora_rank, adapted(s)) if s.model.lora_rank else 0


def unknown_layers(s: Setup) -> str:
    targets, excluded = s.get("{MODEL}.target_modules"), s.get("{MODEL}.exclude_modules")
    lists = [[] if targets == "all-linear" else targets, excluded or []]
    if not all(isinstance(names, list) for names in lists):
        return "text is a pattern for PEFT"
    unknown = [str(name) for names in lists for name in names if name not in LAYERS]
    if unknown:
        return f"unknown are {', '.join(unknown)}"
    return "" if adapted(s) else "no layer is left"


LORA: list[Check] = [
    *table("lora"),
    Rule(
        "{MODEL}.target_modules {MODEL}.exclude_modules",
        lambda s: s.model.lora_rank and unknown_layers(s),
        "{found}. Set all-linear, or a list of " + ", ".join(LAYERS) + ".",
    ),
]
