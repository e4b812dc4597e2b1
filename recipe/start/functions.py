"""Rules about the user's functions, which run before Ray starts."""

import dataclasses
from collections.abc import Iterator
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
from recipe.start.rules import Check, Setup, is_missing

OURS = ("recipe", "prompt_aug", "verl")  # packages whose version a run records anyway
# (input of a function, key, value of the key with which a run computes it); otherwise it is None.
COMPUTED: list[tuple[str, str, bool]] = [
    ("values_BT", "critic.enable", True),
    ("values_BT", "recipe.curriculum.value_model", False),
    ("entropy_BT", "algorithm.rollout_correction.bypass_mode", False),
    ("rollout_logprobs_BT", "actor_rollout_ref.rollout.calculate_log_probs", True),
]


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
    digests = {}
    for path in map(str, names):
        module = named(path)[0]
        if module.partition(".")[0] in ("", *OURS) and not module.endswith(".py"):
            continue
        if module.endswith(".py") or not is_missing(module):
            file = source_file(path)
            digests[path] = sha256(file) if file and file.is_file() else ""
    return digests


FUNCTIONS: list[Check] = [runs_on_a_batch]


def trial_batch(rows: int, rephrasings: int) -> RolloutBatch:
    """Return two groups of `rows` responses of 1 to 3 tokens, every second one right."""
    count, each = 2 * rows, max(1, rows // rephrasings)
    lengths = [1 + i % 3 for i in range(count)]
    numbers = [i % rows // each for i in range(count)]
    group_B = torch.arange(count) // rows
    mask_BT = torch.arange(3)[None, :] < torch.tensor(lengths)[:, None]
    logprobs_BT = -0.5 - torch.rand(count, 3, dtype=torch.float64) * mask_BT
    accuracy = [float(i % 2 == 0) for i in range(count)]
    tokens = [torch.arange(length) for length in lengths]
    return RolloutBatch(
        values_BT=torch.zeros(count, 3, dtype=torch.float64),
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
