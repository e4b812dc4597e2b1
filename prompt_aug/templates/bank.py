"""Banks from files: yaml, one record a template, or the published renderings as json.

Published renderings are one ChatML string per template name, with QUESTION in the place of the
question (`prompt_aug.templates.published`). Wording and prefill come from there; format checks,
category and answer tag from the project's template of that name, if there is one.
"""

import functools
import re
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import yaml

from prompt_aug.base.files import FileError, read_json, read_text
from prompt_aug.templates.format_checks import RULE_KEYS, Rule
from prompt_aug.templates.published import QUESTION, how_to_make
from prompt_aug.templates.template import SLOT, Bank, BankError, FormatSetting, Template

OWN_BANK = Path(__file__).with_name("template_bank.yaml")
BANKS: dict[str | None, Path] = {
    None: OWN_BANK,
    "papers": Path(__file__).with_name("paper_prompts.yaml"),
}
_CHATML = re.compile(
    r"(?:<\|im_start\|>system\n(?P<system>.*?)<\|im_end\|>\n)?"
    r"<\|im_start\|>user\n(?P<user>.*?)<\|im_end\|>\n"
    r"<\|im_start\|>assistant\n(?P<prefill>.*)",
    re.DOTALL,
)


def load_bank(path: str | Path | None = None, format_setting: FormatSetting = "strict") -> Bank:
    """The bank of a yaml file, or of published renderings in a .json file; None: the own bank.

    The project's own bank has the 13 templates of arXiv 2602.03190, "papers" the prompts that
    papers print.
    Raises BankError for a missing or malformed file, unknown or repeated keys, and bad templates.
    """
    path = BANKS.get(None if path is None else str(path)) or Path(str(path))
    try:
        templates = _published(path) if path.suffix == ".json" else _from_yaml(read_text(path))
        return Bank(templates).with_format(format_setting)
    except FileError as error:
        raise BankError(f"template bank: {error}.{how_to_make(path)}") from error
    except BankError as error:
        raise BankError(f"template bank {path}: {error}") from error


@functools.lru_cache(maxsize=8)  # by the text: templates are immutable, and yaml takes 14 ms
def _from_yaml(text: str) -> tuple[Template, ...]:
    try:
        content = yaml.load(text, Loader=_UniqueKeyLoader)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # ValueError: an impossible date
        raise BankError(f"not valid yaml: {error}") from error
    section = content.get("templates") if isinstance(content, Mapping) else None
    if not isinstance(section, Mapping) or not section:
        raise BankError("it must have a section 'templates:' of records by name")
    return tuple(_template(str(name), entry) for name, entry in section.items())


def _published(path: Path) -> tuple[Template, ...]:
    renderings, known = read_json(path), {**load_bank("papers"), **load_bank()}
    if not isinstance(renderings, Mapping):
        raise BankError("published renderings are one ChatML string by template name")
    templates = []
    for name, rendering in renderings.items():
        match = _CHATML.fullmatch(str(rendering))
        if match is None:
            raise BankError(f"{name} is not ChatML")
        templates.append(
            replace(
                known.get(name) or Template(name=name, category="published"),
                system=match["system"],
                user=match["user"].replace(QUESTION, SLOT),
                prefill=match["prefill"],
                source=f"the authors' code, read from {path.name}",
            )
        )
    return tuple(templates)


class _UniqueKeyLoader(yaml.SafeLoader):
    """yaml's safe loader, which silently takes the last of two equal keys; this one refuses."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        merge = "tag:yaml.org,2002:merge"  # "<<", which may stand twice
        keys = [str(key.value) for key, _ in node.value if key.tag != merge]
        repeated = {key for key in keys if keys.count(key) > 1}
        if repeated:
            raise yaml.YAMLError(f"the key {sorted(repeated)[0]!r} stands twice, {node.start_mark}")
        return super().construct_mapping(node, deep)


def _template(name: str, entry: Any) -> Template:
    if not isinstance(entry, Mapping):
        raise BankError(f"template {name}: not a record of keys and values")
    known = [field.name for field in fields(Template) if field.name != "name"]
    unknown = sorted(set(map(str, entry)) - set(known))
    if unknown:
        raise BankError(f"template {name}: unknown keys {unknown}; known are {', '.join(known)}")
    values = {key: value for key, value in entry.items() if value is not None}
    for key in ("category", "system", "user", "prefill", "answer_tag", "source"):
        if not isinstance(values.get(key, ""), str):
            raise BankError(f"template {name}: {key} must be a text, got {values[key]!r}")
    for key in ("stop", "published"):
        values[key] = _texts(name, key, values.get(key, ()))
    rules = values.get("format") or ()
    if not isinstance(rules, list | tuple):
        raise BankError(f"template {name}: format must be a list of rules, got {rules!r}")
    values["format"] = tuple(_rule(name, rule) for rule in rules)
    if "category" not in values:
        raise BankError(f"template {name}: category is missing")
    return Template(name=name, **values)


def _rule(name: str, entry: Any) -> Rule:
    if not isinstance(entry, Mapping) or "weight" not in entry:
        raise BankError(f"template {name}: a format rule needs a weight, got {entry!r}")
    unknown = sorted(set(map(str, entry)) - set(RULE_KEYS))
    if unknown:
        raise BankError(
            f"template {name}: unknown format checks {unknown}; known are {', '.join(RULE_KEYS)}"
        )
    values = dict(entry)
    for key in ("once", "absent", "order", "nested"):
        values[key] = _texts(name, key, values.get(key, ()))
    pairs = values.get("filled") or ()
    if not isinstance(pairs, list | tuple):
        raise BankError(f"template {name}: filled must be a list of pairs, got {pairs!r}")
    values["filled"] = tuple(_texts(name, "filled", pair) for pair in pairs)
    try:
        return Rule(**values)
    except (ValueError, TypeError) as error:
        raise BankError(f"template {name}: {error}") from error


def _texts(name: str, key: str, value: Any) -> tuple[str, ...]:
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise BankError(f"template {name}: {key} must be a list of texts, got {value!r}")
    return tuple(value)
