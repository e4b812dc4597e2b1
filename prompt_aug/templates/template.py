"""Templates: one record each, a bank of them in a yaml file, and their rendering.

A template is system and user text, the start of the assistant's turn (prefill: prompt tokens,
outside the loss and outside what the format check sees), stop strings and a format check.
`python -m prompt_aug.templates check BANK` validates a bank and shows every template rendered.
"""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

import yaml

from prompt_aug.errors import UserError
from prompt_aug.templates.format_checks import (
    RULE_KEYS,
    Rule,
    check_rules,
    format_reward,
    published_reward,
)
from prompt_aug.templates.rendering import (
    SLOT,
    Overlong,
    Rendered,
    Style,
    overlong,
    prompt_length,
    render,
)

__all__ = [
    "Bank",
    "BankError",
    "FormatSetting",
    "Overlong",
    "Rendered",
    "Style",
    "Template",
    "UnknownTemplateError",
    "load_bank",
    "overlong",
    "prompt_length",
    "render",
]

FormatSetting = Literal["strict", "published"]
FORMAT_SETTINGS: tuple[str, ...] = get_args(FormatSetting)
OWN_BANK = Path(__file__).with_name("template_bank.yaml")


class BankError(UserError, ValueError):
    """A bank that is not valid; the message says where and what to do."""


class UnknownTemplateError(UserError, KeyError):
    """A template name that the bank does not have."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Template:
    """One prompt template.

    `user` holds the slot {question} exactly once; `system` None leaves the model's own default.
    `format` are the rules of the setting "strict"; `published` the markers of the setting
    "published", each of which must occur exactly once (see `prompt_aug.templates.format_checks`).
    `answer_tag` names the tag that holds the answer, if one does. `source` says where the wording
    comes from.
    """

    name: str
    category: str
    system: str | None = None
    user: str = SLOT
    prefill: str = ""
    stop: tuple[str, ...] = ()
    format: tuple[Rule, ...] = ()
    published: tuple[str, ...] = ()
    format_setting: FormatSetting = "strict"
    answer_tag: str | None = None
    source: str = ""

    def __post_init__(self) -> None:
        if not self.name or not self.category:
            raise BankError(f"template {self.name!r}: name and category must not be empty")
        if self.user.count(SLOT) != 1:
            raise BankError(f"template {self.name}: user must hold {SLOT} exactly once")
        if SLOT in (self.system or "") + self.prefill:
            raise BankError(f"template {self.name}: {SLOT} belongs into user only")
        if self.format_setting not in FORMAT_SETTINGS:
            raise BankError(
                f"template {self.name}: format_setting must be one of {FORMAT_SETTINGS}"
            )
        if not all(self.stop) or not all(self.published):
            raise BankError(f"template {self.name}: an empty string in stop or published")
        try:
            check_rules(self.format)
        except ValueError as error:
            raise BankError(f"template {self.name}: {error}") from error

    def format_reward(self, response: str) -> float:
        """The format reward in [0, 1], a multiple of 1/1024, of the text after the prefill."""
        if self.format_setting == "published":
            return published_reward(self.published, response)
        return format_reward(self.format, response, self.prefill)


class Bank(Mapping[str, Template]):
    """Templates by name, in file order."""

    def __init__(self, templates: Sequence[Template]) -> None:
        self._templates = {template.name: template for template in templates}
        if not templates:
            raise BankError("a bank needs at least one template")
        if len(self._templates) != len(templates):
            raise BankError("a bank names a template twice")

    def __getitem__(self, name: str) -> Template:
        if name in self._templates:
            return self._templates[name]
        close = difflib.get_close_matches(str(name), self.names, n=1)
        hint = f" Did you mean {close[0]!r}?" if close else ""
        raise UnknownTemplateError(
            f"unknown template {name!r}.{hint} The bank has: {', '.join(self.names)}"
        )

    def __contains__(self, name: object) -> bool:
        return name in self._templates

    def __iter__(self) -> Iterator[str]:
        return iter(self._templates)

    def __len__(self) -> int:
        return len(self._templates)

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in file order."""
        return tuple(self._templates)

    def with_format(self, setting: FormatSetting) -> "Bank":
        """The same bank with the format checks "strict" or "published"."""
        return Bank([replace(template, format_setting=setting) for template in self.values()])


def load_bank(path: str | Path | None = None, format_setting: FormatSetting = "strict") -> Bank:
    """The bank of a yaml file; None means the project's own 13 templates.

    A .json file is one of published renderings (`prompt_aug.templates.published`).

    Raises BankError for a missing or malformed file, unknown or repeated keys, and bad templates.
    """
    path = OWN_BANK if path is None else Path(path)
    if path.suffix == ".json":
        from prompt_aug.templates.published import load_published  # which loads our own bank

        return load_published(path, format_setting=format_setting)
    if not path.is_file():
        raise BankError(f"template bank {path}: no such file")
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_UniqueKeyLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BankError(f"template bank {path} is not valid yaml: {error}") from error
    try:
        entries = _section(content, "templates")
        templates = [_template(str(name), entry) for name, entry in entries.items()]
        return Bank(templates).with_format(format_setting)
    except BankError as error:
        raise BankError(f"template bank {path}: {error}") from error


class _UniqueKeyLoader(yaml.SafeLoader):
    """yaml's safe loader, which takes the last of two equal keys in silence; this one refuses."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        repeated = {key for key in keys if keys.count(key) > 1}
        if repeated:
            raise yaml.YAMLError(f"the key {sorted(repeated)[0]!r} stands twice, {node.start_mark}")
        return super().construct_mapping(node, deep)


def _section(content: Any, key: str) -> Mapping[str, Any]:
    section = content.get(key) if isinstance(content, Mapping) else None
    if not isinstance(section, Mapping) or not section:
        raise BankError(f"it must have a section '{key}:' of records by name")
    return section


def _template(name: str, entry: Any) -> Template:
    if not isinstance(entry, Mapping):
        raise BankError(f"template {name}: not a record of keys and values")
    known = [field.name for field in fields(Template) if field.name != "name"]
    unknown = sorted(set(entry) - set(known))
    if unknown:
        raise BankError(f"template {name}: unknown keys {unknown}; known are {', '.join(known)}")
    values = dict(entry)
    for key in ("category", "system", "user", "prefill", "answer_tag", "source"):
        if values.get(key) is not None and not isinstance(values[key], str):
            raise BankError(f"template {name}: {key} must be a text, got {values[key]!r}")
    for key in ("stop", "published"):
        values[key] = _texts(name, key, values.get(key, ()))
    values["format"] = tuple(_rule(name, rule) for rule in values.get("format") or ())
    if "category" not in values:
        raise BankError(f"template {name}: category is missing")
    return Template(name=name, **values)


def _rule(name: str, entry: Any) -> Rule:
    if not isinstance(entry, Mapping) or "weight" not in entry:
        raise BankError(f"template {name}: a format rule needs a weight, got {entry!r}")
    unknown = sorted(set(entry) - set(RULE_KEYS))
    if unknown:
        raise BankError(
            f"template {name}: unknown format checks {unknown}; known are {', '.join(RULE_KEYS)}"
        )
    values = dict(entry)
    for key in ("once", "absent", "order", "nested"):
        values[key] = _texts(name, key, values.get(key, ()))
    try:
        return Rule(**values)
    except (ValueError, TypeError) as error:
        raise BankError(f"template {name}: {error}") from error


def _texts(name: str, key: str, value: Any) -> tuple[str, ...]:
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise BankError(f"template {name}: {key} must be a list of texts, got {value!r}")
    return tuple(value)


if __name__ == "__main__":
    import sys

    from prompt_aug.templates.__main__ import main

    sys.exit(main())
