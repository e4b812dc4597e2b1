"""Output of `recipe.train` without training: the examples, every key, and notes on a method."""

from pathlib import Path
from typing import Any

from hydra import compose
from omegaconf import OmegaConf

from prompt_aug.typed import shown
from recipe.config.base import CONFIG, flat, reading, search_path
from recipe.config.compose import (
    EXAMPLES,
    by_key,
    compose_config,
    example_folder,
    example_names,
    group_names,
    on_this_machine,
    with_plus,
)
from recipe.errors import ConfigError


def examples_and_methods() -> str:
    """Return a line for each example, method, scale and machine, with its file's first comment."""
    lines = ["Examples: python -m recipe.train NAME"]
    lines += [
        f"  {name:<21} {_headline(EXAMPLES / name / 'config.yaml')}" for name in example_names()
    ]
    for group in ("method", "published", "scale", "machine"):
        lines += ["", f"{group.capitalize()}: {group}=NAME with any example"]
        files = [CONFIG / group / f"{name}.yaml" for name in group_names(group)]
        lines += [f"  {path.stem:<21} {_headline(path)}" for path in files]
    return "\n".join(lines)


def every_key(example: str, overrides: list[str]) -> str:
    """Return every key of the resolved configuration, a line ``key=value`` each."""
    config: Any = OmegaConf.to_container(compose_config(example, overrides), resolve=True)
    return "\n".join(f"{key}={shown(value)}" for key, value in flat(config))


def notes(example: str, overrides: list[str]) -> list[str]:
    """Return a message for each value of `method=NAME` that a file of the example replaces.

    ConfigError for the keys of `recipe`: the run would be another method.
    """
    chosen = [text for text in overrides if text.startswith("method=")]
    if not chosen:
        return []
    folder = example_folder(example)
    overrides = on_this_machine(folder, list(map(with_plus, overrides)))
    with reading(folder):
        config = compose("config", overrides=[search_path(CONFIG), *overrides])
    final, given = dict(flat(OmegaConf.to_container(config, resolve=False))), by_key(overrides)
    replaced = {
        key: f"{key}={shown(final.get(key))}: a file of {example} sets this, and {chosen[-1]} "
        f"{shown(value)}. Add {key}=VALUE to choose one, or train another example."
        for key, value in _of_method(folder, chosen[-1].removeprefix("method=")).items()
        if value != "?" and final.get(key) != value and key not in given
    }
    if errors := [why for key, why in replaced.items() if key.startswith("recipe.")]:
        raise ConfigError("\n".join(errors))
    return list(replaced.values())  # the loss of the example, as of a baseline


def _of_method(folder: Path, name: str) -> dict[str, Any]:
    """Return key -> value of a method's file, after those of the methods in its `defaults`."""
    paths = (place / "method" / f"{name}.yaml" for place in (folder, CONFIG))
    path = next((path for path in paths if path.is_file()), None)
    if path is None:  # `_self_`, or null
        return {}
    content: Any = OmegaConf.to_container(OmegaConf.load(path))
    values = dict[str, Any]()
    for other in content.pop("defaults", []):
        values |= _of_method(folder, other) if isinstance(other, str) else {}
    return values | dict(flat(content))


def _headline(path: Path) -> str:
    """Return the first comment of a yaml file."""
    comments = [x for x in path.read_text(encoding="utf-8").splitlines() if x.startswith("# ")]
    return next((x[2:] for x in comments if not x.startswith("# @package")), "")
