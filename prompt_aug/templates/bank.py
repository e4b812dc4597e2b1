"""Banks from files: yaml with one record per template, or published renderings as json.

Published renderings are one ChatML string per template name, with QUESTION as the place of the
question (`prompt_aug.templates.published`). They give wording and prefill. Format checks, category
and answer tag come from the project's template of that name, if there is one.
"""

import functools
import re
from collections.abc import Mapping
from pathlib import Path

from prompt_aug.base.files import FileError, read_json, read_text
from prompt_aug.templates.published import QUESTION
from prompt_aug.templates.template import SLOT, Bank, BankError, FormatSetting, Template
from prompt_aug.typed import parse_typed, parse_yaml

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
    """Return the bank of a yaml file, or of published renderings in a .json file.

    None is the project's own bank, the 13 templates of arXiv 2602.03190; "papers" the prompts that
    papers print. Raises BankError for a missing or malformed file, unknown or repeated keys, and
    invalid templates.
    """
    path = BANKS.get(None if path is None else str(path)) or Path(str(path))
    try:
        templates = _published(path) if path.suffix == ".json" else _from_yaml(read_text(path))
        return Bank(templates).with_format(format_setting)
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
    if not isinstance(renderings, Mapping):
        raise BankError("published renderings are one ChatML string by template name")
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
