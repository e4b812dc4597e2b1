"""Compositions without an example: every key that exists, with its default."""

import contextlib
import functools
import importlib.util
import re
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import OmegaConf

from prompt_aug.typed import flat
from recipe.config.settings import defaults
from recipe.errors import ConfigError
from recipe.machine import host

CONFIG = Path(__file__).resolve().parent
ROOT = "recipe"  # this project's composition; verl's own is ppo_trainer
ConfigStore.instance().store("settings", {"recipe": defaults()})
# ${checkout:PATH}: a file of this checkout, from any working folder.
OmegaConf.register_new_resolver("checkout", lambda path: str(host.ROOT / path))


def verl_config() -> Path:
    """Return the folder of verl's own configuration, found without importing verl."""
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("verl is not installed: see `python -m recipe.doctor`")
    return Path(spec.submodule_search_locations[0]) / "trainer" / "config"


def quoted(text: object) -> str:
    """Return a text as the value of an override, in quotes unless it is surely a plain path."""
    if re.fullmatch(r"[\w.:-]*/[\w./:-]*", str(text), re.ASCII):
        return str(text)
    return str(QuotedString(text=str(text), quote=Quote.single).with_quotes())


def readable(text: str) -> str:
    """Return KEY=VALUE, with quotes if hydra cannot read VALUE or reads several: ``my run (1)``."""
    key, _, value = text.partition("=")
    if value[:1] in ("", *"[{'\""):
        return text
    try:
        is_one = not OverridesParser.create().parse_override(f"key={value}").is_sweep_override()
    except HydraException:
        is_one = False
    return text if is_one else f"{key}={quoted(value)}"


def search_path(*folders: Path) -> str:
    """Return the override that adds `folders` and verl's configuration to hydra's search path.

    As a file path: ``pkg://verl`` would import verl before its platform is chosen.
    """
    places = (quoted(f"file://{place}") for place in (*folders, verl_config()))
    return f"hydra.searchpath=[{','.join(places)}]"


@contextlib.contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Let hydra compose the files of `folder`, with yaml's parser in C, which is ten times faster.

    OmegaConf derives its loader from `yaml.SafeLoader` at each call.
    """
    python_loader = yaml.SafeLoader
    yaml.SafeLoader = yaml.CSafeLoader
    try:
        with initialize_config_dir(str(folder), version_base=None):
            yield
    finally:
        yaml.SafeLoader = python_loader


def base(root: str = ROOT) -> dict[str, Any]:
    """Return a composition without groups: all keys that exist, with their defaults."""
    return _base(root)


@functools.cache
def _base(root: str) -> dict[str, Any]:
    ours = root == ROOT
    with reading(CONFIG if ours else verl_config()):
        config = compose(root, overrides=[search_path(), "~machine"] if ours else [])
    content: Any = OmegaConf.to_container(config, resolve=False)
    return content


@functools.cache
def default_values(root: str = ROOT) -> dict[str, Any]:
    """Return every key of `base` with its default, which callers must not change."""
    return dict(flat(base(root)))


@functools.cache
def known_keys(root: str = ROOT) -> frozenset[str]:
    """Return the full name of every key and section of `base`."""
    parts = (key.split(".") for key in default_values(root))
    return frozenset(name for names in parts for name in accumulate(names, "{}.{}".format))


def is_in(key: str, sections: Iterable[str]) -> bool:
    """Return True if `key` is one of the sections or below it."""
    return any(f"{key}.".startswith(f"{section}.") for section in sections)
