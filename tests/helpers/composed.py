"""Composed examples, each made once in a test session: hydra takes half a second for one."""

import contextlib
import copy
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf, open_dict

ABSENT = "(absent)"
# Abbreviations of sections in the settings of tests: ``{A}.optim.lr``.
SHORT = {
    "A": "actor_rollout_ref.actor",
    "R": "actor_rollout_ref.rollout",
    "REF": "actor_rollout_ref.ref",
    "MODEL": "actor_rollout_ref.model",
    "C": "algorithm.rollout_correction",
    "LOSS": "actor_rollout_ref.actor.policy_loss.loss_mode",
}


@functools.cache
def composed(example: str, *overrides: str) -> Any:
    """The configuration of an example; shared by all tests, so copy it before a change."""
    from recipe.config.compose import compose_config  # whose import imports this module

    return compose_config(example, list(overrides))


def is_of_a_key(override: Override) -> bool:
    """Return True for `a.b=1`, which chooses no files; False for `method=dapo` and hydra's own."""
    key = override.key_or_group
    return "." in key and override.package is None and not key.startswith("hydra.")


def merging_once(compose: Callable[..., Any], examples: Path) -> Callable[..., Any]:
    """Return hydra's `compose`, with each example's files merged once for each choice of groups.

    Merging takes four fifths of the time. Overrides of keys are applied to a copy, by the function
    of hydra that applies them. Examples of other folders are composed as they are, since a test may
    change their files. tests/recipe/test_compose.py compares the results.
    """
    merged: dict[tuple[str, ...], Any] = {}

    def quick(config_name: str, overrides: list[str], **how: Any) -> Any:
        path = GlobalHydra.instance().config_loader().get_search_path().get_path()
        (folder,) = [place.path for place in path if place.provider == "main"]
        if not Path(folder.removeprefix("file://")).is_relative_to(examples):
            return compose(config_name, overrides=overrides, **how)
        parsed = OverridesParser.create().parse_overrides(overrides)
        groups = [str(o.input_line) for o in parsed if not is_of_a_key(o)]
        if (chosen := (folder, config_name, *groups)) not in merged:
            merged[chosen] = compose(config_name, overrides=groups, **how)
        config = copy.deepcopy(merged[chosen])
        ConfigLoaderImpl._apply_overrides_to_config([o for o in parsed if is_of_a_key(o)], config)
        return config

    return quick


@contextlib.contextmanager
def changed(config: Any, settings: list[str]) -> Iterator[Any]:
    """Apply settings to a shared configuration; a copy of it would take most of a test's time."""
    parsed = OverridesParser.create().parse_overrides(settings)
    before = {}
    for key in (override.key_or_group for override in parsed):
        before.setdefault(key, copy.deepcopy(OmegaConf.select(config, key, default=ABSENT)))
    try:
        for override in parsed:
            OmegaConf.update(config, override.key_or_group, override.value(), force_add=True)
        yield config
    finally:
        for key, value in before.items():
            section, _, name = key.rpartition(".")
            if value == ABSENT:
                with open_dict(config):
                    del OmegaConf.select(config, section)[name]
            else:
                OmegaConf.update(config, key, value, merge=False)
