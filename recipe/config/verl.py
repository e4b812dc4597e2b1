"""verl's configuration keys: which exist, have moved, have an effect, and which values they take.

The data are keys.yaml, moved.yaml, switches.yaml and `TYPES`. `root` is a composition of
`recipe.config.base`.
"""

import difflib
import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from omegaconf import DictConfig, OmegaConf

from prompt_aug.typed import UNSET, adapter, problems
from recipe.config.base import CONFIG, ROOT, base, default_values, flat, is_in, known_keys
from recipe.config.evaluation import EvaluationSection
from recipe.config.settings import Recipe
from recipe.config.verl_types import TYPES
from recipe.errors import ConfigError

KEYS, MOVED = CONFIG / "keys.yaml", CONFIG / "moved.yaml"
A, R = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
REF, MODEL = "actor_rollout_ref.ref", "actor_rollout_ref.model"
LOSS, CORRECTION = f"{A}.policy_loss.loss_mode", "algorithm.rollout_correction"
MODE = "trainer.v1.trainer_mode"
COLOCATE, SEPARATE = "recipe_colocate_async", "recipe_separate_async"
ASYNCHRONOUS = (COLOCATE, SEPARATE)
# Estimators of the KL whose gradient is 0 in expectation (kl_penalty of verl's core_algos).
KL_TYPE, NO_GRADIENT_KL = f"{A}.kl_loss_type", ("kl", "k1")
NO_GRADIENT = (
    "as a loss the gradient of this estimator is 0 in expectation, so nothing keeps the model near "
    "the reference. Set low_var_kl (k3), k2, or k1+."
)
LOSSES = (  # whose keys are in switches.yaml
    "vanilla", "dppo_tv", "dppo_kl", "fipo", "gspo", "cispo", "clip_cov",
    "geo_mean", "gmpo", "sapo", "gpg", "kl_cov", "dro", "vespo",
)  # fmt: skip


def has_no_gradient(config: DictConfig) -> bool:
    """Return True for a KL loss without a gradient."""
    actor = config.actor_rollout_ref.actor
    return bool(actor.use_kl_loss) and actor.kl_loss_type in NO_GRADIENT_KL


def own_gpus(config: DictConfig) -> int:
    """Return the number of GPUs that only engines use; 0 if they share the trainer's."""
    rollout = config.actor_rollout_ref.rollout
    separate = config.trainer.v1.trainer_mode == SEPARATE
    return int(rollout.nnodes * rollout.n_gpus_per_node) if separate else 0


class Switch(NamedTuple):
    """`read`, a key or section, is read only if `key` has one of the values `on`.

    Without `on`: any value other than false, 0, null and empty.
    """

    read: str
    key: str
    on: tuple[Any, ...] = ()


SWITCHES = [
    Switch(read, row["key"], tuple(row.get("values", ())))
    for row in yaml.load((CONFIG / "switches.yaml").read_text("utf-8"), yaml.CSafeLoader)
    for read in row["read"]
]


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
    defaults, errors = default_values(root), dict[str, str]()
    for key, value in values.items():
        default = defaults.get(key)
        if not is_in(key, ("recipe", "eval")) and (value != default or value == UNSET):
            kind = type_of(key, default)
            errors |= {} if kind is Any else problems(adapter(kind), value, key)
    return errors


def check_types(config: DictConfig) -> None:
    """Reject values of a wrong type or out of range; ConfigError with all of them, one a line."""
    values: Any = OmegaConf.to_container(config, resolve=True)
    errors = problems(adapter(Recipe), values["recipe"], "recipe")
    errors |= wrong_values(dict(flat(values)))
    # Mandatory here; verl's own default is null.
    steps = "total_training_steps"
    errors |= problems(adapter(TYPES[steps]), values["trainer"][steps], f"trainer.{steps}")
    errors |= problems(adapter(EvaluationSection), values["eval"], "eval")
    # Keys that interpolate one value (data.seed is recipe.seed) are reported once, by the first.
    by_text = {text.partition("=")[2] or key: text for key, text in reversed(errors.items())}
    if by_text:
        raise ConfigError("\n".join(reversed(by_text.values())))


def off_switch(config: DictConfig, key: str) -> tuple[Switch, Any] | None:
    """Return the switch that turns `key` off, and its value; None if `key` is read."""
    matching = [x for x in SWITCHES if is_in(key, [x.read]) and key != x.key]
    longest = max((len(x.read) for x in matching), default=0)
    pairs = [(x, OmegaConf.select(config, x.key)) for x in matching if len(x.read) == longest]
    if not pairs or any(value in x.on if x.on else value for x, value in pairs):
        return None
    loss = OmegaConf.select(config, "actor_rollout_ref.actor.policy_loss._target_")
    own_loss = not str(loss).startswith(("verl.", "recipe."))
    if pairs[0][0].key == LOSS and (own_loss or pairs[0][1] not in LOSSES):  # it may read any key
        return None
    return pairs[0]


def row_of(key: str, path: Path = KEYS) -> Any:
    """Return the row of a file for a key, a star of its text replaced, None if it has none."""
    for pattern, row in patterns(path).items():
        if match := pattern.fullmatch(key):
            rest = match.groups()[-1] if match.groups() else ""
            return row.replace("*", rest) if isinstance(row, str) else row
    return None


def why_fixed(key: str) -> str | None:
    """Return why a key has to keep its default; None if it has not."""
    return row if isinstance(row := row_of(key), str) else None


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
    of_verl = None if root == ROOT else row_of(f"verl:{key}", MOVED)
    if (text := of_verl or row_of(key, MOVED)) and (root == ROOT or "recipe." not in text):
        return f"no key '{key}': {text}"
    if full := sorted(k for k in known_keys(root) if k.endswith(f".{key}")):
        return f"no key '{key}': keys are given in full, as {' or '.join(full[:3])}"
    near = f", did you mean {name}?" if (name := _nearest(key, known_keys(root))) else ""
    more = ": `python -m recipe.train EXAMPLE --cfg` lists all" if root == ROOT else ". Remove it."
    return f"no key '{key}'{near or more}"


@functools.cache
def patterns(path: Path) -> dict[re.Pattern[str], Any]:
    """Return the rows of a file, the stars of their patterns as groups; a section has its keys."""
    rows = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)
    text = {old: "(.*)".join(map(re.escape, old.split("*"))) for old in rows}
    return {re.compile(rf"{text[old]}(?:\..*)?"): row for old, row in rows.items()}


def _nearest(key: str, keys: Iterable[str]) -> str | None:
    """Return the key that may have been meant, never one of another role: a wrong hint costs a run.

    It has the same last name, or is in the same section with a similar last name.
    """
    section, _, last = key.rpartition(".")
    role = key.split(".")[: 2 if key.startswith("actor_rollout_ref.") else 1]
    same = [k for k in keys if k.endswith(f".{last}") and k.split(".")[: len(role)] == role]
    beside = {k.rpartition(".")[2] for k in keys if k.rpartition(".")[0] == section}
    if near := difflib.get_close_matches(key, same, n=1):
        return near[0]
    alike = difflib.get_close_matches(last, beside, n=1, cutoff=0.75)
    return f"{section}.{alike[0]}" if alike else None
