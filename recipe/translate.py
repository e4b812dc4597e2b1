"""A launch script of verl as an example: ``recipe.train --script my_run.sh [method=NAME] ...``.

The script is read by `recipe.script`; nothing of it is executed. Its settings become
scale/script.yaml of an example: a method overrides them, and the command line overrides both.
config/script.yaml, moved.yaml and keys.yaml say what becomes of keys that are not taken
as they are. Every setting is in one group of the report: kept, moved, replaced or dropped.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf

from prompt_aug.base.files import sha256, write_text
from prompt_aug.typed import as_list, shown
from recipe import lint
from recipe.config import show
from recipe.config.base import CONFIG, ROOT, default_values, flat, is_in, known_keys
from recipe.config.compose import is_open, one_line, parsed, with_plus
from recipe.config.verl import MODEL, MOVED, REF, A, R, off_switch, row_of, unknown_key, why_fixed
from recipe.errors import ConfigError
from recipe.lint import UNKNOWN, VERL, Launch, Setting, is_section
from recipe.script import OPEN, unknown_names, unparsed

SCRIPT = CONFIG / "script.yaml"
SOURCED = re.compile(r"(?m)(?:^|[;&|{])[ \t]*(?:source|\.)[ \t]+([^\s;&|]+)")
MOVE = re.compile(r"(?:no effect: )?set ([\w.]+)( to a hundredth of it)?")
DEFAULT_SCORE = "verl.utils.reward_score.default_compute_score"  # by data_source
FUNCTION = re.compile(r"(?:reward\.)?custom_reward_function\.(path|name|reward_kwargs\..+)")
ADVANTAGE = "recipe.advantage.name"
OF_ESTIMATOR = ("gamma", "lam", "norm_adv_by_std_in_grpo")
ESTIMATOR = {f"algorithm.{x}": f"recipe.advantage.arguments.{x}" for x in OF_ESTIMATOR}
ESTIMATOR["algorithm.adv_estimator"] = ADVANTAGE
# Of all GPUs together, in old versions of verl.
MICRO = (f"{A}.ppo_micro_batch_size", *(f"{x}.log_prob_micro_batch_size" for x in (R, REF)))
AUGMENT = "recipe.augment"
LIMIT, OVERLONG = "data.max_response_length", "recipe.reward.overlong"
# A prompt's form, which another setting of the command line leaves to the rows.
FORM = "style mode templates bank format instruction system".split()
STEPS, EPOCHS = "trainer.total_training_steps", "trainer.total_epochs"
LABELS = ("trainer.experiment_name", "trainer.project_name")  # no effect on the training
GPUS, NODES = "trainer.n_gpus_per_node", "trainer.nnodes"
# Whose default is verl's, not this project's.
VERLS = (f"{R}.n", "algorithm.filter_groups.metric", "trainer.val_before_train", EPOCHS)
CHANGED = {  # defaults of earlier versions of verl
    f"{A}.entropy_coeff": "0.001 until verl 0.3",
    f"{A}.clip_ratio_c": "no dual clip until verl 0.3",
    f"{A}.shuffle": "true in verl 0.1",
    "algorithm.use_kl_in_reward": "true without a KL loss until verl 0.3",
}


class Verdict(NamedTuple):
    """Group of a setting ("stop": it is rejected), the reason, and the key that is set, if any."""

    group: str
    why: str
    key: str = ""
    value: Any = None


@dataclass
class Translation:
    """The settings of a script: `notes` has the group and the reason of each.

    `content` is scale/script.yaml, by key; `keys` the key there of a setting, for those that are
    taken; `later` what a method or the command line sets, by key.
    """

    path: Path
    folder: Path
    overrides: list[str]
    drop: Collection[str]
    settings: list[Setting]
    head: list[str]
    notes: dict[str, tuple[str, str]] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    content: dict[str, Any] = field(default_factory=dict)
    later: dict[str, tuple[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        made = [parsed(with_plus(text)) for text in self.overrides]
        self.given = dict(flat({x.key_or_group: x.value() for x in made}))
        self.given |= {x.key_or_group: x.value() for x in made}  # a section, too
        if (path := self.given.get("recipe.model_path")) is not None:  # which verl's key follows
            self.given.setdefault(f"{MODEL}.path", path)
        self.method = self.given.get("method")
        own = f"{ADVANTAGE}={self.given.get(ADVANTAGE)}" if ADVANTAGE in self.given else ""
        self.advantage = f"method={self.method}" if self.method else own
        self.values = {x.key: x.value for x in self.settings}

    def verdict(self, x: Setting) -> Verdict:
        """Return what becomes of a setting."""
        if is_in(x.key, self.drop):
            return Verdict("dropped", "--drop")
        if x.choice:
            return Verdict("stop", "chooses another file of the configuration")
        if x.key in self.given:
            return Verdict("replaced", f"the command line: {shown(self.given[x.key])}")
        if x.key in LABELS and (x.value is UNKNOWN or not x.sure):
            return Verdict("replaced", f"not known, {default_values()[x.key]}")
        if (target := ESTIMATOR.get(x.key)) and self.advantage:
            return Verdict("replaced", self.advantage)
        if target:
            value = f"verl:{x.value}" if target == ADVANTAGE else x.value
            return Verdict("replaced", target, target, value)
        if match := FUNCTION.fullmatch(x.key):
            return Verdict("replaced", "recipe.reward.verifiers", f"function.{match[1]}", x.value)
        if x.key in MICRO and isinstance(x.value, int):
            each = max(1, x.value // max(1, self.number(GPUS) * self.number(NODES)))
            return Verdict("moved", f"{x.key}_per_gpu={each}", f"{x.key}_per_gpu", each)
        return by_row(x, self.number(LIMIT))

    def number(self, key: str) -> int:
        """Return a number of the script, verl's default if it sets none."""
        value = self.values.get(key)
        return value if isinstance(value, int) else int(default_values(VERL)[key])

    def sort(self) -> None:
        """Sort all settings into groups; ConfigError for those that must be known, or stop."""
        self.content |= {key: default_values(VERL)[key] for key in VERLS}
        errors, asked = list[str](), list[Setting]()
        for x in {x.key: x for x in self.settings}.values():  # the last one counts
            group, why, key, value = self.verdict(x)
            self.notes[x.key] = group, why
            if group == "stop":
                why = why if why.endswith("?") else f"{why.rstrip('.')}."
                errors.append(x.message(f"{why} To start without it add --drop {x.key}."))
            elif key:
                self.keys[x.key], self.content[key] = key, value
                asked += [x] if x.value is UNKNOWN or not x.sure else []
        if errors := [*errors, *questions(asked)]:
            raise ConfigError("\n".join(errors))

    def complete(self) -> None:
        """Set what follows from several settings, the data files, the machine and the method."""
        content = self.content
        if not content.get(f"{OVERLONG}.enable"):
            for key in [key for key in content if is_in(key, [OVERLONG])]:
                del content[key]
        if content.get(f"{MODEL}.lora_rank"):
            content[f"{MODEL}.lora.merge"] = True
        if not self.advantage and content.setdefault(ADVANTAGE, "verl:gae") == "verl:gae":
            content.setdefault("critic.enable", True)
        content |= {"recipe.augment.mode": "fixed", "recipe.augment.templates": ["qwen-math"]}
        content |= {"recipe.reward.format_weight": 0.0}
        function = {k: content.pop(k) for k in [*content] if k.startswith("function.")}
        self.write()
        final, of_cpu, after = dict[str, Any](), dict[str, Any](), False
        for source, values in show.layers(str(self.folder), self.overrides):
            final |= values
            of_cpu |= values if "/machine/cpu" in source else {}
            self.later |= {key: (source, value) for key, value in values.items() if after}
            after = after or source.endswith("scale/script.yaml")
        augment = {key: source for key, (source, _) in self.later.items() if is_in(key, [AUGMENT])}
        form = [f"{AUGMENT}.{name}" for name in FORM]
        if any(source != "command line" or key in form for key, source in augment.items()):
            content["recipe.augment.system"] = "template"
        else:
            content["recipe.augment.style"] = "row"
        train, test = (as_list(final.get(f"data.{x}_files")) or [] for x in ("train", "val"))
        sources = {source for path in (*train, *test) for source in sources_of(path)}
        score = function_of(nested(function).get("function", {}))
        content["recipe.reward.verifiers"] = dict.fromkeys(sorted(sources), score) or None
        content[STEPS] = content.get(STEPS) or default_values()[EPOCHS]  # the epochs end the run
        limits = [final["data.max_prompt_length"], final[LIMIT]]
        if all(isinstance(limit, int) for limit in limits):  # later checks report others
            content[f"{R}.max_model_len"] = content.get(f"{R}.max_model_len") or sum(limits)
        for key in [key for key in content if is_in(key, of_cpu)]:
            del content[key]
            self.later[key] = "recipe/config/machine/cpu.yaml", of_cpu.get(key)
        if GPUS in content:  # or this machine's number would override it
            self.overrides = [f"{GPUS}={content[GPUS]}", *self.overrides]
        self.write()

    def write(self) -> None:
        """Write the example."""
        name = re.sub(r"\W+", "_", f"{self.path.stem}_{self.method or ''}").strip("_")
        defaults = "defaults: [recipe, {override scale: script}, _self_]\n"
        write_text(self.folder / "config.yaml", f"{defaults}recipe: {{name: '{name}'}}\n")
        text = OmegaConf.to_yaml(OmegaConf.create(nested(self.content)))
        write_text(self.folder / "scale" / "script.yaml", f"# @package _global_\n{text}")

    def report(self, config: DictConfig) -> str:
        """Return the groups with their settings, a line each, of a composed configuration."""
        groups: dict[str, list[str]] = {
            name: [] for name in ("kept", "moved", "replaced", "dropped", "default changed")
        }
        for x in {x.key: x for x in self.settings}.values():
            group, why = self.notes[x.key]
            key = self.keys.get(x.key, "")
            if key in self.later:
                source, value = self.later[key]
                group, why = "replaced", f"{source}: {shown(value)}"
            elif off := off_switch(config, key) if group in ("kept", "moved") else None:
                group, why = "dropped", f"no effect with {off[0].key}={shown(off[1])}"
            value = "?" if x.value is UNKNOWN else shown(x.value)
            groups[group].append(f"  {x.key}={value}" + (f": {why}" if why else ""))
        groups["default changed"] = [
            f"  {key}: not set, {shown(default_values(VERL)[key])}; {before}"
            for key, before in CHANGED.items()
            if key not in self.values and key not in self.later
        ]
        lines = [line for name, rows in groups.items() for line in (f"{name}: {len(rows)}", *rows)]
        augment = config.recipe.augment
        form = f"{AUGMENT}.mode={augment.mode}, templates {shown(as_list(augment.templates))}"
        prompts = "the rows' messages" if augment.style == "row" else form
        return "\n".join([*self.head, f"prompts: {prompts}", *lines, ""])


def by_row(x: Setting, limit: int) -> Verdict:
    """Return the verdict by the rows of the three files; `limit`: tokens of a response."""
    known = x.key in known_keys() or is_open(x.key)
    is_default = known and x.value == default_values().get(x.key)
    row: Any = row_of(x.key, SCRIPT)
    refuses = False
    if x.key.endswith("reward_kwargs.max_resp_len"):
        row = [LIMIT, limit]
    if isinstance(row, list):
        text, *allowed = row
        row, refuses = None if is_default else text, x.value not in allowed
        if refuses and row and row.startswith("replaced: "):
            row = f"only {', '.join(map(shown, allowed))}: {text.removeprefix('replaced: ')}"
    elif row is None and is_section(x, ROOT):
        return Verdict("stop", "a section of keys, not a value")
    elif row is None and not is_default:
        row = why_fixed(x.key) if known else row_of(x.key, MOVED) or unknown_key(x.key)
        refuses = not str(row).startswith("no effect")
    if row is None:
        return Verdict("kept", "", x.key, x.value)
    if (match := MOVE.fullmatch(row)) and match[1] in default_values():
        why, value = match[1], x.value
        if match[2] and isinstance(value, int | float):
            value /= 100
            why += f"={shown(value)}"
        return Verdict("moved", why, match[1] if value is not None else "", value)
    why = row.removeprefix("replaced: ")
    return Verdict("stop" if refuses else "dropped" if why == row else "replaced", why)


def questions(asked: Sequence[Setting]) -> Iterator[str]:
    """Yield a message for each variable, and for each setting without one, that must be known."""
    by_name: dict[str, list[str]] = {}
    for x in asked:
        for name in filter(None, x.variables):
            by_name.setdefault(name, []).append(x.key)
        if not any(x.variables):
            why = "the script computes it" if x.value is UNKNOWN else "only some branches set it"
            yield f"{x.place}: {x.key}: {why}. Add {x.key}=VALUE, or --drop {x.key}."
    for name, keys in by_name.items():
        yield f"{', '.join(keys)}: not known: {name}. Add --set {name}=VALUE."


def nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping of sections from dotted keys."""
    made = OmegaConf.create()
    for key, value in values.items():
        OmegaConf.update(made, key, value, force_add=True)
    content: Any = OmegaConf.to_container(made, resolve=False)
    return content


def function_of(section: Mapping[str, Any]) -> str:
    """Return the verifier of verl's section ``custom_reward_function``, verl's own without one."""
    path, name = section.get("path"), section.get("name") or "compute_score"
    if not path:
        return DEFAULT_SCORE
    place = f"{str(path).removeprefix('pkg://')}."
    if not str(path).startswith("pkg://"):
        file = Path(path).expanduser().resolve()
        if not file.is_file():
            raise ConfigError(f"custom_reward_function.path={path}: no such file. Correct it.")
        place = f"{file}:"
    given = section.get("reward_kwargs") or {}
    arguments = ", ".join(f"{key}={value!r}" for key, value in given.items())
    return f"{place}{name}" + (f"({arguments})" if arguments else "")


def sources_of(path: str) -> list[str]:
    """Return the data sources of a parquet file, as `prompt_aug.questions` names them."""
    try:
        names = pq.read_schema(path).names
    except (OSError, pa.ArrowInvalid):
        return []  # later checks report the file
    if "data_source" not in names:
        return ["unknown"]
    column = pq.read_table(path, columns=["data_source"])["data_source"]
    return [str(source or "unknown") for source in column.unique().to_pylist()]


def chosen(path: Path, text: str, found: Sequence[Launch], number: int | None) -> Launch:
    """Return the command to start; ConfigError if there is none or it is not named."""
    if not found:
        others = [*dict.fromkeys(re.findall(r"-m\s+([\w.]+)", text))]
        named = f" It starts {', '.join(others)}." if others else ""
        raise ConfigError(
            f"{path}: no command of {lint.MAIN}.{named} Only that trainer's scripts can start here."
        )
    if (number is None and len(found) > 1) or not 1 <= (number or 1) <= len(found):
        lines = ", ".join(str(x.line) for x in found)
        if len(found) == 1:
            raise ConfigError(f"--command {number}: {path} has one, line {lines}. Leave it out.")
        raise ConfigError(f"{path}: {len(found)} commands, lines {lines}. Name one: --command N.")
    return found[(number or 1) - 1]


def variables(path: Path, text: str, pairs: Sequence[str]) -> dict[str, str]:
    """Return the variables of ``--set``; ConfigError for one that the script does not have."""
    given = dict[str, str]()
    for pair in pairs:
        name, equals, given[name] = pair.partition("=")
        if not equals:
            raise ConfigError(f"--set {pair}: no value. Write --set {pair}=VALUE.")
        if not name or not re.search(rf"\b{re.escape(name)}\b", text):
            raise ConfigError(f"--set {pair}: {path} has no variable {name}. Correct the name.")
    return given


def translate(
    path: Path,
    folder: Path,
    overrides: list[str],
    pairs: Sequence[str] = (),
    number: int | None = None,
    drop: Collection[str] = (),
) -> Translation:
    """Write the example of a script into `folder`, and return it; ConfigError with all problems.

    `pairs` are values of the script's variables, as NAME=VALUE, `number` is that of the command
    (from 1), and `drop` are keys to leave out.
    """
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    given = variables(path, text, pairs)
    names = (n for n in os.environ if n in ("HOME", "PWD") or n.startswith("SLURM_"))
    used = {
        n: os.environ[n]
        for n in names
        if re.search(rf"\$\{{?{n}\b|\$\({n.lower()}\)", text) or (n == "HOME" and "=~/" in text)
    }
    found, errors = lint.launches(path, text, environment=used, given=given)
    launch = chosen(path, text, [x for x in found if x.program != lint.TRAIN], number)
    settings, name, unreadable = lint.settings_of(path, launch.program, launch.words)
    if why := lint.skipped(name, [x for x in settings if not is_in(x.key, ["trainer"])]):
        raise ConfigError(f"{path}:{launch.line}: {why}: it has another trainer.")
    whole = [word for word in launch.words if OPEN in word.text.partition("=")[0]]
    for line, name in ((word.line, unknown_names(word.text)[0]) for word in whole):
        why = f". Add --set {name}=VALUE" if name else " of a function. Write them into the command"
        errors.append(f"{path}:{line}: unknown arguments{why}.")
    for key in drop:
        if not any(is_in(x.key, [key]) for x in settings):
            errors.append(f"--drop {key}: the command does not set it. Leave it out.")
    if errors := [*errors, *unreadable]:
        raise ConfigError("\n".join(errors))
    head = [f"script: {path.resolve()}, line {launch.line}, sha256 {sha256(path)}"]
    head += [f"from the environment: {key}={value}" for key, value in used.items()]
    head += [f"--set {text}" for text in pairs]
    if wrong := unparsed(text):
        head.append(f"line {wrong}: {lint.UNPARSED}")
    head += [f"not read: {file}" for file in SOURCED.findall(text)]
    made = Translation(path, folder, overrides, drop, settings, head)
    made.sort()
    try:
        made.complete()
    except HydraException as error:  # an unknown method, for example
        raise ConfigError(f"{' '.join(overrides)}: {one_line(error)}") from error
    return made
