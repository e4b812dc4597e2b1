"""Names and dotted paths -> functions, with what each of them asks of a run.

An algorithm is a function with a decorator, in a file of its own in this folder or anywhere in the
PYTHONPATH:

    from recipe.algorithms.registry import advantage

    @advantage(nonnegative_rewards=True)
    def mine(rewards_B, group_B): ...

    python -m recipe.train grpo recipe.advantage.name=my_package.my_module.mine

Files of this folder are found by themselves, under the name of the function. Any other function is
named by its dotted path, and the decorator may be left out where there is nothing to say. Whoever
checks a configuration calls ``ADVANTAGES.call(config.recipe.advantage)`` or
``TOKEN_WEIGHTS.call(config.recipe.weights)``, which raise ConfigError for an unknown name and for
bad settings, and reads ``ADVANTAGES.facts(name)`` for what else must hold.
"""

import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from recipe.algorithms import verl_estimators
from recipe.errors import ConfigError

Function = Callable[..., torch.Tensor]
F = TypeVar("F", bound=Function)


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """What a function asks of a run, beside its name.

    `inputs` are attributes of `recipe.algorithms.rollouts.RolloutBatch`, passed as keywords of
    the same name. `settings` makes keyword arguments of what the configuration says
    (``recipe.weights.<name>``, ``arguments``), and raises ValueError for bad ones; without it those
    are the arguments. `group`: the only one of "question" and "rephrasing" that the
    name stands for. `rephrasings`: without rephrasings it is another method.
    `parts`: "accuracy" and "format" if the function takes these in place of the summed reward.
    """

    inputs: tuple[str, ...] = ()
    settings: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
    group: str | None = None
    rephrasings: bool = False
    nonnegative_rewards: bool = False
    uses_rewards: bool = True
    parts: tuple[str, ...] = ()


_FACTS: dict[Function, Facts] = {}


class Registry(dict[str, Function]):
    """Name -> function; a name with a dot is the path of one that lies elsewhere."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key  # of the configuration, for messages

    def resolve(self, name: str) -> Function:
        """The function of a name or dotted path; ConfigError where there is none."""
        if name in self:
            return self[name]
        if name.startswith("verl:") and self is ADVANTAGES:
            return verl_estimators.estimator(name.removeprefix("verl:"))
        module, _, attribute = name.rpartition(".")
        if not module:
            raise ConfigError(
                f"{self.key}={name}: known are {', '.join(self)}; or the dotted path of a function "
                "of yours, my_package.my_module.my_function"
            )
        if not all(part.isidentifier() for part in name.split(".")):
            raise ConfigError(f"{self.key}={name}: no dotted path as my_module.my_function")
        try:
            function = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"{self.key}={name}: {error}. The folder that holds {module.partition('.')[0]} "
                "must be in the PYTHONPATH of recipe.train"
            ) from error
        except Exception as error:  # whatever the user's module raises
            raise ConfigError(
                f"{self.key}={name}: {module} cannot be imported ({type(error).__name__}: {error})"
            ) from error
        if not callable(function):
            raise ConfigError(f"{self.key}={name} is not a function, but {function!r}")
        return function

    def facts(self, name: str) -> Facts:
        """What the function asks of a run; nothing, where it does not say. Errors as `resolve`."""
        if name.startswith("verl:"):
            return Facts(inputs=verl_estimators.INPUTS)
        return _FACTS.get(self.resolve(name), Facts())

    def call(self, section: Mapping[str, Any]) -> tuple[Function, dict[str, Any]]:
        """(function, keyword arguments) of a section {name, arguments, <name>: settings}.

        Settings are those under ``arguments``, and under the function's own name where the section
        has such a key. ConfigError for an unknown name and for settings that it refuses.
        """
        name = section["name"]
        function, facts = self.resolve(name), self.facts(name)
        place = name if name in section else "arguments"
        settings = {**(section.get(place) or {}), **(section.get("arguments") or {})}
        where = self.key.removesuffix("name") + place
        if facts.settings is None:
            _refuse_unknown(function, settings, where)
            return function, settings
        try:
            return function, facts.settings(settings)
        except ValueError as error:
            raise ConfigError(f"{where}: {error}") from error


def _refuse_unknown(function: Function, settings: Mapping[str, Any], where: str) -> None:
    """ConfigError for a keyword argument that `function` does not take: it would fail in a step."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    if unknown := sorted(set(settings) - set(parameters)):
        raise ConfigError(
            f"{where}: {function.__name__} takes no {', '.join(unknown)}; its arguments are "
            f"{', '.join(parameters)}"
        )


ADVANTAGES = Registry("recipe.advantage.name")
TOKEN_WEIGHTS = Registry("recipe.weights.name")


def advantage(**facts: Any) -> Callable[[F], F]:
    """Register (rewards_B, group_B, **arguments) -> advantages_B; the keywords are `Facts`."""
    return _decorator(ADVANTAGES, facts)


def token_weight(**facts: Any) -> Callable[[F], F]:
    """Register (logprobs_BT, advantages_BT, mask_BT, group_B, **arguments) -> weights_BT."""
    return _decorator(TOKEN_WEIGHTS, facts)


def _decorator(registry: Registry, facts: dict[str, Any]) -> Callable[[F], F]:
    def add(function: F) -> F:
        _FACTS[function] = Facts(**facts)
        if function.__module__.startswith("recipe.algorithms."):
            registry[function.__name__] = function
        return function

    return add
