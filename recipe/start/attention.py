"""The attention of a run: which names are available here, and which one null stands for.

With ``attn_implementation: null`` (config/machine/gpu.yaml) the first start chooses, and writes its
choice to the run's config.yaml. A resumed run keeps it.
"""

import multiprocessing
from collections.abc import Iterator
from typing import Any

import torch
from omegaconf import OmegaConf

from prompt_aug.base.tokenizers import model_json
from recipe.config.compose import one_line
from recipe.config.verl import MODEL
from recipe.machine import host
from recipe.machine.host import installed
from recipe.run.folder import read_config
from recipe.start.rules import Setup, refuse

VARLEN = "torch_varlen"  # recipe/actor/varlen.py
BUILT_IN = ("eager", "sdpa", "flex_attention", VARLEN)
PACKAGES = {f"flash_attention_{n}": f"flash-attn{x}" for n, x in ((2, ""), (3, "-3"), (4, "-4"))}
KEYS = [f"{model}.override_config.attn_implementation" for model in (MODEL, "critic.model")]
ATTENTION = KEYS[0]
SOFT_CAP = "attn_logit_softcapping"
PRECISION = "actor_rollout_ref.{}.fsdp_config.mixed_precision.param_dtype"
DTYPES = {"bf16": torch.bfloat16, "bfloat16": torch.bfloat16}
DTYPES |= {"fp16": torch.float16, "float16": torch.float16}
IF_EQUAL = "if it agrees with eager attention on the GPU at the start"
LENGTHS = (7, 1, 40)  # tokens of the rows that are tried
TRIAL_SECONDS = 300


def recorded(s: Setup) -> str | None:
    """Return the attention with which the run was begun, None for a new one."""
    config = OmegaConf.create(read_config(s.folder.root) if s.folder.begun else {})
    return OmegaConf.select(config, ATTENTION)


def available(s: Setup) -> Iterator[str]:
    """The attention exists, its package is installed, and torch_varlen can compute the run."""
    for key in KEYS if s.critic else KEYS[:1]:
        given = s.get(key)
        if not (name := str(recorded(s) or "") if given is None else str(given)):
            continue
        remedy = "set null" if given is not None else "choose another recipe.run_dir: it began so"
        if name in PACKAGES or "/" in name:  # transformers takes those it lacks from `kernels`
            packages = [*filter(None, [PACKAGES.get(name)]), "kernels"]
            if not any(map(installed, packages)):
                why = f"{name} needs the package {' or '.join(packages)}, which is not installed"
                yield s.message(key, f"{why}. Install it (requirements/README.md), or {remedy}.")
        elif name == VARLEN and (why := unsuited(s)):
            yield s.message(key, f"{name} not with {why}. Change it, or {remedy}.")
        elif name == "sdpa" and (cap := soft_cap(s, key)):
            yield s.message(key, f"leaves out the model's {SOFT_CAP}={cap}. Set eager.")
        elif name not in BUILT_IN:
            from transformers import AttentionInterface  # takes seconds

            if name not in (known := AttentionInterface()):
                yield s.message(key, f"unknown. Set one of eager, {VARLEN}, {', '.join(known)}.")


def soft_cap(s: Setup, key: str = ATTENTION) -> float | None:
    """Return the soft cap of the attention of a model (Gemma 2); the engine computes with it."""
    model = key.removesuffix(".override_config.attn_implementation")
    path = s.get(f"{model}.path")  # null: another check says so
    fields = (model_json(path, "config.json") if path else None) or {}
    return (fields | (s.get(f"{model}.override_config") or {})).get(SOFT_CAP)


def precisions(s: Setup) -> set[str]:
    """Return the dtypes in which actor and reference model compute."""
    return {str(s.get(PRECISION.format(role)) or "bf16") for role in ("actor", "ref")}


def unsuited(s: Setup) -> str:
    """Return why torch_varlen cannot compute a run whatever its model, "" if it may."""
    capability, others = host.compute_capability(), sorted(precisions(s) - {*DTYPES})
    reasons = {
        f"trainer.device={s.trainer.device}": s.trainer.device != "cuda",
        f"{MODEL}.use_remove_padding=false": not s.model.use_remove_padding,
        f"param_dtype={', '.join(others)}": others,
        f"a GPU of compute capability {capability}, below 8.0": (capability or 8.0) < 8.0,
    }
    return " and ".join(reason for reason, holds in reasons.items() if holds)


def candidates(s: Setup) -> list[str]:
    """Return the attentions that null may stand for, fastest first; the last is not tried."""
    last = "eager" if soft_cap(s) else "sdpa"
    if unsuited(s):
        return [last]
    hopper = host.compute_capability() in (None, 9.0)  # None: no GPU here, as on a login node
    flash = ("flash_attention_3", "flash_attention_2")[not hopper :]
    return [*(name for name in flash if installed(PACKAGES[name])), VARLEN, last]


def planned(s: Setup) -> tuple[str, str]:
    """Return the attention that a start would take, and why."""
    if name := s.get(ATTENTION):
        return name, "as set"
    if name := recorded(s):
        return name, "as in the run folder"
    first, *others = candidates(s)
    return first, f"{IF_EQUAL}, else {others[-1]}" if others else unsuited(s)


def settle(s: Setup) -> list[str]:
    """Replace null by the first attention that agrees with eager; return a message."""
    if not (keys := [key for key in KEYS if s.get(key) is None]):
        return []
    name, why = planned(s)
    if why.startswith(IF_EQUAL):
        name, why = agreeing(s)
    for key in keys:
        OmegaConf.update(s.config, key, name, force_add=True)
    refuse([available], s)
    return [f"attention {name}: {why}"]


def agreeing(s: Setup) -> tuple[str, str]:
    """Return the first candidate that agrees with eager on this GPU, and what failed before it."""
    problems = list[str]()
    *fast, last = candidates(s)
    for name in fast:
        if not (problem := tried(s, name)):
            return name, "; ".join([*problems, "it agrees with eager attention"])
        problems.append(problem)
    return last, "; ".join(problems)


def tried(s: Setup, name: str) -> str:
    """Return why this machine's GPU does not compute the model with an attention, "" if it does."""
    fields = model_json(s.model.path, "config.json")
    if fields is None or not host.gpus_here():
        return f"no {'GPU here' if fields else 'config.json'} to try {name} with"
    fields |= s.get(f"{MODEL}.override_config") or {}
    dtype = DTYPES[max(precisions(s))]
    # In another process, since this one would keep memory of the GPU.
    with multiprocessing.get_context("spawn").Pool(1) as pool:  # its end kills the process
        try:
            return pool.apply_async(outcome, (fields, dtype, name)).get(TRIAL_SECONDS)
        except multiprocessing.TimeoutError:
            return f"{name}: no answer in {TRIAL_SECONDS} s"


def outcome(fields: dict[str, Any], dtype: torch.dtype, name: str) -> str:
    try:
        return difference(fields, dtype, name)
    except Exception as error:  # a package of another build, or an unusual model, raises anything
        return f"{name} failed: {one_line(error)[:200]}"


def difference(
    fields: dict[str, Any], dtype: torch.dtype, name: str = VARLEN, device: str = "cuda"
) -> str:
    """Return how an attention on packed rows differs from eager row by row, "" if not.

    A small model with the attention of `fields`, of a config.json, computes logits and gradients.
    The error of a tensor is the largest difference to float32 as a share of its largest value.
    Accepted is three times eager's own error in `dtype`, and 0.01.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    import recipe.actor.varlen  # noqa: F401  (registers torch_varlen)

    fields = {k: v for k, v in fields.items() if k != "attn_implementation"}
    if kinds := sorted(set(getattr(AutoConfig.for_model(**fields), "layer_types", None) or ())):
        fields["layer_types"] = kinds
    if fields.get("sliding_window"):
        fields["sliding_window"] = 8  # shorter than a row
    fields |= {"num_hidden_layers": len(kinds) or 2, "intermediate_size": 64}
    fields |= {"vocab_size": 64, "pad_token_id": None}
    places = [torch.arange(n, device=device)[None] for n in LENGTHS]
    ids = [row * row.shape[1] % 64 for row in places]

    def values(of: str, kind: torch.dtype, *inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        torch.manual_seed(0)  # the same weights
        config = AutoConfig.for_model(**fields)
        model = AutoModelForCausalLM.from_config(config, attn_implementation=of).to(device, kind)
        rows = zip(*inputs, strict=True)
        parts = [model.train()(row, position_ids=at, use_cache=False).logits[0] for row, at in rows]
        logits = torch.cat(parts).float()
        logits.square().mean().backward()
        gradients = [p.grad.float() for p in model.parameters() if p.dim() == 2]
        return [logits.detach(), *gradients]

    exact, eager = (values("eager", kind, ids, places) for kind in (torch.float32, dtype))
    packed = values(name, dtype, [torch.cat(ids, 1)], [torch.cat(places, 1)])
    for x, y, wanted in zip(packed, eager, exact, strict=True):
        error, usual = (float((z - wanted).abs().max() / wanted.abs().max()) for z in (x, y))
        if not error <= 3 * usual + 0.01:  # also for NaN
            return f"{name} is off by {error:.2g} of a largest value, eager by {usual:.2g}"
    return ""
