"""Composed examples, each made once in a test session: hydra takes half a second for one."""

import functools
from typing import Any

from recipe.config.compose import compose_config


@functools.cache
def composed(example: str, *overrides: str) -> Any:
    """The configuration of an example; shared by all tests, so copy it before a change."""
    return compose_config(example, list(overrides))
