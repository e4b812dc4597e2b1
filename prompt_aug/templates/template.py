"""The record of a template, a bank of templates by name, and its files.

A bank is a yaml file with one record per template, or published renderings as json: one ChatML
string per template name, with QUESTION as the place of the question
(`prompt_aug.templates.published`). Renderings give wording and prefill. Format checks, category and
answer tag come from the project's template of that name, if there is one.
"""

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, Field, model_validator

from prompt_aug.base.errors import UserError
from prompt_aug.base.files import FileError, read_json, read_text
from prompt_aug.templates.format_checks import Mark, Marks, Rule, TagName, published_reward
from prompt_aug.typed import Record, Several, as_list, closest, parse_typed, parse_yaml

FormatSetting = Literal["strict", "published"]
Stops = Annotated[Several[Annotated[str, Field(min_length=1)]], BeforeValidator(as_list)]
SLOT = "{question}"  # the place of the question in `user`
QUESTION = "QUESTION"  # and in published renderings


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
    answer_tag: TagName | None = None
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
        """Return the format reward, in [0, 1], of the text after the prefill; 1 without rules."""
        if self.format_setting == "published":
            return published_reward(self.published, response)
        held = (rule.weight for rule in self.format if rule.holds(response, self.prefill))
        return float(sum(held)) if self.format else 1.0

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


BANKS: dict[str | None, Path] = {
    None: Path(__file__).with_name("template_bank.yaml"),
    "papers": Path(__file__).with_name("paper_prompts.yaml"),
}
_CHATML = re.compile(
    r"(?:<\|im_start\|>system\n(?P<system>.*?)<\|im_end\|>\n)?"
    r"<\|im_start\|>user\n(?P<user>.*?)<\|im_end\|>\n"
    r"<\|im_start\|>assistant\n(?P<prefill>.*)",
    re.DOTALL,
)


def load_bank(path: str | Path | None = None, format_setting: FormatSetting = "strict") -> Bank:
    """Return the bank of a yaml file, or of published renderings in a .json file.

    None is the project's own bank, the 13 templates of arXiv 2602.03190; "papers" the prompts that
    papers print. Raises BankError for a missing or malformed file, unknown or repeated keys, and
    invalid templates.
    """
    path = BANKS.get(None if path is None else str(path)) or Path(str(path))
    try:
        templates = _published(path) if path.suffix == ".json" else _from_yaml(read_text(path))
        change = {"format_setting": format_setting}
        return Bank([template.model_copy(update=change) for template in templates])
    except FileError as error:
        hint = " examples/PUBLISHED.md has the commands." if path.suffix == ".json" else ""
        raise BankError(f"template bank: {error}.{hint}") from error
    except BankError as error:
        raise BankError(f"template bank {path}: {error}") from error


@functools.lru_cache(maxsize=8)  # by the text: templates are immutable, and yaml takes 14 ms
def _from_yaml(text: str) -> tuple[Template, ...]:
    try:
        content = parse_yaml(text, "bank")
    except FileError as error:
        raise BankError(str(error)) from error
    section = content.get("templates") if isinstance(content, Mapping) else None
    if not isinstance(section, Mapping) or not section:
        raise BankError("templates: not set. Write a section of records by name.")
    records = {str(name): _record(str(name), entry) for name, entry in section.items()}
    return tuple(parse_typed(records, dict[str, Template], "templates", BankError).values())


def _record(name: str, entry: object) -> object:
    """Return the entry with its name; a key without a value counts as left out."""
    if not isinstance(entry, Mapping):
        return entry
    return {str(k): value for k, value in entry.items() if value is not None} | {"name": name}


def _published(path: Path) -> tuple[Template, ...]:
    renderings, own = read_json(path), {**load_bank("papers"), **load_bank()}
    templates = []
    for name, rendering in renderings.items():
        match = _CHATML.fullmatch(str(rendering))
        if match is None:
            raise BankError(f"{name} is not ChatML")
        base = own.get(name) or Template(name=name, category="published")
        wording = {
            "system": match["system"],
            "user": match["user"].replace(QUESTION, SLOT),
            "prefill": match["prefill"],
            "source": f"the authors' code, read from {path.name}",
        }
        templates.append(Template.model_validate(dict(base) | wording))
    return tuple(templates)
