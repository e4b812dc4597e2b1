"""verl's configuration keys: which exist, have moved, have an effect, and which values they take.

The data are keys.yaml, made by `recipe.preflight.keys`, moved.yaml, `SWITCHES` and `TYPES`. `root`
is a composition of `recipe.config.base`.
"""

import difflib
import functools
import re
from collections.abc import Iterable, Iterator
from itertools import accumulate
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf

from prompt_aug.typed import UNSET, adapter, problems
from recipe.config.base import CONFIG, ROOT, base, flat, is_in, known_keys
from recipe.config.settings import Recipe
from recipe.config.switches import LOSS, LOSSES, SWITCHES, Switch
from recipe.config.verl_types import TYPES
from recipe.errors import ConfigError
from recipe.run.evaluation import EvaluationSection

KEYS = CONFIG.parent / "preflight" / "keys.yaml"


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
            found |= {} if kind is Any else problems(adapter(kind), value, key)
    return found


def check_types(config: DictConfig) -> None:
    """Reject values of a wrong type or out of range; ConfigError with all of them, one a line."""
    values: Any = OmegaConf.to_container(config, resolve=True)
    found = problems(adapter(Recipe), values["recipe"], "recipe")
    found |= wrong_values(dict(flat(values)))
    # Mandatory here; verl's own default is null.
    steps = "total_training_steps"
    found |= problems(adapter(TYPES[steps]), values["trainer"][steps], f"trainer.{steps}")
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
    loss = OmegaConf.select(config, "actor_rollout_ref.actor.policy_loss._target_")
    own_loss = not str(loss).startswith(("verl.", "recipe."))
    if found[0][0].key == LOSS and (own_loss or found[0][1] not in LOSSES):  # it may read any key
        return None
    return found[0]


@functools.cache
def fixed_keys() -> dict[str, str]:
    """Return the keys and sections of verl that have to keep their defaults -> why."""
    return dict(yaml.load(KEYS.read_text(encoding="utf-8"), yaml.CSafeLoader))


def why_fixed(key: str) -> str | None:
    """Return why a key has to keep its default; None if it has not."""
    names = accumulate(key.split("."), "{}.{}".format)
    return next((fixed_keys()[name] for name in names if name in fixed_keys()), None)


def changed_keys(config: DictConfig) -> Iterator[tuple[str, Any, str]]:
    """Yield (key, value, why) of the fixed keys whose value in `config` is not the default.

    A default that is an interpolation follows the other keys of `config`.
    """
    for key, default in flat(base()):
        if (why := why_fixed(key)) is None:
            continue
        value = OmegaConf.select(config, key)
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
    more = ": `python -m recipe.train EXAMPLE --cfg` lists all" if root == ROOT else ". Remove it."
    return f"no key '{key}'{near or more}"


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
    role = key.split(".")[: 2 if key.startswith("actor_rollout_ref.") else 1]
    same = [k for k in known if k.endswith(f".{last}") and k.split(".")[: len(role)] == role]
    beside = {k.rpartition(".")[2] for k in known if k.rpartition(".")[0] == section}
    if near := difflib.get_close_matches(key, same, n=1):
        return near[0]
    alike = difflib.get_close_matches(last, beside, n=1, cutoff=0.75)
    return f"{section}.{alike[0]}" if alike else None
