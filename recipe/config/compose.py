"""Compose an example into its resolved configuration, with every key and value checked.

hydra merges verl's configuration, the defaults of `recipe.config.settings`, recipe.yaml, the groups
that the example chooses, the example's config.yaml and the overrides of the command line; the last
one wins. A key that none of the first three has is rejected wherever it is set: hydra lets a file
add any key, and an override with ``+``, and nothing would read it.
"""

import contextlib
import re
from pathlib import Path
from typing import Any

import yaml
from hydra import compose
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from prompt_aug.typed import closest, shown
from recipe.config import verl
from recipe.config.base import CONFIG, base, flat, is_in, known_keys, readable, reading, search_path
from recipe.errors import ConfigError
from recipe.machine import host
from recipe.machine.sizes import READ, set_sizes

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
# Keyword arguments of a function, whose signature `recipe.algorithms.registry` checks, and mappings
# whose keys are data sources, which `recipe.start.data` checks.
ARGUMENTS = (
    "recipe.advantage.arguments",
    "recipe.weights.arguments",
    "recipe.reward.verifiers",
    "recipe.source_weights",
    "eval.verifiers",
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
OFF = (None, False, "none", "off", "vanilla")  # values that turn a feature off; 0 is False
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
    places = [EXAMPLES / example, Path(example)]
    for folder in reversed(places) if "/" in example else places:
        if example.strip() and (folder / "config.yaml").is_file():
            return folder.resolve()
    near = closest(example, example_names()) or f": known are {', '.join(example_names())}."
    raise ConfigError(
        f"no example '{example}'{near} Or name a folder of your own that holds a config.yaml."
    )


def parsed(text: str) -> Override:
    """Return an override as hydra reads it; ConfigError if it cannot."""
    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        remedy = "Put each text in it in quotes, as in \"KEY=['my file']\"."
        why = f": {one_line(error)}. {remedy}" if "=" in text else f". Write {text}=VALUE."
        raise ConfigError(f"'{text}' is not an override of the form key=value{why}") from error


def with_plus(text: str) -> str:
    """Return an override with ``++`` before a key of the user's, which hydra would call unknown."""
    key, equals, value = readable(text).partition("=")
    name = key.lstrip("+")
    own = equals and (is_in(name, ARGUMENTS) or _is_field(name))
    return f"++{name}={value}" if own else f"{key}{equals}{value}"


def on_this_machine(folder: Path, overrides: list[str]) -> list[str]:
    """Return the overrides with this machine's group, cpu or gpu, unless one is chosen.

    A choice is ``machine=NAME`` or the example's ``override machine: NAME``; ``auto`` is none.
    """
    chosen = [text for text in overrides if text.startswith("machine=")]
    # As text: a file that hydra cannot read gets its message later.
    text = (folder / "config.yaml").read_text(encoding="utf-8", errors="replace")
    of_file = re.findall(r"override machine:\s*(\w+)", text)
    if (chosen or of_file)[-1:] not in ([], ["machine=auto"], ["auto"]):
        return overrides
    if not re.search(r"^defaults:.*\brecipe\b", text, re.DOTALL | re.MULTILINE):
        return overrides
    gpus, name = host.gpus_here(), host.machine()
    count = [f"trainer.n_gpus_per_node={gpus}"] if name == "gpu" and gpus else []
    rest = [text for text in overrides if text not in chosen]
    return [f"machine={name}", *count, *rest]


def compose_config(example: str, overrides: list[str]) -> DictConfig:
    """Return the resolved configuration of an example; overrides in hydra's syntax.

    Raises ConfigError, one line a problem, for a file that cannot be read, an unknown key, group or
    choice, and for values of a wrong type or out of range.
    """
    folder = example_folder(example)
    overrides = on_this_machine(folder, list(map(with_plus, overrides)))
    if errors := dict.fromkeys(why for text in overrides if (why := _refused(text, folder))):
        raise ConfigError("\n".join(errors))
    given = by_key(overrides)
    try:
        with reading(folder):
            config = compose(
                "config", overrides=[search_path(CONFIG), *overrides], return_hydra_config=True
            )
        # Lets a file use ${hydra:runtime.choices.method}, the name of the chosen method.
        HydraConfig.instance().set_config(config)
        with open_dict(config):
            del config["hydra"]
        if wrong := verl.wrong_values({"model_engine": config.get("model_engine", "dp")}):
            raise ConfigError(wrong["model_engine"])  # others lack FSDP's keys
        _check_keys(config, folder, given)
        _name_one_model(config, given)
        if wrong := verl.wrong_values({key: OmegaConf.select(config, key) for key in READ}):
            raise ConfigError("\n".join(wrong.values()))
        set_sizes(config)
        _set_correction(config)
        _set_gradient(config)
        OmegaConf.resolve(config)
    except COMPOSING as error:
        raise ConfigError(f"{folder.name}/config.yaml or an override: {one_line(error)}") from error
    verl.check_types(config)
    overlong = config.recipe.reward.overlong
    overlong.buffer = overlong.buffer or max(1, config.data.max_response_length // 5)  # as in DAPO
    _check_switches(config, given)
    return config


def is_open(key: str) -> bool:
    """Return True if keys may be added at `key`."""
    return is_in(key, OPEN)


def one_line(error: BaseException) -> str:
    """Return a library's message without its line breaks, search paths and repetitions."""
    lines = [line.strip() for line in str(error).partition("Config search path")[0].splitlines()]
    kept = [line for line in lines if line and not line.startswith(("full_key:", "object_type="))]
    return " ".join(kept) or type(error).__name__


def _refused(text: str, folder: Path) -> str | None:
    """Return why an override is rejected that hydra would accept without any effect, or None."""
    try:
        override = parsed(text)
    except ConfigError as error:
        return str(error)
    key = override.key_or_group
    if override.is_delete():
        return f"'{text}' deletes a key, which verl would miss. Set {key}=null."
    if key == "recipe.method":
        return f"{text}: this is the name of the chosen method. Write method={override.value()}."
    is_group = any((place / key).is_dir() for place in (folder, CONFIG))
    exists = override.package is not None or key in known_keys() or is_open(key) or _is_field(key)
    return None if is_group or exists else verl.unknown_key(key)


def _is_field(key: str) -> bool:
    """Return True for an unknown key of a section with a class, which may be the user's."""
    return key not in known_keys() and f"{key.rpartition('.')[0]}._target_" in known_keys()


def _check_keys(config: DictConfig, folder: Path, given: dict[str, str]) -> None:
    """Reject keys that `base` does not have, and a value where it has a section.

    A section that is empty in `base` takes any key. `given`: the keys of the command line.
    """
    where = f"{folder.name}/config.yaml or one of its groups: "

    def walk(node: Any, defaults: Any, prefix: str) -> None:
        # Another class than verl's own has other keys, and itself rejects unknown ones.
        own_class = node.get("_target_") != defaults.get("_target_")
        for key, value in node.items():
            name = f"{prefix}{key}"
            plain = not isinstance(value, dict | None) and not str(value).startswith("${")
            if name in OPEN and plain:
                raise ConfigError(f"{name}={value}: this is a section of keys, not a value")
            if is_open(name) or (own_class and key not in defaults):
                continue
            if key not in defaults:
                raise ConfigError(("" if name in given else where) + verl.unknown_key(name))
            if isinstance(defaults[key], dict) and defaults[key]:
                if not isinstance(value, dict):
                    raise ConfigError(f"{name}={value}: this is a section of keys, not a value")
                walk(value, defaults[key], f"{name}.")

    walk(OmegaConf.to_container(config, resolve=False), base(), "")
    if "recipe" not in config:
        raise ConfigError(f"{where}no section recipe: `defaults` has to begin with `- recipe`")


def _name_one_model(config: DictConfig, given: dict[str, str]) -> None:
    """Set `recipe.model_path` to verl's key of the model where only that one was set."""
    path, recipe_path = config.actor_rollout_ref.model.path, config.recipe.model_path
    if path == recipe_path:
        return
    if "recipe.model_path" in given:
        raise ConfigError(
            f"actor_rollout_ref.model.path={path} with recipe.model_path={recipe_path}: these are "
            "two models. Set recipe.model_path alone, which verl's key follows."
        )
    config.actor_rollout_ref.model.path = config.recipe.model_path = path


def _set_correction(config: DictConfig) -> None:
    """Replace ``rollout_is=auto``: stale rollouts are corrected by token."""
    correction = config.algorithm.rollout_correction
    if correction.rollout_is == "auto":
        stale = config.trainer.v1.trainer_mode in verl.ASYNCHRONOUS and not correction.bypass_mode
        correction.rollout_is = "token" if stale else None


def not_through(config: DictConfig) -> str:
    """Return the keys that rule out CW-GRPO's gradient through w, "" if none does.

    The conditions of `recipe.algorithms.cw_grpo.through_weights`. ConfigError for bad arguments.
    """
    from recipe.algorithms.compute import logprob_temperature  # imports torch

    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    correction = config.algorithm.rollout_correction
    temperature = logprob_temperature(config.recipe.weights) or rollout.temperature
    ruled_out = {
        f"{verl.A}.ppo_mini_batch_size": actor.ppo_mini_batch_size != config.data.train_batch_size,
        f"{verl.A}.ppo_epochs": actor.ppo_epochs != 1,
        verl.LOSS: actor.policy_loss.loss_mode != "vanilla",
        f"{verl.CORRECTION}.rollout_is": correction.rollout_is,
        f"{verl.CORRECTION}.rollout_rs": correction.rollout_rs,
        f"{verl.CORRECTION}.bypass_mode": correction.bypass_mode,
        f"{verl.R}.temperature": temperature != 1,
    }
    return " ".join(key for key, wrong in ruled_out.items() if wrong)


def _set_gradient(config: DictConfig) -> None:
    """Replace ``gradient=null`` of CW-GRPO's weights."""
    weights = config.recipe.weights
    if weights.name == "gaussian_covariance" and weights.gaussian_covariance.gradient is None:
        with contextlib.suppress(ConfigError):  # bad arguments: the launch checks report them
            gradient = "detached" if not_through(config) else "through"
            weights.gaussian_covariance.gradient = gradient


def by_key(overrides: list[str]) -> dict[str, str]:
    """Return key -> override of the command line that sets it, alone or in a section."""
    return {
        key: text
        for text in overrides
        for key, _ in flat({parsed(text).key_or_group: parsed(text).value()})
    }


def _check_switches(config: DictConfig, given: dict[str, str]) -> None:
    """Reject overrides of keys that nothing reads, by `off_switch`; files may set them.

    An override that turns the switch off allows them: commands for verl set both.
    """
    errors, defaults = [], dict(flat(base()))
    for key, text in given.items():
        if (off := verl.off_switch(config, key)) is None or (off[0].key in given and off[1] in OFF):
            continue
        if OmegaConf.select(config, key) == defaults.get(key):  # no effect, and no harm
            continue
        switch, value = off
        needed = " or ".join(map(shown, switch.on)) or "another value"
        errors.append(
            f"{text}: no effect with {switch.key}={shown(value)}. Leave it out, or set that key "
            f"to {needed}."
        )
    if errors:
        raise ConfigError("\n".join(errors))
