"""The record of a template, and a bank of them by name."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from prompt_aug.base.errors import UserError
from prompt_aug.templates.format_checks import (
    Rule,
    check_rules,
    format_reward,
    published_reward,
)

FormatSetting = Literal["strict", "published"]
FORMAT_SETTINGS: tuple[str, ...] = get_args(FormatSetting)
SLOT = "{question}"  # where the question goes in `user`


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
