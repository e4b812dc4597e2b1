"""The registry of algorithms: names and dotted paths -> functions, with their requirements.

An algorithm is a function with a decorator, in a file of this folder or anywhere on the PYTHONPATH:

    from recipe.algorithms.registry import advantage

    @advantage(nonnegative_rewards=True)
    def mine(rewards_B, group_B): ...

    python -m recipe.train grpo recipe.advantage.name=my_package.my_module.mine

Functions of this folder are registered under their names. Any other function is given by its dotted
path; it needs the decorator only to declare requirements. To validate a configuration, call
``ADVANTAGES.call(config.recipe.advantage)`` or ``TOKEN_WEIGHTS.call(config.recipe.weights)``, which
raise ConfigError for an unknown name and for bad settings. ``ADVANTAGES.facts(name)`` has the
requirements of a function.
"""

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from omegaconf import OmegaConf

from recipe.algorithms import verl_estimators
from recipe.errors import ConfigError

Function = Callable[..., torch.Tensor]
F = TypeVar("F", bound=Function)


@dataclass(frozen=True, kw_only=True, slots=True)
class Facts:
    """Requirements of a function.

    `inputs` are attributes of `recipe.algorithms.rollouts.RolloutBatch`, passed as keywords of
    the same name; a token weight may also name ``tokens``, its validated inputs
    (`recipe.algorithms.tokens.Tokens`). `settings` converts the function's section of the
    configuration (``recipe.weights.<name>``, ``arguments``) to keyword arguments and raises
    ValueError for bad values; by default the section itself holds the arguments. `group`: the
    responses to a "question" with its rephrasings, or to each "rephrasing". `rephrasings`: the
    method is defined only with rephrasings. `parts`: "accuracy" and "format" if the function takes
    these in place of the summed reward. `critic`: it reads a critic's values and returns the
    critic's targets too. `equal_accuracy`: groups that are all right or all wrong have a signal.
    """

    inputs: tuple[str, ...] = ()
    settings: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
    group: str = "question"
    rephrasings: bool = False
    nonnegative_rewards: bool = False
    uses_rewards: bool = True
    parts: tuple[str, ...] = ()
    critic: bool = False
    equal_accuracy: bool = False


FACTS = "recipe_facts"  # the attribute of a decorated function; callable objects may have no hash


class Registry(dict[str, Function]):
    """Name -> function; a name with a dot is the path of a function of another package."""

    def __init__(self, key: str) -> None:
        super().__init__()
        self.key = key  # of the configuration, for error messages

    def resolve(self, name: str) -> Function:
        """The function of a name or dotted path; ConfigError if there is none."""
        if name in self:
            return self[name]
        if name.startswith("verl:") and self is ADVANTAGES:
            return verl_estimators.estimator(name.removeprefix("verl:"))
        module, _, attribute = name.rpartition(".")
        if not module:
            raise ConfigError(
                f"{self.key}={name}: known are {', '.join(self)}. Choose one, or give the dotted "
                "path of your own function, my_package.my_module.my_function"
            )
        if not all(part.isidentifier() for part in name.split(".")):
            raise ConfigError(f"{self.key}={name}: not a dotted path. Write my_module.my_function")
        try:
            imported = importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(
                f"{self.key}={name}: {error}. Put the folder that holds {module.partition('.')[0]} "
                "into the PYTHONPATH of recipe.train"
            ) from error
        except Exception as error:  # the user's module may raise anything
            raise ConfigError(
                f"{self.key}={name}: {module} cannot be imported ({type(error).__name__}: {error})"
            ) from error
        function = getattr(imported, attribute, None)
        if not callable(function):
            raise ConfigError(
                f"{self.key}={name}: {module} has no function {attribute}. Correct the name"
            )
        return function

    def facts(self, name: str) -> Facts:
        """The requirements of the function, by default none. Errors as `resolve`."""
        if name.startswith("verl:"):
            critic = name == f"verl:{verl_estimators.GAE}"
            parts = ("accuracy", "format") if name == "verl:gdpo" else ()
            return Facts(inputs=verl_estimators.INPUTS, critic=critic, parts=parts)
        function = self.resolve(name)
        while isinstance(function, functools.partial) and not hasattr(function, FACTS):
            function = function.func
        return getattr(function, FACTS, Facts())

    def call(self, section: Mapping[str, Any]) -> tuple[Function, dict[str, Any]]:
        """(function, keyword arguments) of a section {name, arguments, <name>: settings}.

        ConfigError for an unknown name and for invalid settings.
        """
        if OmegaConf.is_config(section):  # lists and mappings as in the launch checks
            plain: Any = OmegaConf.to_container(section, resolve=True)
            section = plain
        name = section["name"]
        function, facts = self.resolve(name), self.facts(name)
        place = name if name in section else "arguments"
        settings = {**(section.get(place) or {}), **(section.get("arguments") or {})}
        where = self.key.removesuffix("name") + place
        if facts.settings is None:
            _require_known_arguments(function, name, settings, where)
            return function, settings
        try:
            return function, facts.settings(settings)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{where}: {error}") from error


def _require_known_arguments(
    function: Function, name: str, settings: Mapping[str, Any], where: str
) -> None:
    """Raise ConfigError for a keyword argument that `function` does not accept."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    if unknown := sorted(set(settings) - set(parameters)):
        raise ConfigError(
            f"{where}: {name} takes no {', '.join(unknown)}; its arguments are "
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
        setattr(function, FACTS, Facts(**facts))
        if function.__module__.startswith("recipe.algorithms."):
            registry[function.__name__] = function
        return function

    return add
