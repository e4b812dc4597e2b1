"""Settings written as ``key=value``, applied to a configuration and taken back."""

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf, open_dict

ABSENT = "(absent)"


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
