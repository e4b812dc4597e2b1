"""verl's configuration keys: which exist, have moved, have an effect, and which values they take.

The data are keys.yaml, made by `recipe.preflight.keys`, moved.yaml, `SWITCHES` and `TYPES`. `root`
is the composition that is meant: this project's ``recipe``, or verl's own ``ppo_trainer``.
"""

import difflib
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
from omegaconf import DictConfig, OmegaConf

from prompt_aug.typed import UNSET, adapter, problems
from recipe.config.settings import Recipe, defaults
from recipe.config.switches import LOSS, LOSSES, SWITCHES, Switch
from recipe.config.verl_types import TYPES
from recipe.errors import ConfigError
from recipe.run.evaluation import EvaluationSection

CONFIG = Path(__file__).resolve().parent
KEYS = CONFIG.parent / "preflight" / "keys.yaml"
ROOT = "recipe"
A, R = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
WHY = {  # reasons that a range does not show by itself
    f"{R}.temperature": "greedy responses of a group are all equal, so none has a signal",
    f"{A}.optim.lr": "a rate of 0 or below trains nothing or away from the reward",
    f"{A}.clip_ratio_c": "verl's dual clip is a bound above the ratio 1",
    "trainer.total_training_steps": (
        "a run ends at this step or after trainer.total_epochs, whichever comes first; to count "
        "epochs alone, set 1000000"
    ),
    "data.max_response_length": "a response needs room for at least one token",
    "recipe.augment.templates": "to draw one more often use recipe.augment.weights",
    f"{R}.name": "request seeds, weight transfer and restarts are written for vLLM's server",
    f"{A}.strategy": "Megatron is unsupported, see model_engine",
    "model_engine": "export, LoRA, plan and checks read FSDP's shards and keys",
}
ConfigStore.instance().store("settings", {"recipe": defaults()})


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
def base(root: str = ROOT) -> dict[str, Any]:
    """Return a composition without groups: all keys that exist, with their defaults."""
    ours = root == ROOT
    with initialize_config_dir(str(CONFIG if ours else verl_config()), version_base=None):
        config = compose(root, overrides=[search_path(), "~machine"] if ours else [])
    content: Any = OmegaConf.to_container(config, resolve=False)
    return content


@functools.cache
def known_keys(root: str = ROOT) -> frozenset[str]:
    """Return the full name of every key and section of `base`."""
    parts = (key.split(".") for key, _ in flat(base(root)))
    return frozenset(name for names in parts for name in accumulate(names, "{}.{}".format))


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


def type_of(key: str, default: Any) -> Any:
    """Return the type of a key of verl: that of the longest end in `TYPES`, or of its default."""
    end = key
    while end:
        if end in TYPES:
            return TYPES[end]
        end = end.partition(".")[2]
    if isinstance(default, bool):
        return bool | None
    return float | None if isinstance(default, int | float) else Any


def wrong_values(values: dict[str, Any], root: str = ROOT) -> dict[str, str]:
    """Return key -> message for values of verl's keys that have a wrong type or are out of range.

    Defaults are not checked, except that a mandatory value is set.
    """
    known, found = dict(flat(base(root))), dict[str, str]()
    for key, value in values.items():
        default = known.get(key)
        if not is_in(key, ("recipe", "eval")) and (value != default or value == UNSET):
            kind = type_of(key, default)
            found |= {} if kind is Any else problems(adapter(kind), value, key, WHY)
    return found


def check_types(config: DictConfig) -> None:
    """Reject values of a wrong type or out of range; ConfigError with all of them, one a line."""
    values: Any = OmegaConf.to_container(config, resolve=True)
    found = problems(adapter(Recipe), values["recipe"], "recipe", WHY)
    found |= wrong_values(dict(flat(values)))
    found |= problems(adapter(EvaluationSection), values["eval"], "eval")
    # Keys that interpolate one value (data.seed is recipe.seed) are reported once, by the first.
    told = {message.partition("=")[2] or key: message for key, message in reversed(found.items())}
    if told:
        raise ConfigError("\n".join(reversed(told.values())))


def off_switch(config: DictConfig, key: str) -> tuple[Switch, Any] | None:
    """Return the switch that turns `key` off, and its value; None if `key` is read."""
    matching = [x for x in SWITCHES if is_in(key, [x.read]) and key != x.key]
    longest = max((len(x.read) for x in matching), default=0)
    found = [(x, OmegaConf.select(config, x.key)) for x in matching if len(x.read) == longest]
    if not found or any(switch.is_on(value) for switch, value in found):
        return None
    loss = OmegaConf.select(config, f"{A}.policy_loss._target_")
    own_loss = not str(loss).startswith(("verl.", "recipe."))
    if found[0][0].key == LOSS and (own_loss or found[0][1] not in LOSSES):  # it may read any key
        return None
    return found[0]


@functools.cache
def fixed_keys() -> dict[str, str]:
    """Return the keys that have to keep their defaults -> why."""
    return dict(yaml.load(KEYS.read_text(encoding="utf-8"), yaml.CSafeLoader))


def changed_keys(config: DictConfig, root: str = ROOT) -> Iterator[tuple[str, Any, str]]:
    """Yield (key, value, why) of `fixed_keys` whose value in `config` is not the default.

    A default that is an interpolation follows the other keys of `config`.
    """
    known = dict(flat(base(root)))
    for key, why in fixed_keys().items():
        value, default = OmegaConf.select(config, key), known.get(key)
        if OmegaConf.is_config(value):
            value = OmegaConf.to_container(value)
        if value is None and (default == UNSET or "${" in str(default)):  # was never set
            continue
        if "${" in str(default):
            section, _, name = key.rpartition(".")
            before = OmegaConf.select(config, section).copy()  # a copy of all takes 0.1 s
            OmegaConf.update(before, name, default)
            default = OmegaConf.select(before, name)
        if value != default:
            yield key, value, why


def unknown_key(key: str, root: str = ROOT) -> str:
    """Return the message about a key that does not exist, with what may have been meant."""
    for pattern, text in moved().items():
        if (match := re.fullmatch(pattern, key)) and (root == ROOT or "recipe." not in text):
            rest = match.groups()[-1] if match.groups() else ""
            return f"no key '{key}': {text.replace('*', rest)}"
    full = sorted(k for k in known_keys(root) if k.endswith(f".{key}"))
    if full:
        return f"no key '{key}': keys are given in full, as {' or '.join(full[:3])}"
    near = f", did you mean {found}?" if (found := _nearest(key, known_keys(root))) else ""
    return f"no key '{key}'{near or ': `python -m recipe.train EXAMPLE --cfg` lists all'}"


@functools.cache
def moved() -> dict[str, str]:
    """Return moved.yaml, the stars of its patterns as groups of regular expressions."""
    given = yaml.safe_load((CONFIG / "moved.yaml").read_text(encoding="utf-8"))
    return {"(.*)".join(map(re.escape, old.split("*"))): text for old, text in given.items()}


def _nearest(key: str, known: Iterable[str]) -> str | None:
    """Return the key that may have been meant, never one of another role: a wrong hint costs a run.

    It has the same last name, or is in the same section with a similar last name.
    """
    section, _, last = key.rpartition(".")
    same = [k for k in known if k.rpartition(".")[2] == last]
    beside = {k.rpartition(".")[2] for k in known if k.rpartition(".")[0] == section}
    if in_role := difflib.get_close_matches(key, [k for k in same if _role(k) == _role(key)], n=1):
        return in_role[0]
    if alike := difflib.get_close_matches(last, beside, n=1, cutoff=0.75):
        return f"{section}.{alike[0]}"
    return next(iter(difflib.get_close_matches(key, same, n=1, cutoff=0.92)), None)


def _role(key: str) -> str:
    """Return what a key configures: data, trainer, the actor, the rollouts, the critic, ..."""
    return ".".join(key.split(".")[: 2 if key.startswith("actor_rollout_ref.") else 1])
