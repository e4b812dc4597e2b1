"""Check launch scripts and configurations of verl 0.9.1, without starting anything.

    python -m recipe.lint SCRIPT.sh config.yaml KEY=VALUE ...

Reports keys that do not exist or have moved, keys without an effect, and values of a wrong type or
out of range, a line each. Of a script, or the code blocks of a .md file, the commands of
`verl.trainer.main_ppo`, `recipe.dapo.main_dapo` and `recipe.train` count, read as the shell does.
The trainer is verl's V1 with FSDP; others are skipped. Exit code 1 with findings.
"""

import functools
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from omegaconf import OmegaConf

from prompt_aug.base.commands import make_parser, run_command
from prompt_aug.typed import shown
from recipe.config import verl
from recipe.config.base import (
    CONFIG,
    ROOT,
    base,
    default_values,
    flat,
    is_in,
    known_keys,
    verl_config,
)
from recipe.config.compose import COMPOSING, OFF, is_open, one_line, parsed
from recipe.errors import ConfigError
from recipe.script import OPEN, Command, Word, commands, unknown_names, unparsed

VERL = "ppo_trainer"
UNKNOWN = object()  # a value that a script computes
MAIN, TRAIN = "verl.trainer.main_ppo", "recipe.train"
PROGRAMS = (MAIN, TRAIN, "recipe.dapo.main_dapo", "recipe.dapo.src.main_dapo")
SCRIPT = re.compile(r"verl[./]trainer[./]main_ppo|recipe[./]train\b|recipe[./]dapo[./]\S*main_dapo")
UNPARSED = "cannot be parsed, and settings may be missing. Rewrite this command."
SETTING = re.compile(r"[+~]{0,2}[a-z_]\w*(\.\w+)+=.*", re.DOTALL)
# With a value
OPTIONS = "--config-name -cn --config-path -cp --config-dir -cd --cfg -c --package -p".split()
FOLDERS = ("hydra.searchpath", *OPTIONS[2:6])  # of other configurations
LARGEST, MOST = 1_000_000, 5_000  # bytes and settings of a file; a command counts as 100
# Values of verl's V1 trainer with FSDP; others are skipped.
ENGINES = {
    "model_engine": ("dp",),
    "actor_rollout_ref.actor.strategy": ("fsdp", "fsdp2"),
    "trainer.use_v1": (True,),
    "trainer.v1.trainer_mode": ("sync", "recipe_sync", *verl.ASYNCHRONOUS),
}
DYNAMIC = "critic.use_dynamic_bsz"  # without it verl requires a micro-batch size
# Sections with names of the user's
NAMED = ("distillation.teacher_models", "reward.custom_reward_function.reward_kwargs")
# Values that other engines and devices allow.
ROLLOUT = "actor_rollout_ref.rollout"
FREE = ("model_engine", "trainer.device", f"{ROLLOUT}.name", "algorithm.filter_groups.metric")


@dataclass(frozen=True)
class Setting:
    """A key that is set at `place`, as ``FILE:LINE``; `prefix`: hydra's +, ++ or ~.

    `variables` are those that an unknown value needs, "" for one that the script computes.
    `choice`: of a file, as ``data=NAME`` or ``actor@KEY=NAME``.
    """

    place: str
    key: str
    value: Any
    prefix: str = ""
    sure: bool = True
    variables: tuple[str, ...] = ()
    choice: bool = False

    def message(self, why: str) -> str:
        value = "" if self.value is UNKNOWN else shown(self.value)
        equals = "=" * (self.prefix != "~")
        return f"{self.place}: {self.prefix}{self.key}{equals}{value}: {why}"


def read_setting(word: Word, place: str) -> Iterator[Setting]:
    """Yield the setting of an override, of a record each of its keys; ConfigError if unreadable."""
    key, _, text = word.text.partition("=")
    if OPEN in key:
        return
    override = parsed(f"{key}=0" if OPEN in text else word.text)
    if not key or override.is_sweep_override():
        remedy = f"Write {key}=[{text}]" if key else "Remove the blanks around the ="
        raise ConfigError(f"'{word.text}' does not set one key to one value. {remedy}.")
    name, prefix = override.key_or_group, key[: len(key) - len(key.lstrip("+~"))]
    is_group = name != "model_engine" and any((x / name).is_dir() for x in (CONFIG, verl_config()))
    value = UNKNOWN if OPEN in text or prefix == "~" else override.value()
    names = tuple(unknown_names(text))
    if override.package is not None or is_group:
        yield Setting(place, key.lstrip("+~"), value, prefix, word.sure, names, choice=True)
        return
    for inner, part in flat({name: value}):
        made = UNKNOWN if "${" in str(part) else part
        yield Setting(place, inner, made, prefix, word.sure, names)


class Launch(NamedTuple):
    """A command in line `line` that starts a trainer, and its arguments."""

    program: str
    line: int
    words: list[Word]


def program_of(command: Command) -> tuple[str, list[Word]]:
    """Return the trainer that a command starts, or "", and its arguments.

    A module counts behind ``-m`` or an unknown word, not as an argument of grep.
    """
    before = "-m"
    for i, word in enumerate(command.words):
        module = word.text.removeprefix("-m")
        starts = re.fullmatch(rf"-\w*m|--module|.*{OPEN}.*", before) or module != word.text
        before = word.text
        if module.endswith(".py"):
            module = module.removesuffix(".py").replace("/", ".")
        elif not starts:
            continue
        for program in PROGRAMS:
            if f".{module}".endswith(f".{program}"):
                return program, list(command.words[i + 1 :])
    return "", []


def launches(path: Path, text: str, **variables: Any) -> tuple[list[Launch], list[str]]:
    """Return the commands that start a trainer, and findings of settings outside of them.

    `variables` are those of `recipe.script.commands`.
    """
    found, findings, end = list[Launch](), list[str](), 0
    for command in commands(text.replace("\r\n", "\n"), SCRIPT, **variables):
        program, words = program_of(command)
        stray = command.words[0].text
        if program:
            found.append(Launch(program, command.line, words))
            end = command.end
        elif end and SETTING.fullmatch(stray):
            findings.append(
                f"{path}:{command.line}: {stray}: not part of the command, which ends in line "
                f"{end}. End its lines with a backslash, and nothing behind it."
            )
            found[-1].words.extend(command.words)
        else:
            end = 0
    if found and (at := text.find("\r\n")) >= 0:
        findings.append(
            f"{path}:{text.count(chr(10), 0, at) + 1}: the line ends in CR LF, and a CR behind a "
            "backslash ends the command. Convert the file: sed -i 's/\\r$//'."
        )
    return found, findings


def of_script(path: Path, text: str) -> list[str]:
    """Return the findings of a script's commands, each with its own settings."""
    found, findings = launches(path, text)
    if SCRIPT.search(text) and (line := unparsed(text)):
        why = f"{path}:{line}: {UNPARSED}"
        if found:
            print(why)
        else:
            findings.append(why)
    if sum(100 + len(launch.words) for launch in found) > MOST:
        return [f"{path}: {len(found)} commands with too many settings. Nothing was checked."]
    if not found:
        print(f"{path}: nothing to check: no command of {', '.join(PROGRAMS[:3])}")
    for launch in found:
        findings += of_command(path, launch.program, launch.words)
    return findings


def settings_of(
    path: Path | str, program: str, words: list[Word]
) -> tuple[list[Setting], str, list[str]]:
    """Return a command's settings, the name of its configuration, and what cannot be read."""
    settings, findings, name, rest = list[Setting](), list[str](), VERL, iter(words)
    for word in rest:
        option, _, value = word.text.partition("=")
        if option in OPTIONS:
            value = value or next(rest, word).text
            name = value if option in OPTIONS[:2] else name
            if option in FOLDERS:
                settings.append(Setting(f"{path}:{word.line}", option, value))
        elif word.text[:1] not in ("", "-") and not (program == TRAIN and option == word.text):
            try:
                settings += read_setting(word, f"{path}:{word.line}")
            except ConfigError as error:
                findings += [f"{path}:{word.line}: {error}"] if word.sure else []
    return settings, name, findings


def of_command(path: Path | str, program: str, words: list[Word]) -> list[str]:
    """Return the findings about the arguments of one command; print why it is skipped."""
    settings, name, findings = settings_of(path, program, words)
    ours = program == TRAIN or any(x.key.startswith("recipe.") for x in settings)
    if why := skipped(name, settings):
        print(f"{path}: skipped: {why}")
        return []
    root, settings = ROOT if ours else VERL, [x for x in settings if not x.choice]
    return [*findings, *problems_of(settings, root, only_keys=program not in (MAIN, TRAIN))]


def places_of(node: yaml.Node, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield key and line of all that is in a node, aliases written out; of items their number."""
    is_map = isinstance(node, yaml.MappingNode)
    for i, item in enumerate(node.value if isinstance(node, yaml.CollectionNode) else ()):
        first, value = item if is_map else (item, item)
        key = f"{prefix}{first.value if is_map else i}"
        yield key, first.start_mark.line + 1
        yield from places_of(value, f"{key}.")


def of_yaml(path: Path, text: str) -> list[str]:
    """Return the findings of a configuration file."""
    tree = yaml.compose(text, yaml.CSafeLoader)
    places = [*islice(places_of(tree), 4 * MOST)] if tree else []
    if len(places) == 4 * MOST:
        return [f"{path}: over {4 * MOST:,} values, aliases written out. Nothing was checked."]
    content: Any = OmegaConf.to_container(OmegaConf.create(text), resolve=False) if tree else {}
    content = content if isinstance(content, dict) else {}
    ours = "recipe" in content or "recipe" in str(content.get("defaults", ""))
    root, lines = ROOT if ours else VERL, dict(places)
    settings = [
        Setting(f"{path}:{lines.get(key, 1)}", key, UNKNOWN if "${" in str(value) else value)
        for key, value in flat(content)
        if key.partition(".")[0] not in ("defaults", "hydra")
    ]
    if not any(x.key.partition(".")[0] in base(root) for x in settings):
        print(f"{path}: nothing to check: no section of verl's configuration")
    elif why := skipped(VERL, settings):
        print(f"{path}: skipped: {why}")
    else:
        # A run's configuration has every key: nobody set those without an effect.
        return list(problems_of(settings, root, only_keys=base(root).keys() <= content.keys()))
    return []


@functools.cache
def source_of_verl() -> str:
    """Return the text of verl's modules."""
    paths = verl_config().parents[1].rglob("*.py")
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


@functools.cache
def words_of_verl() -> frozenset[str]:
    """Return every name in verl's source."""
    return frozenset(re.findall(r"\w+", source_of_verl()))


@functools.cache
def fields_of(name: str) -> frozenset[str]:
    """Return the fields of a class of verl's source and of its bases."""
    found = set[str]()
    pattern = rf"(?ms)^class {name}\b([^:]*):\n(.*?)(?=^\S|\Z)"
    for bases, body in re.findall(pattern, source_of_verl()):
        found.update(re.findall(r"(?m)^    (\w+):", body))
        found.update(*(fields_of(base) for base in re.findall(r"\w+", bases) if base != name))
    return frozenset(found)


def is_added(key: str, root: str) -> bool:
    """Return True if verl reads a key that its configuration lacks.

    The name behind the last known section is a field of its class, or is read as SECTION.NAME.
    """
    if (verl.why_fixed(key) or "").startswith("no effect"):
        return False
    if is_in(key, NAMED):
        return True
    known, names = known_keys(root), key.split(".")
    depth = max(i for i in range(len(names)) if not i or ".".join(names[:i]) in known)
    kind = default_values(root).get(f"{'.'.join(names[:depth])}._target_")
    if kind and names[depth] in fields_of(kind.rpartition(".")[2]):
        return True
    section = names[depth - 1] if depth else "config"
    owner = "(?:data|config)" if section == "data" else f"{section}(?:_config)?"
    reads = rf"""\b{owner}(?:["']\])?(?:\.|\.get\(\s*["']|\[["']){names[depth]}\b"""
    return bool(re.search(reads, source_of_verl()))


def skipped(name: str, settings: Sequence[Setting]) -> str | None:
    """Return why a command or configuration is not checked, or None."""
    values = {x.key: x.value for x in settings}
    if name.removesuffix(".yaml") != VERL:
        shown_name = re.sub(f"{OPEN}.*?{OPEN}", "?", name)
        return f"--config-name={shown_name}, another configuration than verl's own"
    if elsewhere := [key for key in FOLDERS if key in values]:
        return f"{elsewhere[0]}, other configurations than verl's own"
    for key, supported in ENGINES.items():
        if (value := values.get(key, UNKNOWN)) not in (*supported, UNKNOWN):
            return f"{key}={shown(value)}"
    return None


def is_section(x: Setting, root: str) -> bool:
    """Return True for a value of a section whose keys are known."""
    known = x.key in known_keys(root) and x.key not in default_values(root)
    return known and not is_open(x.key) and x.value is not UNKNOWN and x.value not in ({}, None)


def problems_of(settings: Sequence[Setting], root: str, *, only_keys: bool) -> Iterator[str]:
    """Yield the findings about settings that belong together; `only_keys`: not of their effects."""
    keys, config = known_keys(root), OmegaConf.create(base(root))
    values = {x.key: x.value if x.sure else UNKNOWN for x in settings if x.key in keys}
    defaults = default_values(root)
    linked = [key for key, value in defaults.items() if only_keys and "${" in str(value)]
    for key, value in values.items():
        OmegaConf.update(config, key, None if value is UNKNOWN else value, merge=False)
    for x in settings:
        if x.key not in keys:
            is_plus, passed = "+" in x.prefix, re.match(r".*?kwargs\b", x.key)
            added = only_keys or not is_plus or is_added(passed[0] if passed else x.key, root)
            is_read = is_plus and added and x.key.rpartition(".")[2] in words_of_verl()
            own_class = str(values.get(f"{x.key.rpartition('.')[0]}._target_", "verl."))
            of_class = not own_class.startswith(("verl.", "recipe."))  # a field of the user's
            is_free = of_class or is_open(x.key) or x.key.startswith("hydra.") or (passed and added)
            if not (is_read or is_free or is_in(x.key, linked)):
                yield x.message(verl.unknown_key(x.key, root))
        elif x.prefix == "+" and defaults.get(x.key) is not None:
            yield x.message("the key exists, and hydra adds only new ones. Write it without +.")
        elif is_section(x, root):
            yield x.message("a section of keys, not a value. Set the keys in it.")
        elif x.value is not UNKNOWN:
            foreign = root == VERL and (x.key in FREE or x.key.endswith("strategy"))
            foreign |= (
                x.key == f"{verl.MODEL}.lora_alpha" and not config.actor_rollout_ref.model.lora_rank
            )
            wrong = {} if foreign else verl.wrong_values({x.key: x.value}, root)
            yield from (x.message(why.partition(": ")[2]) for why in wrong.values())
            if x.key == verl.KL_TYPE and verl.has_no_gradient(config):
                yield x.message(verl.NO_GRADIENT)
            is_set = not only_keys and x.value != defaults.get(x.key)
            if is_set and (why := without_effect(x, values, config, root)):
                what, _, instead = why.partition(": set ")
                yield x.message(f"{what}. {f'Set {instead}' if instead else 'Remove it'}.")


def without_effect(x: Setting, values: Mapping[str, Any], config: Any, root: str) -> str | None:
    """Return why verl never reads a setting, or None."""
    if values.get(f"{ROLLOUT}.name", "vllm") != "vllm" and is_in(x.key, [ROLLOUT]):
        return None
    needed = x.key == DYNAMIC and x.value is True
    why = "" if needed else (verl.why_fixed(x.key) or "").removeprefix("unsupported, ")
    off = verl.off_switch(config, x.key)
    if why.startswith("no effect"):
        return why.partition(": ")[0] if "recipe." in why else why
    if off is None or root == ROOT:  # a method may turn the switch on
        return None
    key, value = off[0].key, off[1]
    of_ppo = key == "critic.enable" and config.algorithm.adv_estimator in ("gae", None)
    sources = re.findall(r"[\w.]+", str(default_values(root).get(key)))  # of an interpolation
    on_purpose = values.keys() & {key, *sources} and value in OFF  # or computed
    return None if of_ppo or on_purpose else f"no effect with {key}={shown(value)}"


def of_file(path: Path) -> list[str]:
    """Return the findings of a file; print why nothing in it is checked."""
    try:
        if not path.is_file():
            what = "a folder, not a file" if path.is_dir() else "no such file"
            return [f"{path}: {what}. Name scripts, configuration files or KEY=VALUE."]
        if path.stat().st_size > LARGEST:
            return [f"{path}: over {LARGEST:,} bytes, no launch script. Nothing was checked."]
        content = path.read_bytes()
        if b"\0" in content:
            return [f"{path}: not a text file in UTF-8. Name scripts or configuration files."]
        text = content.decode("utf-8-sig", errors="replace")
        if path.suffix in (".yaml", ".yml"):
            return of_yaml(path, text)
        if path.suffix == ".md":  # keeps the blocks of code, in their lines
            blocks = enumerate(re.split(r"(?m)^[ >]*```.*$", text))
            text = "".join(x if i % 2 else "\n" * x.count("\n") for i, x in blocks)
        return of_script(path, text)
    except (OSError, *COMPOSING) as error:
        return [f"{path}: cannot be read: {one_line(error)}"]
    except RecursionError:
        return [f"{path}: nested too deeply. Nothing was checked."]


def main(arguments: list[str] | None = None) -> int:
    name = "python -m recipe.lint"
    parser = make_parser(name, __doc__, example=f"{name} trainer.use_v1=true data.truncation=left")
    parser.add_argument("what", nargs="+", help="a script, a configuration file, or KEY=VALUE")
    given = parser.parse_args(arguments).what

    def lint() -> int:
        pairs, findings = list[Word](), list[str]()
        for number, text in enumerate(given, start=1):
            if "=" in text and not (len(text) < 256 and Path(text).exists()):
                pairs.append(Word(number, text))
            else:
                findings += of_file(Path(text))
        findings = [*of_command("argument", MAIN, pairs), *findings]
        for line in dict.fromkeys(findings):
            print(line)
        return 1 if findings else 0

    return run_command("recipe.lint", lint, interrupted="nothing was changed", progress=False)


if __name__ == "__main__":
    sys.exit(main())
