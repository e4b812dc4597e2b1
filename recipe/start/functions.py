"""Rules about names: what they name exists (keys.yaml), and the user's functions run."""

import dataclasses
import itertools
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf

from prompt_aug.base.errors import UserError
from prompt_aug.base.files import sha256
from prompt_aug.typed import shown
from prompt_aug.verifiers import named, source_file
from recipe.algorithms import ADVANTAGES, TOKEN_WEIGHTS
from recipe.algorithms.compute import compute_advantages
from recipe.algorithms.rollouts import RolloutBatch
from recipe.config.base import default_values, flat, verl_config
from recipe.config.compose import one_line
from recipe.config.verl import off_switch, row_of
from recipe.machine.host import gpus_here
from recipe.start.data import paths_of
from recipe.start.rules import Setup, is_missing, note

OURS = ("recipe", "prompt_aug", "verl")  # packages that are installed; a run records their versions
GPU_PACKAGES = (  # a login node may lack them
    "vllm", "sglang", "flash_attn", "flashinfer", "xformers", "triton", "cupy", "liger_kernel",
    "bitsandbytes", "torchao", "apex", "transformer_engine", "deepspeed",
)  # fmt: skip
# (input of a function, key, value of the key with which a run computes it); otherwise it is None.
COMPUTED: list[tuple[str, str, bool]] = [
    ("values_BT", "critic.enable", True),
    ("values_BT", "recipe.curriculum.value_model", False),
    ("entropy_BT", "algorithm.rollout_correction.bypass_mode", False),
    ("rollout_logprobs_BT", "actor_rollout_ref.rollout.calculate_log_probs", True),
]


def names_exist(s: Setup) -> Iterator[str]:
    """Modules, classes, files and other things that keys name exist (keys.yaml)."""
    content: Any = OmegaConf.to_container(s.config, resolve=True)
    values, defaults = dict(flat(content)), set(map(str, default_values().values()))
    # First the modules of the user, which may register what another key names.
    for key in sorted(values, key=lambda key: not key.endswith("external_lib")):
        row = row_of(key)
        if not values[key] or not isinstance(row, list) or off_switch(s.config, key):
            continue
        kind, other = row[0], row[-1]
        beside = other if "." in other else f"{key.rpartition('.')[0]}.{other}"
        keys = [key, beside] if kind == "module" and len(row) > 1 else [key]
        name = values.get(beside) if len(keys) > 1 else other
        if all(str(values.get(x)) in defaults for x in keys):
            continue
        for text in map(str, paths_of(values[key])):
            try:
                with warnings.catch_warnings(action="ignore"):  # of verl's missing engines
                    find(kind, text, name if len(row) > 1 else None)
            except Exception as error:  # whatever the user's module raises
                package = str(getattr(error, "name", "")).partition(".")[0]
                shown = f"{key}={text}" + (f" with {s.named(beside)}" if len(keys) > 1 else "")
                message = f"{shown}: {one_line(error)} ({type(error).__name__}). "
                if isinstance(error, ImportError) and package in GPU_PACKAGES and not gpus_here():
                    note(f"not on this machine: {message}")
                else:
                    yield message + "Correct the name, or put its folder into PYTHONPATH."


def find(kind: str, text: str, name: str | None) -> None:
    """Look for what a key names; raises an exception if it is not there."""
    if kind == "class":
        text, _, name = text.rpartition(".")
    if kind in ("class", "module"):
        find_in_module(text, name)
    elif kind == "hub" and text[0] not in "/.~" and text.count("/") <= 1:
        return
    elif "://" not in text:
        folders = (Path(), *verl_config().parents[1:3])  # as verl's resolve_config_path
        found = next((p for f in folders if (p := f / Path(text).expanduser()).exists()), None)
        if found is None:
            raise FileNotFoundError("no such file")
        loops: Any = OmegaConf.load(found) if kind == "loops" else ()
        for entry in loops:
            find("class", entry["_target_"], None)


def find_in_module(text: str, name: str | None) -> Any:
    """Return the object `name` of a module, by dotted name, ``pkg://`` or path as in verl."""
    from verl.utils.import_utils import load_module

    is_file = not text.startswith("pkg://") and ("/" in text or text.endswith(".py"))
    module = text.removeprefix("pkg://").replace("/", ".")
    if is_file or module.partition(".")[0] not in OURS:
        loaded = load_module(text if is_file else f"pkg://{module}")
        return getattr(loaded, name) if name else None
    spec = find_spec(module)
    file = Path(spec.origin) if spec and spec.origin else None
    files = file.parent.glob("*.py") if file and file.name == "__init__.py" else [file]
    texts = [x.read_text(encoding="utf-8") for x in files if x]
    if not any(re.search(rf"\b{re.escape(name or '')}\b", text) for text in texts):
        raise ImportError(f"there is no {name or 'such module'}")
    return None


def runs_on_a_batch(s: Setup) -> Iterator[str]:
    """Advantages and token weights, with their arguments, run on a small batch."""
    recipe: Any = OmegaConf.to_container(s.recipe, resolve=True)
    rows = int(s.rollout.n)
    absent = {name: (key, on) for name, key, on in COMPUTED if bool(s.get(key)) != on}
    without: Any = dict.fromkeys(absent)
    if s.facts.critic and not s.critic:
        return  # refused by a rule
    for registry, section in ((ADVANTAGES, "advantage"), (TOKEN_WEIGHTS, "weights")):
        name = recipe[section]["name"]
        if section == "weights" and name == "none":
            continue
        alone = {**recipe, "weights": {"name": "none"}} if section == "advantage" else recipe
        batch = trial_batch(rows, recipe["rephrasings"]["count"] + 1)
        verified = s.reward.verifiers or {}
        batch = dataclasses.replace(
            batch,
            templates=spread(s.templates, len(batch)),
            sources=spread([*verified] or ["a"], len(batch)),
            parts=[defaultdict[str, float](float) if verified else {}] * len(batch),
        )
        try:
            compute_advantages(dataclasses.replace(batch, **without), alone, s.actor.loss_agg_mode)
        except UserError:
            raise
        except Exception as error:  # whatever the user's function raises
            inputs = registry.facts(name).inputs
            hints = [
                f"{x} is None with {s.named(absent[x][0])}: set it to {shown(absent[x][1])}. "
                for x in inputs
                if x in absent
            ]
            yield (
                f"{registry.key}={name}: a call on a trial batch of {2 * rows} responses failed: "
                f"{type(error).__name__}: {error}. {''.join(hints)}Correct the function, or set "
                f"its arguments with recipe.{section}.arguments.NAME=VALUE."
            )
            return  # a failed advantage would fail again under the weights


def own_functions(s: Setup) -> dict[str, str]:
    """Return {dotted path: its file's SHA-256} of the user's verifiers, advantage, weight, loss."""
    names = [*(s.reward.verifiers or {}).values(), s.advantage]
    names += [s.weights, *([s.actor.policy_loss["_target_"]] if s.own_loss else [])]
    names += [f"{x}.module" for x in paths_of(s.model.external_lib)]
    digests = {}
    for path in map(str, names):
        module = named(path)[0]
        if module.partition(".")[0] in ("", *OURS) and not module.endswith(".py"):
            continue
        if module.endswith(".py") or not is_missing(module):
            file = source_file(path)
            digests[path] = sha256(file) if file and file.is_file() else ""
    return digests


def spread(values: Sequence[str], count: int) -> list[str]:
    """Return `count` of the values, over and over."""
    return list(itertools.islice(itertools.cycle(values), count))


def trial_batch(rows: int, rephrasings: int) -> RolloutBatch:
    """Return two groups of `rows` responses of 14 to 16 tokens, every second one right."""
    count, each = 2 * rows, max(1, rows // rephrasings)
    lengths = [16 - i % 3 for i in range(count)]
    numbers = [i % rows // each for i in range(count)]
    group_B = torch.arange(count) // rows
    mask_BT = torch.arange(16)[None, :] < torch.tensor(lengths)[:, None]
    logprobs_BT = -0.5 - torch.rand(mask_BT.shape, dtype=torch.float64) * mask_BT
    accuracy = [float(i % 2 == 0) for i in range(count)]
    tokens = [torch.arange(length) for length in lengths]
    return RolloutBatch(
        values_BT=torch.zeros_like(logprobs_BT),
        keys=[f"q{i // rows}_{i % rows}_0" for i in range(count)],
        seed=0,
        questions=[f"q{i // rows}" for i in range(count)],
        group_B=group_B,
        rephrasing_B=group_B * (max(numbers) + 1) + torch.tensor(numbers),
        rollouts=[i % rows for i in range(count)],
        rephrasings=numbers,
        templates=["qwen-math"] * count,
        gold=[("1",)] * count,
        text=["\\boxed{1}" if acc else "\\boxed{2}" for acc in accuracy],
        answers=["1" if acc else "2" for acc in accuracy],
        statuses=["correct" if acc else "wrong" for acc in accuracy],
        sources=["a"] * count,
        parts=[{}] * count,
        shortest=[None] * count,
        accuracy=accuracy,
        formats=[1.0] * count,
        lengths=lengths,
        truncated=[False] * count,
        reward_B=torch.tensor(accuracy, dtype=torch.float64),
        trained_B=torch.ones(count, dtype=torch.bool),
        mask_BT=mask_BT,
        logprobs_BT=logprobs_BT,
        weight_logprobs_BT=logprobs_BT,
        rollout_logprobs_BT=logprobs_BT,
        hinted_logprobs_BT=logprobs_BT / 2,
        entropy_BT=-logprobs_BT,
        prompts=tokens,
        generated_under=tokens,
        responses=tokens,
    )
