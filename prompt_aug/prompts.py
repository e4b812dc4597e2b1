"""The prompts of one run: one record from which training, validation and evaluation render.

A run writes it to its folder (``prompts.yaml``: a template bank with the form, the format setting
and the validation template). A later evaluation then uses the prompts of the training, even if the
bank's own file has changed. Preflight checks, the agent loop, validation and evaluation all call
`Prompts.render`.
"""

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from prompt_aug.base.files import FileError, write_text
from prompt_aug.base.progress import track
from prompt_aug.questions import Question, Turns
from prompt_aug.templates import Bank, BankError, Form, Rendered, load_bank, render
from prompt_aug.templates.rendering import Overlong
from prompt_aug.typed import read_record

HEAD = ("source", "format", "style", "validation_template")
FORM = ("style", "chat", "instruction", "system")
BATCH = 512  # questions whose prompts are tokenized at once


@dataclass(frozen=True, kw_only=True, slots=True)
class Prompt:
    """A rendered prompt and its token ids, the prefill included."""

    rendered: Rendered
    ids: tuple[int, ...]

    def shown(self) -> str:
        """Return the text, its size and digest; a bar marks the end of the text."""
        digest = hashlib.sha256(self.rendered.text.encode()).hexdigest()
        return f"{self.rendered.text}|\n({len(self.ids)} tokens, sha256 {digest})"


@dataclass(frozen=True, kw_only=True)
class Prompts:
    """Templates and settings that turn the questions of a run into prompts.

    `source` is the file of the bank, None the project's own; it is recorded, never read again. The
    templates of `bank` carry the format setting "strict" or "published" and their stop strings.
    """

    bank: Bank
    source: str | None
    format: str
    form: Form
    validation_template: str

    @classmethod
    def from_config(cls, config: Any) -> "Prompts":
        """Create from ``recipe.augment`` and the chat template's arguments of a configuration."""
        chat = config.data.get("apply_chat_template_kwargs")
        return cls.from_section({**config.recipe.augment, "chat": chat})

    @classmethod
    def from_section(cls, augment: Mapping[str, Any]) -> "Prompts":
        """Create from the keys of ``recipe.augment`` and `chat`; other keys are ignored."""
        source, setting = augment.get("bank"), augment.get("format", "strict")
        return cls._checked(load_bank(source, setting), source and str(source), augment)

    @classmethod
    def read(cls, path: Path) -> "Prompts":
        """Read a file of `write`. Raises BankError if it is missing or has another content."""
        try:
            head = read_record(path, *HEAD, source=str | None, chat=dict[str, Any])
        except FileError as error:
            raise BankError(str(error)) from error
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
        """Return the text of the file; equal records give equal bytes."""
        templates = {
            name: template.model_dump(mode="json", exclude_none=True, exclude={"name"})
            for name, template in self.bank.items()
        }
        form = dataclasses.asdict(self.form)
        record = {key: form[key] if key in form else getattr(self, key) for key in HEAD}
        record |= form | {"templates": templates}
        return yaml.safe_dump(record, sort_keys=False, allow_unicode=True, width=10_000)

    def write(self, path: Path) -> None:
        """Write `path`, which `read` and `load_bank` can read."""
        write_text(path, self.to_yaml())

    def render(self, template: str, question: str, tokenizer: Any, earlier: Turns = ()) -> Prompt:
        """Return the prompt of `question` under a template; `earlier` are the row's own messages.

        Raises UnknownTemplateError, or RenderError if the question cannot be rendered.
        """
        rendered = render(self.bank[template], question, tokenizer, self.form, earlier)
        ids = tokenizer.encode(rendered.text, add_special_tokens=False)
        return Prompt(rendered=rendered, ids=tuple(ids))

    def overlong(
        self, questions: Sequence[Question], names: Sequence[str], tokenizer: Any, limit: int
    ) -> list[Overlong]:
        """Return the questions with more than `limit` tokens under any template of `names`.

        Each question is listed once, with its longest prompt.
        """
        listed: list[Overlong] = []
        bank, form = self.bank, self.form
        for start in track(range(0, len(questions), BATCH), "prompt lengths", "batches"):
            pairs = [
                (q.uid, name, render(bank[name], q.text, tokenizer, form, q.earlier).text)
                for q in questions[start : start + BATCH]
                for name in names
            ]
            ids = tokenizer([text for _, _, text in pairs], add_special_tokens=False)["input_ids"]
            longest: dict[str, Overlong] = {}
            for (uid, name, _), tokens in zip(pairs, ids, strict=True):
                if len(tokens) > max(limit, longest[uid].length if uid in longest else 0):
                    longest[uid] = Overlong(uid=uid, template=name, length=len(tokens))
            listed.extend(longest.values())
        return listed
