"""Compose an example into its resolved configuration, with every key and value checked.

Hydra merges verl's configuration, recipe.yaml, the groups that the example chooses, the example's
config.yaml and the overrides of the command line; the last one wins. A key that neither verl nor
recipe.yaml has is rejected wherever it is set: hydra lets a file add any key, and an override with
``+``, and nothing would read it.
"""

import contextlib
import difflib
import functools
import importlib.util
import os
import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import accumulate
from pathlib import Path
from typing import Any

import yaml
from hydra import compose, initialize_config_dir
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from prompt_aug.typed import check_yaml, closest, shown
from recipe.config.schema import LOSS, LOSSES, SWITCHES, check_engine, check_types
from recipe.config.sizes import set_sizes
from recipe.errors import ConfigError
from recipe.run.host import gpus_here

ONE_RUN = (
    "hydra only composes the configuration here, so its own options and keys have no effect. Set "
    "the run folder with recipe.run_dir=..., and start each run with its own command"
)
EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
CONFIG = Path(__file__).resolve().parent
# Keyword arguments of a function, whose signature `recipe.algorithms.registry` checks, and mappings
# whose keys are data sources, which `recipe.preflight.data` checks.
ARGUMENTS = (
    *("recipe.advantage.arguments", "recipe.weights.arguments"),
    *("recipe.reward.verifiers", "recipe.source_weights", "eval.verifiers"),
)
# Sections that verl passes on as keyword arguments of other libraries: any key may be added there.
OPEN = (
    "ray_kwargs",
    "data.apply_chat_template_kwargs",
    "actor_rollout_ref.model.override_config",
    "actor_rollout_ref.rollout.engine_kwargs",
    "actor_rollout_ref.actor.optim.override_optimizer_config",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision",
    "actor_rollout_ref.ref.fsdp_config.mixed_precision",
    "critic.fsdp.mixed_precision",
    *ARGUMENTS,
)
MOVED = CONFIG / "moved.yaml"
# Values of a switch that turn a feature off; 0 is False.
OFF = (None, False, "none", "off", "vanilla")
PLAIN = re.compile(r"""[^\[{'"~].*""")  # a value that hydra's syntax of lists, ... does not begin
# Raised by hydra for an unusable file or choice. A truncated file raises no class of its own.
COMPOSING = (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError, TypeError)


def example_names() -> list[str]:
    """Return the examples of this project: folders in examples/ with a config.yaml."""
    return sorted(str(p.parent.relative_to(EXAMPLES)) for p in EXAMPLES.rglob("config.yaml"))


def group_names(group: str) -> list[str]:
    """Return the files of a group: machine, scale, method or published."""
    return sorted(path.stem for path in (CONFIG / group).glob("*.yaml"))


def example_folder(example: str) -> Path:
    """Return the folder of an example, by name or path; ConfigError with the known names."""
    for folder in (EXAMPLES / example, Path(example)):
        if example.strip() and (folder / "config.yaml").is_file():
            return folder.resolve()
    near = closest(example, example_names()) or f": known are {', '.join(example_names())}."
    raise ConfigError(
        f"no example '{example}'{near} Or name a folder of your own that holds a config.yaml."
    )


def readable(text: str) -> str:
    """Return an override that hydra can read: plain text quoted, ``++`` before a key of the user's.

    Text that hydra reads already is not changed.
    """
    parse = OverridesParser.create().parse_override
    key, equals, value = text.partition("=")
    name = key.lstrip("+")
    if equals and (is_in(name, ARGUMENTS) or _is_field(name)):
        key = f"++{name}"
    quoted = "'" + value.replace("'", "\\'") + "'"
    with contextlib.suppress(HydraException):
        parse(f"{key}{equals}{value}")
        return f"{key}{equals}{value}"
    with contextlib.suppress(HydraException):
        if PLAIN.fullmatch(value) and parse(f"{key}={quoted}").value() == value:
            return f"{key}={quoted}"
    return text


def on_this_machine(folder: Path, overrides: list[str]) -> list[str]:
    """Return the overrides with this machine's group, cpu or gpu, unless one is chosen.

    A choice is ``machine=NAME`` or the example's ``override machine: NAME``; ``auto`` is none. The
    variable RECIPE_MACHINE replaces the search for GPUs, as on a login node.
    """
    chosen = [text for text in overrides if text.startswith("machine=")]
    # As text: a file that hydra cannot read gets its message later.
    text = (folder / "config.yaml").read_text(encoding="utf-8", errors="replace")
    of_file = re.findall(r"override machine:\s*(\w+)", text)
    if (chosen or of_file)[-1:] not in ([], ["machine=auto"], ["auto"]):
        return overrides
    if not re.search(r"^defaults:.*\brecipe\b", text, re.DOTALL | re.MULTILINE):
        return overrides
    gpus = gpus_here()
    name = os.environ.get("RECIPE_MACHINE") or ("gpu" if gpus else "cpu")
    count = [f"trainer.n_gpus_per_node={gpus}"] if name == "gpu" and gpus else []
    rest = [text for text in overrides if text not in chosen]
    return [f"machine={name}", *count, *rest]


def compose_config(example: str, overrides: list[str], *, allow_unread: bool = False) -> DictConfig:
    """Return the resolved configuration of an example; overrides in hydra's syntax or plain text.

    `allow_unread`: also overrides of keys whose feature is switched off.

    Raises ConfigError, one line a problem, for a file that cannot be read, an unknown key, group or
    choice, and for values that `recipe.config.schema` rejects.
    """
    folder = example_folder(example)
    overrides = on_this_machine(folder, list(map(readable, overrides)))
    found = dict.fromkeys(why for text in overrides if (why := _refused(text, folder)))
    if found:
        raise ConfigError("\n".join(found))
    for path in (*folder.glob("*.yaml"), *folder.glob("*/*.yaml")):
        with contextlib.suppress(yaml.YAMLError):  # hydra raises it if it reads the file
            check_yaml(path.read_text(encoding="utf-8", errors="replace"), str(path))
    try:
        with initialize_config_dir(str(folder), version_base=None):
            config = compose(
                "config", overrides=[search_path(CONFIG), *overrides], return_hydra_config=True
            )
        # Lets a file use ${hydra:runtime.choices.method}, the name of the chosen method.
        HydraConfig.instance().set_config(config)
        with open_dict(config):
            del config["hydra"]
        _check_keys(config, folder, _given(overrides))
        if "hydra" in OmegaConf.load(folder / "config.yaml"):
            raise ConfigError(f"{folder.name}/config.yaml, section hydra: {ONE_RUN}")
        check_engine(config)
        _name_one_model(config, overrides)
        set_sizes(config)
        OmegaConf.resolve(config)
    except COMPOSING as error:
        raise ConfigError(f"{folder.name}/config.yaml or an override: {one_line(error)}") from error
    check_types(config)
    if not allow_unread:
        _check_switches(config, overrides)
    return config


def verl_config() -> Path:
    """Return the folder of verl's own configuration, found without importing verl."""
    spec = importlib.util.find_spec("verl")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError("verl is not installed: see `python -m recipe.doctor`")
    return Path(spec.submodule_search_locations[0]) / "trainer" / "config"


def search_path(*folders: Path) -> str:
    """Return the override that adds `folders` and verl's configuration to hydra's search path.

    As a file path: ``pkg://verl`` would import verl before its platform is chosen.
    """
    return f"hydra.searchpath=[{','.join(f'file://{p}' for p in (*folders, verl_config()))}]"


@functools.cache
def base() -> dict[str, Any]:
    """Return recipe.yaml over verl's configuration, without groups: all keys that exist."""
    with initialize_config_dir(str(CONFIG), version_base=None):
        config = compose("recipe", overrides=[search_path(), "~machine"])
    content: Any = OmegaConf.to_container(config, resolve=False)
    return content


@functools.cache
def known_keys() -> frozenset[str]:
    """Return the full name of every key and section of `base`."""
    parts = (key.split(".") for key, _ in flat(base()))
    return frozenset(name for names in parts for name in accumulate(names, "{}.{}".format))


def is_open(key: str) -> bool:
    """Return True if keys may be added at `key`."""
    return is_in(key, OPEN)


def is_in(key: str, sections: Iterable[str]) -> bool:
    """Return True if `key` is one of the sections or below it."""
    return any(f"{key}.".startswith(f"{section}.") for section in sections)


def flat(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of a nested mapping; an empty section is a value."""
    if isinstance(node, dict) and node:
        for key, value in node.items():
            yield from flat(value, f"{prefix}{key}.")
    else:
        yield prefix.rstrip("."), node


def one_line(error: BaseException) -> str:
    """Return a library's message without its line breaks, search paths and repetitions."""
    lines = [line.strip() for line in str(error).partition("Config search path")[0].splitlines()]
    told = [line for line in lines if line and not line.startswith(("full_key:", "object_type="))]
    return " ".join(told) or type(error).__name__


def _refused(text: str, folder: Path) -> str | None:
    """Return why an override is rejected: an unknown key, also behind a ``+``, a sweep, ..."""
    try:
        override = OverridesParser.create().parse_override(text)
    except HydraException as error:
        why = f": {one_line(error)}" if "=" in text else f". Write {text}=VALUE."
        return f"'{text}' is not an override of the form key=value{why}"
    key = override.key_or_group
    places = [p / key for p in (folder, CONFIG) if (p / key).is_dir()]
    is_group = override.package is not None or bool(places)
    if key.partition(".")[0].partition("/")[0] == "hydra":
        return f"'{text}': {ONE_RUN}"
    if override.is_delete():
        return f"'{text}' deletes a key, which verl would miss. Set {key}=null."
    if override.is_sweep_override():
        return (
            f"'{text}' is a sweep over several values, and one run has one. Quote text that holds "
            f"a comma, or write a list as '{key}=[a, b]'."
        )
    if key == "recipe.method":
        return f"{text}: this is the name of the chosen method. Write method={override.value()}."
    if isinstance(base().get(key), dict) and not isinstance(override.value(), dict):
        return f"{text}: {key} is a section of keys, not a value"
    choices = sorted({path.stem for place in places for path in place.glob("*.yaml")})
    if isinstance(choice := override.value(), str) and places and choice not in choices:
        return (
            f"{text}: no such file{closest(choice, choices) or '.'} Use one of "
            f"{', '.join(choices)}, or your own {key}/{choice}.yaml in the folder of your example."
        )
    known = key in known_keys() or is_open(key) or _is_field(key)
    return None if is_group or known else unknown_key(key)


def _is_field(key: str) -> bool:
    """Return True for an unknown key of a section with a class, which may be the user's."""
    return key not in known_keys() and f"{key.rpartition('.')[0]}._target_" in known_keys()


def _check_keys(config: DictConfig, folder: Path, given: dict[str, str]) -> None:
    """Reject keys that `base` does not have, and a value where it has a section.

    A section that is empty in `base` takes any key. `given`: the keys of the command line.
    """
    where = f"{folder.name}/config.yaml or one of its groups: "

    def walk(node: Any, known: Any, prefix: str) -> None:
        # Another class than verl's own has other keys, and itself rejects unknown ones.
        other_class = node.get("_target_") != known.get("_target_")
        for key, value in node.items():
            name = f"{prefix}{key}"
            if is_open(name) or (other_class and key not in known):
                continue
            if key not in known:
                raise ConfigError(where * (name not in given) + unknown_key(name))
            if isinstance(known[key], dict) and known[key]:
                if not isinstance(value, dict):
                    raise ConfigError(f"{name}={value}: this is a section of keys, not a value")
                walk(value, known[key], f"{name}.")

    walk(OmegaConf.to_container(config, resolve=False), base(), "")
    if "recipe" not in config:
        raise ConfigError(f"{where}no section recipe: `defaults` has to begin with `- recipe`")


def _name_one_model(config: DictConfig, overrides: list[str]) -> None:
    """Set `recipe.model_path` to verl's key of the model where only that one was set."""
    path, ours = config.actor_rollout_ref.model.path, config.recipe.model_path
    if path == ours:
        return
    if "recipe.model_path" in _given(overrides):
        raise ConfigError(
            f"actor_rollout_ref.model.path={path} with recipe.model_path={ours}: these are two "
            "models. Set recipe.model_path alone, which verl's key follows."
        )
    config.actor_rollout_ref.model.path = config.recipe.model_path = path


def _given(overrides: list[str]) -> dict[str, str]:
    """Return key -> override of the command line that sets it, alone or in a section."""
    return {
        key: text
        for text in overrides
        for override in [OverridesParser.create().parse_override(text)]
        for key, _ in flat({override.key_or_group: override.value()})
    }


def _check_switches(config: DictConfig, overrides: list[str]) -> None:
    """Reject overrides of keys that nothing reads, by `SWITCHES`; files may set them.

    An override that turns the switch off allows them: commands for verl set both.
    """
    given, found = _given(overrides), []
    for key, text in given.items():
        if (off := unread(config, key)) is None or (off[0] in given and off[1] in OFF):
            continue
        switch, value, on = off
        wanted = " or ".join(map(shown, on)) if on else "another value"
        found.append(
            f"{text}: no effect with {switch}={shown(value)}. Leave it out, or set that key to "
            f"{wanted}."
        )
    if found:
        raise ConfigError("\n".join(found))


def unread(config: DictConfig, key: str) -> tuple[str, Any, tuple[Any, ...] | None] | None:
    """Return (switch, its value, values with which `key` is read); None if `key` is read."""
    matching = [row for row in SWITCHES if fnmatchcase(key, row[2])]
    longest = max((len(pattern) for *_, pattern in matching), default=0)
    rows = [
        (switch, OmegaConf.select(config, switch), on)
        for switch, on, pattern in matching
        if len(pattern) == longest
    ]
    if not rows or any(value in on if on else value for _, value, on in rows):
        return None
    loss = OmegaConf.select(config, "actor_rollout_ref.actor.policy_loss._target_")
    own_loss = not str(loss).startswith(("verl.", "recipe."))
    if rows[0][0] == LOSS and (own_loss or rows[0][1] not in LOSSES):  # it may read any key
        return None
    return rows[0]


def unknown_key(key: str) -> str:
    """Return the message about a key that does not exist, with what may have been meant."""
    for pattern, text in moved().items():
        if match := re.fullmatch(pattern, key):
            rest = match.groups()[-1] if match.groups() else ""
            return f"no key '{key}': {text.replace('*', rest)}"
    full = sorted(k for k in known_keys() if k.endswith(f".{key}"))
    if full:
        return f"no key '{key}': keys are given in full, as {' or '.join(full[:3])}"
    near = f", did you mean {found}?" if (found := _nearest(key)) else ""
    return f"no key '{key}'{near or ': `python -m recipe.train EXAMPLE --cfg` lists all'}"


@functools.cache
def moved() -> dict[str, str]:
    """Return `MOVED`, the stars of its patterns as groups of regular expressions."""
    given = yaml.safe_load(MOVED.read_text(encoding="utf-8"))
    return {"(.*)".join(map(re.escape, old.split("*"))): text for old, text in given.items()}


def _nearest(key: str) -> str | None:
    """Return the key that may have been meant, never one of another role: a wrong hint costs a run.

    It has the same last name, or is in the same section with a similar last name.
    """
    section, _, last = key.rpartition(".")
    same = [k for k in known_keys() if k.rpartition(".")[2] == last]
    beside = {k.rpartition(".")[2] for k in known_keys() if k.rpartition(".")[0] == section}
    if in_role := difflib.get_close_matches(key, [k for k in same if _role(k) == _role(key)], n=1):
        return in_role[0]
    if alike := difflib.get_close_matches(last, beside, n=1, cutoff=0.75):
        return f"{section}.{alike[0]}"
    return next(iter(difflib.get_close_matches(key, same, n=1, cutoff=0.92)), None)


def _role(key: str) -> str:
    """Return what a key configures: data, trainer, the actor, the rollouts, the critic, ..."""
    return ".".join(key.split(".")[: 2 if key.startswith("actor_rollout_ref.") else 1])
