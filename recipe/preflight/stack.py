"""Rules about attention, kernels and quantized rollouts: their packages and their device."""

from collections.abc import Iterator

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


STACK: list[Check] = [
    packages,
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
