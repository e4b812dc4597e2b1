"""The user's own functions and modules: called once, or looked for, before Ray starts."""

import importlib.util
import re
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from recipe.algorithms import ADVANTAGES, TOKEN_WEIGHTS
from recipe.algorithms.compute import compute_advantages
from recipe.algorithms.rollouts import RolloutBatch
from recipe.errors import ConfigError

REWARD, LOOP = "reward.reward_manager", "actor_rollout_ref.rollout.agent.agent_loop_manager_class"
LIBRARY = "actor_rollout_ref.model.external_lib"


def check_functions(config: DictConfig) -> None:
    """Call the user's own advantage and token weight once, and look for the modules named by path.

    A step calls the functions minutes later; verl imports the modules in processes of Ray.
    """
    recipe: Any = OmegaConf.to_container(config.recipe, resolve=True)
    rows = int(config.actor_rollout_ref.rollout.n)
    for registry, section in ((ADVANTAGES, "advantage"), (TOKEN_WEIGHTS, "weights")):
        name = recipe[section]["name"]
        if "." not in name:
            continue
        alone = {**recipe, "weights": {"name": "none"}} if section == "advantage" else recipe
        try:
            compute_advantages(trial_batch(rows, config.recipe.rephrasings.count + 1), alone)
        except Exception as error:  # whatever the user's function raises
            raise ConfigError(
                f"{registry.key}={name}: a call on a trial batch of {2 * rows} responses failed: "
                f"{type(error).__name__}: {error}. Correct the function, or set its arguments with "
                f"recipe.{section}.arguments.NAME=VALUE."
            ) from error
    manager = config.reward.reward_manager
    if manager.source == "importlib":
        require_defined(f"{REWARD}.module.path", str(manager.module.path), manager.name)
    module, _, name = str(OmegaConf.select(config, LOOP)).rpartition(".")
    require_defined(LOOP, module or name, name)
    library = OmegaConf.select(config, LIBRARY) or []
    for module in [library] if isinstance(library, str) else library:
        require_defined(LIBRARY, module)


def require_defined(key: str, place: str, name: str = "") -> None:
    """Raise ConfigError unless the module at `place`, a dotted path or a file, has `name`.

    The module is read and not imported, since it may import verl.
    """
    path, module = Path(place.removeprefix("file://")), place.removeprefix("pkg://")
    if path.suffix != ".py":
        try:
            found = importlib.util.find_spec(module.replace("/", "."))
        except (ImportError, ValueError):
            found = None
        if found is None:
            raise ConfigError(
                f"{key}={place}: there is no module {module}. Put the folder of its package into "
                "the PYTHONPATH of recipe.train."
            )
        path = Path(found.origin or "")
    elif not path.is_file():
        raise ConfigError(f"{key}={place}: there is no such file. Correct the path.")
    if path.suffix == ".py" and not re.search(rf"\b{re.escape(name)}\b", path.read_text("utf-8")):
        raise ConfigError(f"{key}={place}: {name} is not defined there. Correct the name.")


def trial_batch(rows: int, rephrasings: int) -> RolloutBatch:
    """Two groups of `rows` responses of 1 to 3 tokens, every second one right."""
    count, each = 2 * rows, max(1, rows // rephrasings)
    lengths = [1 + i % 3 for i in range(count)]
    numbers = [i % rows // each for i in range(count)]
    group_B = torch.arange(count) // rows
    mask_BT = torch.arange(3)[None, :] < torch.tensor(lengths)[:, None]
    logprobs_BT = -0.5 - torch.rand(count, 3, dtype=torch.float64) * mask_BT
    accuracy = [float(i % 2 == 0) for i in range(count)]
    tokens = [torch.arange(length) for length in lengths]
    return RolloutBatch(
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
        entropy_BT=-logprobs_BT,
        prompts=tokens,
        generated_under=tokens,
        responses=tokens,
    )
