"""The prompts of one run: one record that training, validation and evaluation all render from.

A run writes it to its folder (``prompts.yaml``: a template bank with the form, the format setting
and the validation template beside it), so that a model is asked months later exactly as it was
trained, whatever has become of the bank's own file. The checks at the start, the agent loop,
validation and evaluation all call `Prompts.render`.
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from prompt_aug.base.files import write_text
from prompt_aug.questions import Question
from prompt_aug.templates import (
    Bank,
    BankError,
    Form,
    Overlong,
    Rendered,
    load_bank,
    overlong,
    render,
)

HEAD = ("source", "format", "style", "validation_template")
FORM = ("style", "chat", "instruction", "system")


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A rendered prompt and its token ids, the prefill included."""

    rendered: Rendered
    ids: tuple[int, ...]

    def shown(self) -> str:
        """The text as it is sent, with its size and digest; a bar marks its end."""
        digest = hashlib.sha256(self.rendered.text.encode()).hexdigest()
        return f"{self.rendered.text}|\n({len(self.ids)} tokens, sha256 {digest})"


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """How a run's questions become prompts.

    `source` is the file that the bank came from, None the project's own; it is recorded, never read
    again. `bank` carries the format setting "strict" or "published" in its templates, and each
    template its stop strings.
    """

    bank: Bank
    source: str | None
    format: str
    form: Form
    validation_template: str

    @classmethod
    def from_config(cls, config: Any) -> "Prompts":
        """From a composed configuration: ``recipe.augment`` and the chat template's arguments."""
        chat = config.data.get("apply_chat_template_kwargs")
        return cls.from_section({**config.recipe.augment, "chat": chat})

    @classmethod
    def from_section(cls, augment: Mapping[str, Any]) -> "Prompts":
        """From the keys of ``recipe.augment`` and `chat`; other keys are not read."""
        source, setting = augment.get("bank"), augment.get("format", "strict")
        return cls._checked(load_bank(source, setting), source and str(source), augment)

    @classmethod
    def read(cls, path: Path) -> "Prompts":
        """From a file that `write` wrote; BankError where it is missing or no such file."""
        if not path.is_file():
            raise BankError(f"{path}: no such file")
        try:
            head = yaml.safe_load(path.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise BankError(f"{path} is not valid yaml: {error}") from error
        missing = [key for key in HEAD if not isinstance(head, dict) or key not in head]
        if missing:
            raise BankError(f"{path} lacks {', '.join(missing)}: not written by a training run")
        return cls._checked(load_bank(path, head["format"]), head["source"], head)

    @classmethod
    def _checked(cls, bank: Bank, source: str | None, section: Mapping[str, Any]) -> "Prompts":
        given = {key: section[key] for key in FORM if section.get(key) is not None}
        given["chat"] = dict(given.get("chat", {}))
        name = str(section.get("validation_template", "qwen-math"))
        bank[name]  # raises UnknownTemplateError
        setting = str(section.get("format", "strict"))
        return cls(
            bank=bank, source=source, format=setting, form=Form(**given), validation_template=name
        )

    def to_yaml(self) -> str:
        """The file's text: the same record gives the same bytes."""
        templates = {}
        for name, template in self.bank.items():
            entry = _plain(dataclasses.asdict(template))
            templates[name] = {k: v for k, v in entry.items() if k != "name" and v is not None}
        form = dataclasses.asdict(self.form)
        record = {key: form[key] if key in form else getattr(self, key) for key in HEAD}
        record |= form | {"templates": templates}
        return yaml.safe_dump(record, sort_keys=False, allow_unicode=True, width=10_000)

    def write(self, path: Path) -> None:
        """Write `path`, which `read` and `load_bank` understand."""
        write_text(path, self.to_yaml())

    def render(
        self, template: str, question: str, tokenizer: Any, system: str | None = None
    ) -> Prompt:
        """The prompt of `question` under the template of that name; `system` is its own.

        Raises UnknownTemplateError, or ValueError where the question cannot be rendered.
        """
        rendered = render(self.bank[template], question, tokenizer, self.form, system)
        ids = tokenizer.encode(rendered.text, add_special_tokens=False)
        return Prompt(rendered=rendered, ids=tuple(ids))

    def overlong(
        self, questions: Sequence[Question], names: Sequence[str], tokenizer: Any, limit: int
    ) -> list[Overlong]:
        """The questions with more than `limit` tokens under any of the templates of `names`."""
        templates = [self.bank[name] for name in names]
        return overlong(questions, templates, tokenizer, limit=limit, form=self.form)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items() if inner is not None}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
