"""Rules about optimizers, kernels and quantized rollouts: their packages and their device."""

from collections.abc import Iterator, Mapping
from typing import Any

from recipe.preflight import engine
from recipe.preflight.rules import Check, Rule, Setup

MUON = (
    " Set optimizer_impl=recipe.actor.muon and optimizer=MuonAdamW, which leaves all but the "
    "matrices to AdamW."
)
IMPL = "{MODEL}.fused_kernel_options.impl_backend"
# Implementation of fused kernels -> the package it needs.
FUSED = {"torch": "torch", "triton": "triton", "liger": "liger_kernel"}


def not_built(optim: Mapping[str, Any]) -> str | None:
    """Return why verl's `build_optimizer` would fail; only torch's classes are imported."""
    module, name = optim["optimizer_impl"], optim["optimizer"]
    if engine.is_missing(module):
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
        remedy = MUON if name == "Muon" else " Choose another, or correct its settings."
        return f"verl gives it all weights at once, and torch answers: {error}.{remedy}"
    return None


def optimizers(s: Setup) -> Iterator[str]:
    """verl can build the optimizer of the actor, and of a critic."""
    for role in ["actor_rollout_ref.actor"] + ["critic"] * s.critic:
        if reason := not_built(s.get(f"{role}.optim")):
            key = f"{role}.optim.optimizer"
            yield f"{s.named(key)} with {s.named(f'{key}_impl')}: {reason}"


def fused(s: Setup) -> str | None:
    """Return the implementation of fused kernels, None if they are off."""
    return str(s.get(IMPL)) if s.model.use_fused_kernels else None


STACK: list[Check] = [
    optimizers,
    Rule(
        "{A}.strategy trainer.device",
        lambda s: s.actor.strategy == "fsdp" and s.trainer.device == "cpu",
        "torch's FSDP cannot broadcast weights on a CPU. Set {A}.strategy=fsdp2.",
    ),
    Rule(
        "{A}.optim.optimizer_impl {A}.strategy",
        lambda s: (
            s.actor.optim.optimizer_impl == "recipe.actor.muon" and s.actor.strategy == "fsdp"
        ),
        "FSDP flattens the matrices that Muon needs. Set {A}.strategy=fsdp2.",
    ),
    Rule(
        "{MODEL}.use_liger",
        lambda s: s.model.use_liger and engine.is_missing("liger_kernel"),
        "it needs the package liger-kernel, which is not installed. Install it "
        "(requirements/gpu.txt), or unset the key.",
    ),
    Rule(
        "{MODEL}.use_liger trainer.device",
        lambda s: s.model.use_liger and s.trainer.device == "cpu",
        "its Triton kernels need a GPU. Unset it.",
    ),
    Rule(
        IMPL,
        lambda s: fused(s) not in (None, *FUSED),
        f"verl would patch nothing and then miss the log-probabilities. Set {', '.join(FUSED)}.",
    ),
    Rule(
        IMPL,
        lambda s: engine.is_missing(package := FUSED.get(fused(s) or "", "torch")) and package,
        "it needs the package {found}, which is not installed. Install it, or set torch.",
    ),
    Rule(
        f"{IMPL} trainer.device",
        lambda s: fused(s) in ("triton", "liger") and s.trainer.device == "cpu",
        "its kernels need a GPU. Set torch, or {MODEL}.use_fused_kernels=false.",
    ),
    Rule(
        "{R}.quantization",
        lambda s: s.rollout.quantization not in (None, "fp8", "torchao"),
        "on GPUs verl 0.9.1 quantizes rollouts to fp8, or with torchao. Set one, or unset it.",
    ),
    Rule(
        "{R}.quantization",
        lambda s: s.rollout.quantization == "torchao" and engine.is_missing("torchao"),
        "it needs the package torchao, which is not installed. Install it, or set fp8.",
    ),
    Rule(
        "{R}.quantization trainer.device",
        lambda s: s.rollout.quantization and s.trainer.device == "cpu",
        "on a CPU the engine gets float32 weights, and no run has quantized them. Unset it.",
    ),
    Rule(
        "{A}.ulysses_sequence_parallel_size {MODEL}.use_remove_padding",
        lambda s: s.sequence_ranks() > 1 and not s.model.use_remove_padding,
        "verl divides packed rows alone. Set {MODEL}.use_remove_padding=true.",
    ),
]
