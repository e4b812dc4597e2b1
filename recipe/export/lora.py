r"""LoRA checkpoints: the adapter added to the start model's weights, and in PEFT's layout.

    W = W_start + alpha / r * B A        in float32

verl 0.9.1's merger drops the adapter from the model that it writes: the exported model would be the
start model (verl issues 3087, 4553 and 7285).
"""

from pathlib import Path

import torch

from recipe.export import Lora, MismatchError

PREFIX = "base_model.model."  # of every name in a PEFT model
A, B = ".lora_A.default.weight", ".lora_B.default.weight"
FOLDER = "adapter"  # below a step's folder; in it transformers and vLLM would load it as well
State = dict[str, torch.Tensor]


def plain(name: str) -> str:
    """Return a tensor's name in the model without an adapter."""
    return name.removeprefix(PREFIX).replace(".base_layer.", ".")


def is_adapter(name: str) -> bool:
    return "lora_" in name


def deltas(adapter: State, lora: Lora) -> State:
    """Return what is added to each weight, by its name in the model without an adapter.

    `adapter` has the tensors of a checkpoint for which `is_adapter` holds. Raises MismatchError
    where they are not pairs of A and B of the stated rank.
    """
    modules = [name.removesuffix(A) for name in adapter if name.endswith(A)]
    if not modules or adapter.keys() != {m + end for m in modules for end in (A, B)}:
        raise MismatchError("the tensors of the adapter are not one A and one B per linear layer")
    added = {}
    for module in modules:
        # Copies: the last bits of a product may depend on where its factors begin in memory.
        down, up = (adapter[module + end].float().clone() for end in (A, B))
        if not down.shape[0] == up.shape[1] == lora.rank:
            raise MismatchError(
                f"{module}: A is {tuple(down.shape)} and B {tuple(up.shape)}, not of rank "
                f"{lora.rank}"
            )
        added[plain(f"{module}.weight")] = lora.alpha / lora.rank * (up @ down)
    return added


def peft_names(adapter: State) -> State:
    """Return the tensors under the names that PEFT gives them in a file."""
    return {name.replace(".default.", "."): t.contiguous() for name, t in adapter.items()}


def write(folder: Path, adapter: State, lora: Lora) -> None:
    """Write adapter_config.json and adapter_model.safetensors, which `PeftModel` loads."""
    from peft import LoraConfig
    from safetensors.torch import save_file

    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        task_type="CAUSAL_LM",
        base_model_name_or_path=lora.start_model,
        inference_mode=True,
    )
    # A sorted list: PEFT would write a set, whose order differs between exports.
    layers = {name.removesuffix(A).rpartition(".")[2] for name in adapter if name.endswith(A)}
    config.target_modules = sorted(layers)
    config.save_pretrained(str(folder))
    save_file(peft_names(adapter), folder / "adapter_model.safetensors", metadata={"format": "pt"})
