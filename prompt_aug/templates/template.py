"""The record of a template, and a bank of templates by name."""

from collections.abc import Sequence
from typing import Annotated, Literal, Self, get_args

from pydantic import BeforeValidator, Field, model_validator

from prompt_aug.base.errors import UserError
from prompt_aug.templates.format_checks import Mark, Marks, Rule, format_reward, published_reward
from prompt_aug.typed import Record, Several, as_list, closest

FormatSetting = Literal["strict", "published"]
FORMAT_SETTINGS: tuple[str, ...] = get_args(FormatSetting)
Stops = Annotated[Several[Annotated[str, Field(min_length=1)]], BeforeValidator(as_list)]
SLOT = "{question}"  # the place of the question in `user`


class BankError(UserError, ValueError):
    """An invalid bank. The message says where and what to do."""


class UnknownTemplateError(UserError, KeyError):
    """A template name that is not in the bank."""


class Template(Record):
    """One prompt template.

    `user` has the slot {question} exactly once; `system` None leaves the model's own default.
    `format` are the rules of the setting "strict"; `published` the markers of the setting
    "published", each of which must occur exactly once (see `prompt_aug.templates.format_checks`).
    `answer_tag` names the tag that contains the answer, if one does. `source` is the origin of the
    wording.
    """

    name: Mark
    category: Mark
    system: str | None = None
    user: str = SLOT
    prefill: str = ""
    stop: Stops = ()
    format: Several[Rule] = ()
    published: Marks = ()
    format_setting: FormatSetting = "strict"
    answer_tag: str | None = None
    source: str = ""

    @model_validator(mode="after")
    def _has_one_slot_and_weights_of_one(self) -> Self:
        if self.user.count(SLOT) != 1:
            raise ValueError(f"user must contain {SLOT} exactly once")
        if SLOT in (self.system or "") + self.prefill:
            raise ValueError(f"{SLOT} belongs into user only")
        total = sum(rule.weight for rule in self.format)
        if self.format and total != 1:
            raise ValueError(f"the weights of format sum to {total}, not to 1")
        return self

    def format_reward(self, response: str) -> float:
        """Return the format reward, in [0, 1], of the text after the prefill."""
        if self.format_setting == "published":
            return published_reward(self.published, response)
        return format_reward(self.format, response, self.prefill)

    def requires(self, tag: str) -> bool:
        """Return True if the prefill opens <tag> or the format reward requires it."""
        if self.format_setting == "published":
            return any(f"<{tag}>" in text for text in (self.prefill, *self.published))
        return f"<{tag}>" in self.prefill or any(rule.requires(tag) for rule in self.format)


class Bank(dict[str, Template]):
    """Templates by name, in file order."""

    def __init__(self, templates: Sequence[Template]) -> None:
        super().__init__((template.name, template) for template in templates)

    def __missing__(self, name: str) -> Template:
        raise UnknownTemplateError(
            f"unknown template {name!r}{closest(str(name), self.names) or '.'} The bank has: "
            f"{', '.join(self.names)}. Name one of these, or use a bank that has {name!r}."
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in file order."""
        return tuple(self)

    def with_format(self, setting: FormatSetting) -> "Bank":
        """Return the same bank with the format checks "strict" or "published"."""
        change = {"format_setting": setting}
        return Bank([template.model_copy(update=change) for template in self.values()])
