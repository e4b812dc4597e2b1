"""Rules about optimizers, kernels and quantized rollouts: their packages and their device."""

from collections.abc import Iterator, Mapping
from typing import Any

from recipe.config.shapes import known_shape
from recipe.preflight import rules
from recipe.preflight.engine import ATTENTION
from recipe.preflight.rules import MODEL, A, Check, R, Rule, Setup

KERNELS = f"{MODEL}.fused_kernel_options.impl_backend"
# (key, value, package that it needs, whether it needs a GPU)
PACKAGES = (
    (ATTENTION, None, "flash_attn", False),  # verl's default is flash_attention_2
    (ATTENTION, "flash_attention_2", "flash_attn", False),
    (ATTENTION, "flash_attention_3", "flash_attn_interface", False),
    (f"{MODEL}.use_liger", True, "liger_kernel", True),
    (KERNELS, "triton", "triton", True),
    (KERNELS, "liger", "liger_kernel", True),
    (f"{R}.quantization", "fp8", "", True),
    (f"{R}.quantization", "torchao", "torchao", True),
)


def not_built(optim: Mapping[str, Any]) -> str | None:
    """Return why verl's `build_optimizer` would fail; only torch's classes are imported."""
    module, name = optim["optimizer_impl"], optim["optimizer"]
    if rules.is_missing(module):
        return f"there is no module {module}. Install its package, or correct the name."
    if module != "torch.optim":
        return None
    import torch

    if not hasattr(torch.optim, name):
        return "torch has no such optimizer. Correct the name."
    arguments = {"lr": optim["lr"], "weight_decay": optim["weight_decay"]}
    if "adam" in name.lower():
        arguments["betas"] = tuple(optim["betas"])
    arguments |= optim["override_optimizer_config"] or {}
    weights = [torch.zeros(2, 2, requires_grad=True), torch.zeros(2, requires_grad=True)]
    try:
        getattr(torch.optim, name)(weights, **arguments)
    except (TypeError, ValueError) as error:
        return (
            f"verl gives it all weights at once, and torch answers: {error}. Choose another, or "
            "correct its settings."
        )
    return None


def optimizers(s: Setup) -> Iterator[str]:
    """verl can build the optimizer of the actor, and of a critic."""
    for role in [A] + ["critic"] * s.critic:
        if reason := not_built(s.get(f"{role}.optim")):
            yield s.said(f"{role}.optim.optimizer {role}.optim.optimizer_impl", reason)


def packages(s: Setup) -> Iterator[str]:
    """Attention, kernels and quantization have their package and their device."""
    for key, value, package, needs_gpu in PACKAGES:
        if s.get(key) != value or (key == KERNELS and not s.model.use_fused_kernels):
            continue
        if needs_gpu and s.on_cpu:
            yield s.said(f"{key} trainer.device", "its kernels need a GPU. Unset it.")
        elif package and rules.is_missing(package):
            yield s.said(
                key,
                f"it needs the package {package}, which is not installed. Install it "
                "(requirements/README.md), or choose another: sdpa for attention, torch for fused "
                "kernels.",
            )


def triton_width(s: Setup) -> Iterator[str]:
    """verl's triton kernels take the model's hidden size in steps of 128."""
    shape = known_shape(s.recipe.model_path)
    triton = s.model.use_fused_kernels and s.get(KERNELS) == "triton"
    if triton and shape and shape.hidden % 128:
        yield s.said(
            KERNELS,
            "its kernels need a hidden size divisible by 128, and the model's is "
            f"{shape.hidden}. Set torch.",
        )


STACK: list[Check] = [
    *(optimizers, packages, triton_width),
    Rule(
        f"{A}.strategy trainer.device",
        lambda s: s.actor.strategy == "fsdp" and s.on_cpu,
        f"torch's FSDP cannot broadcast weights on a CPU. Set {A}.strategy=fsdp2.",
    ),
    Rule(
        f"{A}.ulysses_sequence_parallel_size {MODEL}.use_remove_padding",
        lambda s: s.sequence_ranks() > 1 and not s.model.use_remove_padding,
        f"verl divides only packed rows. Set {MODEL}.use_remove_padding=true.",
    ),
]
