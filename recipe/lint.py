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

from prompt_aug.base.commands import make_parser
from prompt_aug.typed import shown
from recipe.config.base import ROOT, base, flat, is_in, known_keys, verl_config
from recipe.config.compose import OFF, is_open, parsed
from recipe.config.verl import ASYNCHRONOUS, off_switch, unknown_key, why_fixed, wrong_values
from recipe.errors import ConfigError

VERL = "ppo_trainer"
UNKNOWN = object()  # a value that a script computes
NAME = r"[a-z_]\w*(?:\.\w+)+|model_engine"
SETTING = re.compile(rf"""(?<![\w.$/-])([+~]{{0,2}})({NAME})=((?:"[^"]*"|'[^']*'|[^\s"'\\)])*)""")
VARIABLE = re.compile(r"^\s*(?:export\s+|local\s+|readonly\s+)?([A-Za-z_]\w*)=(.*)$")
REFERENCE = re.compile(r"\$\{(\w+)(?::?-([^${}]*))?\}|\$(\w+)")
# Values of verl's V1 trainer with FSDP; others are skipped.
ENGINES = {
    "model_engine": ("dp",),
    "actor_rollout_ref.actor.strategy": ("fsdp", "fsdp2"),
    "trainer.use_v1": (True,),
    "trainer.v1.trainer_mode": ("sync", "recipe_sync", *ASYNCHRONOUS),
}
# Values that other engines and devices allow.
ROLLOUT = "actor_rollout_ref.rollout"
FREE = ("model_engine", "trainer.device", f"{ROLLOUT}.name")


@dataclass(frozen=True)
class Setting:
    """A key that is set at `place`, as ``FILE:LINE``; `plus`: hydra's prefix."""

    place: str
    key: str
    value: Any
    plus: str = ""

    def message(self, why: str) -> str:
        value = "" if self.value is UNKNOWN else shown(self.value)
        return f"{self.place}: {self.plus}{self.key}={value}: {why}"


def read_value(text: str, variables: Mapping[str, str | None]) -> Any:
    """Return the value of shell text as hydra reads it, or `UNKNOWN`."""

    def replaced(match: re.Match[str]) -> str:
        return variables.get(match[1] or match[3]) or match[2] or match[0]

    try:
        text = "".join(shlex.split(text if "'" in text else REFERENCE.sub(replaced, text)))
        return UNKNOWN if re.search(r"[$`]", text) else parsed(f"a={text}").value()
    except (ConfigError, ValueError):
        return UNKNOWN


def of_script(path: Path) -> list[Setting]:
    """Return the settings of a shell script, in the order of its lines."""
    variables: dict[str, str | None] = {}
    matches = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        line = re.sub(r"(^|\s)#.*", "", line)
        if match := VARIABLE.match(line):
            value = read_value(match[2].rstrip("\\ "), variables)
            text = None if value is UNKNOWN else shown(value)
            first = variables.setdefault(match[1], text)
            variables[match[1]] = text if first == text else None
        for plus, key, text in SETTING.findall(line):
            matches.append((number, plus, key, text))
    return [
        Setting(f"{path}:{number}", key, read_value(text, variables), plus)
        for number, plus, key, text in matches
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
    for key, supported in ENGINES.items():
        if (value := values.get(key, UNKNOWN)) not in (*supported, UNKNOWN):
            return f"{key}={shown(value)}"
    return None


def problems_of(settings: Sequence[Setting], root: str) -> Iterator[str]:
    """Yield the findings about settings that belong together."""
    keys, config = known_keys(root), OmegaConf.create(base(root))
    values = {x.key: x.value for x in settings if x.key in keys}
    defaults = dict(flat(base(root)))
    for key, value in values.items():
        OmegaConf.update(config, key, None if value is UNKNOWN else value, merge=False)
    for x in settings:
        if x.key not in keys:
            is_read = "+" in x.plus and x.key.rpartition(".")[2] in words_of_verl()
            if not (is_read or is_open(x.key) or re.match(r"hydra\.|.*kwargs\.", x.key)):
                yield x.message(unknown_key(x.key, root))
        elif x.plus == "+" and defaults.get(x.key) is not None:
            yield x.message("the key exists, and hydra adds only new ones. Write it without +.")
        elif x.value is not UNKNOWN:
            foreign = root == VERL and (x.key in FREE or x.key.endswith("strategy"))
            wrong = {} if foreign else wrong_values({x.key: x.value}, root)
            yield from (x.message(why.partition(": ")[2]) for why in wrong.values())
            if x.value != defaults.get(x.key) and (why := without_effect(x, values, config)):
                what, _, instead = why.partition(": set ")
                yield x.message(f"{what}. {f'Set {instead}' if instead else 'Remove it'}.")


def without_effect(x: Setting, values: Mapping[str, Any], config: Any) -> str | None:
    """Return why verl never reads a setting, or None."""
    if values.get(f"{ROLLOUT}.name", "vllm") != "vllm" and is_in(x.key, [ROLLOUT]):
        return None
    why, off = why_fixed(x.key) or "", off_switch(config, x.key)
    if why.startswith("no effect"):
        return why.partition(": ")[0] if "recipe." in why else why
    if off is None or off[0].key.startswith("recipe."):
        return None
    key, value = off[0].key, off[1]
    of_ppo = key == "critic.enable" and config.algorithm.adv_estimator in ("gae", None)
    on_purpose = key in values and value in OFF  # or computed
    return None if of_ppo or on_purpose else f"no effect with {key}={shown(value)}"


def check(path: Path) -> list[str]:
    """Return the findings of a file; print why it is skipped."""
    text, is_yaml = path.read_text(encoding="utf-8"), path.suffix in (".yaml", ".yml")
    settings = of_yaml(path) if is_yaml else of_script(path)
    ours = any(x.key.startswith("recipe.") for x in settings) or "recipe.train" in text
    why = skipped(text, settings)
    if not (is_yaml or ours or re.search(r"verl\.trainer\.main_ppo(?!\w)", text)):
        why = "it does not start verl.trainer.main_ppo"
    if why:
        print(f"{path}: skipped: {why}")
        return []
    return list(problems_of(settings, ROOT if ours else VERL))


def main(arguments: list[str] | None = None) -> int:
    name = "python -m recipe.lint"
    parser = make_parser(name, __doc__, example=f"{name} trainer.use_v1=true data.truncation=left")
    parser.add_argument("what", nargs="+", help="a script, a configuration file, or KEY=VALUE")
    given = parser.parse_args(arguments).what
    pairs = [SETTING.fullmatch(text) for text in given]
    settings = [Setting("command line", x[2], read_value(x[3], {}), x[1]) for x in pairs if x]
    ours = any(x.key.startswith("recipe.") for x in settings)
    findings = list(problems_of(settings, ROOT if ours else VERL))
    for text, pair in zip(given, pairs, strict=True):
        findings += [] if pair else check(Path(text))
    for line in dict.fromkeys(findings):
        print(line)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
