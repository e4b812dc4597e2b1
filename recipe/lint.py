"""Check launch scripts and configurations of verl 0.9.1, without starting anything.

    python -m recipe.lint SCRIPT.sh config.yaml KEY=VALUE ...

Reports keys that do not exist or have moved, keys without an effect, and values of a wrong type or
out of range, a line each. A script may start `verl.trainer.main_ppo` or `recipe.train`; shell
variables count if the script gives them one literal value. The trainer is verl's V1 with FSDP;
scripts of other trainers and engines are skipped. Exit code 1 with findings.
"""

import functools
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from prompt_aug.base.commands import make_parser
from prompt_aug.typed import shown
from recipe.config.base import ROOT, base, flat, is_in, known_keys, verl_config
from recipe.config.compose import OFF, is_open, parsed
from recipe.config.verl import off_switch, unknown_key, why_fixed, wrong_values
from recipe.errors import ConfigError

VERL = "ppo_trainer"
UNKNOWN = object()  # a value that a script computes
NAME = r"[a-z_]\w*(?:\.\w+)+|model_engine"
SETTING = re.compile(rf"""(?<![\w.$/-])([+~]{{0,2}})({NAME})=((?:"[^"]*"|'[^']*'|[^\s"'\\)])*)""")
VARIABLE = re.compile(r"^\s*(?:export\s+|local\s+|readonly\s+)?([A-Za-z_]\w*)=(.*)$")
REFERENCE = re.compile(r"\$\{(\w+)(?::?-([^${}]*))?\}|\$(\w+)")
ESTIMATOR = "algorithm.adv_estimator"
# Values that other engines and devices allow.
FREE = ("model_engine", "trainer.device", "actor_rollout_ref.rollout.name")


@dataclass(frozen=True)
class Setting:
    """A key that is set at `place`, as ``FILE:LINE``; `plus`: hydra's prefix."""

    place: str
    key: str
    value: Any
    plus: str = ""

    def said(self, why: str) -> str:
        value = "" if self.value is UNKNOWN else shown(self.value)
        return f"{self.place}: {self.plus}{self.key}={value}: {why}"


def read_value(text: str, variables: Mapping[str, str | None]) -> Any:
    """Return the value of shell text as hydra reads it, or `UNKNOWN`."""

    def replaced(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        known = variables[name] if name in variables else match[2]
        return match[0] if known is None else known or match[2] or ""

    if "'" not in text:
        text = REFERENCE.sub(replaced, text)
    try:
        text = "".join(shlex.split(text))
        return UNKNOWN if re.search(r"[$`]", text) else parsed(f"a={text}").value()
    except (ConfigError, ValueError):
        return UNKNOWN


def of_script(path: Path) -> list[Setting]:
    """Return the settings of a shell script, in the order of its lines."""
    variables: dict[str, str | None] = {}
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        line = re.sub(r"(^|\s)#.*", "", line)
        if match := VARIABLE.match(line):
            value = read_value(match[2].rstrip("\\ "), variables)
            text = None if value is UNKNOWN else shown(value)
            known = variables.setdefault(match[1], text)
            variables[match[1]] = text if known == text else None
        for plus, key, text in SETTING.findall(line):
            found.append((number, plus, key, text))
    return [
        Setting(f"{path}:{number}", key, read_value(text, variables), plus)
        for number, plus, key, text in found
    ]


def of_yaml(path: Path) -> list[Setting]:
    """Return the settings of a configuration file."""

    def lines(node: yaml.Node, prefix: str = "") -> Iterator[tuple[str, int]]:
        for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
            yield f"{prefix}{key.value}", key.start_mark.line + 1
            yield from lines(value, f"{prefix}{key.value}.")

    place = dict(lines(yaml.compose(path.read_text(encoding="utf-8"), yaml.CSafeLoader)))
    content: Any = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    return [
        Setting(f"{path}:{place[key]}", key, UNKNOWN if "${" in str(value) else value)
        for key, value in flat(content)
        if key.partition(".")[0] not in ("defaults", "hydra")
    ]


@functools.cache
def words_of_verl() -> frozenset[str]:
    """Return every name in verl's source."""
    texts = (p.read_text(encoding="utf-8") for p in verl_config().parents[1].rglob("*.py"))
    return frozenset(word for text in texts for word in re.findall(r"\w+", text))


def skipped(text: str, settings: Sequence[Setting]) -> str | None:
    """Return why a script or configuration is not checked, or None."""
    values = {x.key: x.value for x in settings}
    if (name := re.search(r"--config-name[= ]['\"]?(\w+)", text)) and name[1] != VERL:
        return f"--config-name={name[1]}, another configuration than verl's own"
    if "hydra.searchpath" in values:
        return "hydra.searchpath, other configurations than verl's own"
    if values.get("model_engine", "dp") not in ("dp", UNKNOWN):
        return f"model_engine={values['model_engine']}"
    strategy = values.get("actor_rollout_ref.actor.strategy", "fsdp")
    if strategy not in ("fsdp", "fsdp2", UNKNOWN):
        return f"actor_rollout_ref.actor.strategy={strategy}"
    if values.get("trainer.use_v1") is False:
        return "trainer.use_v1=false, verl's older trainer"
    if (mode := values.get("trainer.v1.trainer_mode", "sync")) not in ("sync", "recipe_sync"):
        return f"trainer.v1.trainer_mode={shown(mode)}"
    return None


def problems_of(settings: Sequence[Setting], root: str) -> Iterator[str]:
    """Yield the findings about settings that belong together."""
    known, config = known_keys(root), OmegaConf.create(base(root))
    values = {x.key: x.value for x in settings if x.key in known}
    defaults = {key: default_of(config, key) for key in values}
    for key, value in values.items():
        OmegaConf.update(config, key, None if value is UNKNOWN else value, merge=False)
    for x in settings:
        if x.key not in known:
            if not is_open(x.key) and not (
                "+" in x.plus and x.key.split(".")[-1] in words_of_verl()
            ):
                yield x.said(unknown_key(x.key, root))
        elif x.plus == "+" and defaults[x.key] not in (None, UNKNOWN):
            yield x.said("the key exists, and hydra adds only new ones. Write it without +.")
        elif x.value is not UNKNOWN:
            foreign = root == VERL and (x.key in FREE or x.key.endswith("strategy"))
            wrong = {} if foreign else wrong_values({x.key: x.value}, root)
            yield from (x.said(why.partition(": ")[2]) for why in wrong.values())
            if x.value != defaults[x.key] and (why := without_effect(x, values, config)):
                yield x.said(f"{why}. Remove it.")


def default_of(config: Any, key: str) -> Any:
    """Return the value of a key, resolved; `UNKNOWN` if it cannot be."""
    try:
        value = OmegaConf.select(config, key)
    except OmegaConfBaseException:
        return UNKNOWN
    return OmegaConf.to_container(value) if OmegaConf.is_config(value) else value


def without_effect(x: Setting, values: Mapping[str, Any], config: Any) -> str | None:
    """Return why verl never reads a setting, or None."""
    engine = values.get("actor_rollout_ref.rollout.name", "vllm")
    if engine != "vllm" and is_in(x.key, ["actor_rollout_ref.rollout"]):
        return None
    why = why_fixed(x.key) or ""
    if why.startswith("no effect"):
        return why.partition(": ")[0] if "recipe." in why else why
    if (off := off_switch(config, x.key)) is None or off[0].key.startswith("recipe."):
        return None
    switch, value = off
    if value is None and switch.key == "critic.enable":  # PPO has one
        if OmegaConf.select(config, ESTIMATOR) in ("gae", None):
            return None
    elif values.get(switch.key) is UNKNOWN or (switch.key in values and value in OFF):
        return None  # turned off on purpose
    return f"no effect with {switch.key}={shown(value)}"


def check(argument: Path) -> tuple[list[str], str | None]:
    """Return the findings of a file, and why it was skipped."""
    text = argument.read_text(encoding="utf-8", errors="replace")
    is_yaml = argument.suffix in (".yaml", ".yml")
    settings = of_yaml(argument) if is_yaml else of_script(argument)
    ours = bool(
        re.search(r"^\s*-? *recipe\b", text, re.MULTILINE) if is_yaml else "recipe.train" in text
    )
    if not (is_yaml or ours or re.search(r"verl\.trainer\.main_ppo(?!\w)", text)):
        return [], "it does not start verl.trainer.main_ppo"
    if why := skipped(text, settings):
        return [], why
    return list(problems_of(settings, ROOT if ours else VERL)), None


def main(arguments: list[str] | None = None) -> int:
    name = "python -m recipe.lint"
    parser = make_parser(name, __doc__, example=f"{name} examples/grpo_trainer/run_qwen2_5_7b.sh")
    parser.add_argument("what", nargs="+", help="a script, a configuration file, or KEY=VALUE")
    given = parser.parse_args(arguments).what
    found = []
    pairs = [text for text in given if "=" in text and not Path(text).exists()]
    settings = [
        Setting("command line", key, read_value(text, {}), plus)
        for plus, key, text in (x for pair in pairs for x in SETTING.findall(pair))
    ]
    ours = any(x.key.startswith("recipe.") for x in settings)
    found += problems_of(settings, ROOT if ours else VERL)
    for text in given:
        if text not in pairs:
            problems, why = check(Path(text))
            found += problems
            if why:
                print(f"{text}: skipped: {why}")
    print("\n".join(dict.fromkeys(found)), end="\n" * bool(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
