"""Rules about optimizers, kernels and quantized rollouts: their packages and their device."""

from collections.abc import Iterator, Mapping
from typing import Any

from recipe.preflight import rules
from recipe.preflight.rules import Check, Rule, Setup, table


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
    for role in ["actor_rollout_ref.actor"] + ["critic"] * s.critic:
        if reason := not_built(s.get(f"{role}.optim")):
            key = f"{role}.optim.optimizer"
            yield f"{s.named(key)} with {s.named(f'{key}_impl')}: {reason}"


STACK: list[Check] = [
    optimizers,
    *table("stack"),
    Rule(
        "{A}.ulysses_sequence_parallel_size {MODEL}.use_remove_padding",
        lambda s: s.sequence_ranks() > 1 and not s.model.use_remove_padding,
        "verl divides only packed rows. Set {MODEL}.use_remove_padding=true.",
    ),
]
