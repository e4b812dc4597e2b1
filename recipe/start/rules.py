"""Rules: reject configurations that cannot run, or would silently run something else.

A check takes a `Setup` and yields messages ``KEY=VALUE: what is wrong. What to do.`` A `Rule` is a
check whose message is always the same. ``python -m recipe.train --rules`` lists all checks.
"""

import functools
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from prompt_aug.base.errors import UserError
from prompt_aug.prompts import Prompts
from prompt_aug.templates import Bank, BankError, load_bank
from prompt_aug.typed import shown
from recipe.algorithms import ADVANTAGES
from recipe.algorithms.registry import Facts
from recipe.config.verl import own_gpus
from recipe.errors import ConfigError
from recipe.machine.shapes import fields_of
from recipe.run.folder import RunFolder

ADVANTAGE = "recipe.advantage.name"


class Setup:
    """A composed configuration with its sections and derived sizes; a command makes one.

    Sizes are computed when they are read: types may be unchecked, and values may change.
    """

    def __init__(self, config: DictConfig, *, here: bool = True, gpu: str | None = None) -> None:
        self.config = config
        self.here = here  # False: the run is planned for another machine
        self.gpu = gpu  # of that machine, by its name in `recipe.machine.memory`
        self.recipe, self.data, self.trainer = config.recipe, config.data, config.trainer
        self.algorithm, self.correction = config.algorithm, config.algorithm.rollout_correction
        self.filter = config.algorithm.filter_groups
        self.actor, self.ref = config.actor_rollout_ref.actor, config.actor_rollout_ref.ref
        self.rollout, self.model = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model
        self.mode = config.trainer.v1.trainer_mode
        self.reward, self.curriculum = config.recipe.reward, config.recipe.curriculum
        self.advantage, self.weights = config.recipe.advantage.name, config.recipe.weights.name
        self.rephrasings = config.recipe.rephrasings.count
        self.critic = bool(config.critic.enable)
        self.value_model = bool(self.curriculum.value_model)
        self.batch, self.mini = config.data.train_batch_size, self.actor.ppo_mini_batch_size

    @property
    def folder(self) -> RunFolder:
        return RunFolder(Path(self.recipe.run_dir))

    @property
    def gpus(self) -> int:
        """GPUs, or devices, of the actor."""
        return int(self.trainer.nnodes * self.trainer.n_gpus_per_node)

    @property
    def engine_gpus(self) -> int:
        return own_gpus(self.config) or self.gpus

    @property
    def mini_rows(self) -> int:
        return int(self.mini * self.rollout.n)

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with the longest response."""
        return int(self.data.max_prompt_length + self.data.max_response_length)

    def get(self, key: str) -> Any:
        """Return the value of a key, None if it is not set."""
        value = OmegaConf.select(self.config, key)
        return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value

    def named(self, key: str) -> str:
        """Return ``key=value``, of a section its name."""
        value = self.get(key)
        return key if isinstance(value, dict) else f"{key}={shown(value)}"

    def message(self, keys: str, text: str) -> str:
        """Return a message about keys, separated by spaces, with their values."""
        return f"{' with '.join(map(self.named, keys.split()))}: {text}"

    @functools.cached_property
    def prompts(self) -> Prompts:
        """The renderer of questions, once the templates are checked."""
        return Prompts.from_config(self.config)

    @functools.cached_property
    def bank(self) -> Bank:
        """The templates by name; ConfigError for a missing or malformed bank."""
        try:
            return load_bank(self.recipe.augment.bank, self.recipe.augment.format)
        except BankError as error:
            raise ConfigError(f"{self.named('recipe.augment.bank')}: {error}") from error

    @property
    def templates(self) -> list[str]:
        """Names of the templates that a training prompt may be drawn from."""
        return list(self.recipe.augment.templates or self.bank.names)

    @functools.cached_property
    def facts(self) -> Facts:
        """The requirements of the advantage; ConfigError for an unknown advantage."""
        return ADVANTAGES.facts(self.advantage)

    @property
    def group_size(self) -> int:
        """Responses over which an advantage is normalized."""
        by_rephrasing = self.facts.group == "rephrasing"
        return int(self.rollout.n // (self.rephrasings + 1 if by_rephrasing else 1))

    @property
    def model_fields(self) -> dict[str, Any]:
        """Fields of config.json, also of its part for text, with what overrides them."""
        fields = fields_of(self.recipe.model_path or "")
        parts = (fields.get("text_config"), self.get("actor_rollout_ref.model.override_config"))
        return functools.reduce(lambda a, b: a | b if isinstance(b, dict) else a, parts, fields)

    @property
    def own_loss(self) -> bool:
        """True for a loss of the user: `_target_` names a class outside verl and this project."""
        target = str(self.actor.policy_loss.get("_target_") or "verl.")
        return not target.startswith(("verl.", "recipe."))

    @property
    def loss(self) -> str | None:
        """verl's loss by name; None for a loss of the user, whose properties are not known."""
        return None if self.own_loss else str(self.actor.policy_loss.loss_mode)

    @property
    def reference(self) -> bool:
        """True if a reference model computes log-probabilities."""
        return bool(self.actor.use_kl_loss or self.algorithm.use_kl_in_reward)

    @property
    def ranks(self) -> int:
        """Data-parallel ranks, over which a mini-batch is divided."""
        return max(1, self.gpus // self.sequence_ranks())

    @property
    def micro_rows(self) -> int:
        """Responses of a micro-batch, 0 if it is not set."""
        return int(self.actor.ppo_micro_batch_size_per_gpu or 0)

    def sequence_ranks(self, role: str = "actor") -> int:
        """Return the ranks over which a sequence of a role (actor, ref) is divided."""
        return int(self.get(self.sequence_key(role)) or 1)

    def sequence_key(self, role: str) -> str:
        """Return the key that decides: verl's old one if it is above 1, else its new one.

        The old key of the reference model follows the actor's.
        """
        old, new = (
            f"actor_rollout_ref.{role}.{section}ulysses_sequence_parallel_size"
            for section in ("", "fsdp_config.")
        )
        return old if int(self.get(old) or 1) > 1 else new


Check = Callable[[Setup], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Rule:
    """Reject the configuration if `when` is true; `keys` begin the message, with their values."""

    keys: str  # separated by spaces
    when: Callable[[Setup], Any]
    message: str

    def __call__(self, setup: Setup) -> Iterator[str]:
        if self.when(setup):
            yield setup.message(self.keys, self.message)


def is_missing(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is None
    except (ImportError, ValueError):
        return True


def note(text: str) -> None:
    """Print what does not prevent a run."""
    print(f"recipe.train: note: {text}", file=sys.stderr)


def messages(checks: Iterable[Check], setup: Setup) -> list[str]:
    """Return the messages of all checks, each once."""
    texts: dict[str, None] = {}
    for check in checks:
        try:
            texts.update(dict.fromkeys(check(setup)))
        except UserError as error:  # also BankError, of what a check reads
            texts[str(error)] = None
    return list(texts)


def refuse(checks: Iterable[Check], setup: Setup) -> None:
    """Raise ConfigError with the messages of all checks, one a line."""
    if errors := messages(checks, setup):
        raise ConfigError("\n".join(errors))


def page(themes: dict[str, list[Check]]) -> str:
    """Return the checks by theme: a line for each rule and function."""
    lines = []
    for theme, checks in themes.items():
        lines += [f"# {theme}"]
        for check in checks:
            if isinstance(check, Rule):
                lines.append(f"{check.keys.replace(' ', ' with ')}: {check.message}")
            else:
                lines.append((check.__doc__ or "").split("\n")[0])
    return "\n".join(lines)
