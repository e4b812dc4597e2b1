"""Output of `recipe.train` without training: the examples, every key, and notes on a method."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hydra.core.global_hydra import GlobalHydra
from hydra.types import RunMode
from omegaconf import OmegaConf

from prompt_aug.typed import shown
from recipe.config.base import CONFIG, flat, reading, search_path, verl_config
from recipe.config.compose import (
    EXAMPLES,
    compose_config,
    example_folder,
    example_names,
    group_names,
    on_this_machine,
    parsed,
    with_plus,
)
from recipe.config.settings import defaults
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
    of_method, final = dict[str, Any](), dict[str, tuple[Any, str]]()
    for source, values in layers(example, overrides) if chosen else ():
        of_method |= values if "/method/" in source else {}
        final |= {key: (value, source) for key, value in values.items()}
    replaced = {
        key: f"{key}={shown(final[key][0])}: {final[key][1]} sets this, where {chosen[-1]} has "
        f"{shown(value)}. Add {key}=VALUE to choose one, or train another example."
        for key, value in of_method.items()
        if value != "?" and final[key][0] != value and final[key][1] != "command line"
    }
    if errors := [why for key, why in replaced.items() if key.startswith("recipe.")]:
        raise ConfigError("\n".join(errors))
    return list(replaced.values())  # the loss of the example, as of a baseline


def _headline(path: Path) -> str:
    """Return the first comment of a yaml file."""
    comments = [x for x in path.read_text(encoding="utf-8").splitlines() if x.startswith("# ")]
    return next((x[2:] for x in comments if not x.startswith("# @package")), "")


def layers(example: str, overrides: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (file or "command line", its values by key) in the order in which hydra merges them."""
    folder = example_folder(example)
    # `with_plus` composes `base`: before hydra's context
    overrides = on_this_machine(folder, [with_plus(text) for text in overrides])
    with reading(folder):
        loader = GlobalHydra.instance().config_loader()
        tree = loader.compute_defaults_list(
            "config", [search_path(CONFIG), *overrides], RunMode.RUN
        )
        for default in tree.defaults:
            if default.config_path is None or default.config_path.startswith("hydra"):
                continue
            if default.config_path == "settings":
                yield "settings.py", dict(flat({"recipe": defaults()}))
                continue
            name = f"{default.config_path}.yaml"  # the first on hydra's search path
            paths = (place / name for place in (folder, CONFIG, verl_config()))
            path = next(path for path in paths if path.is_file()).resolve()
            content: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
            content.pop("defaults", None)
            package = f"{default.package}." if default.package else ""
            yield _place(path, folder), dict(flat(content, package))
    for text in overrides:
        yield "command line", dict(flat({parsed(text).key_or_group: parsed(text).value()}))


def _place(path: Path, folder: Path) -> str:
    """Return a short name of a file: the example's, this project's, or verl's."""
    for place, short in ((folder, folder.name), (CONFIG, "recipe/config"), (verl_config(), "verl")):
        if path.is_relative_to(place):
            return f"{short}/{path.relative_to(place)}"
    return str(path)
