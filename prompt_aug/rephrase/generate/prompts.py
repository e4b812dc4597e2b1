"""Instructions as data: `prompts.yaml`, or a file of the user's with the slot of the question."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from prompt_aug.base.errors import UserError
from prompt_aug.base.files import FileError, read_text
from prompt_aug.typed import parse_yaml

SLOT, CANDIDATE = "{question}", "{candidate}"


class RephraseError(UserError, ValueError):
    """An unusable setting, file or endpoint."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """An instruction with `SLOT` once."""

    text: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()

    def messages(self, question: str, candidate: str = "") -> list[dict[str, str]]:
        """Return the chat with the texts in their slots, in one pass: a text may hold a slot."""
        texts = {SLOT: question, CANDIDATE: candidate}
        parts = re.split(f"({re.escape(SLOT)}|{re.escape(CANDIDATE)})", self.text)
        return [{"role": "user", "content": "".join(texts.get(part, part) for part in parts)}]


def load_prompt(name: str, option: str = "--prompt") -> Prompt:
    """Return the prompt of that name, or of a file: text, or yaml with `text` and `source`."""
    slots = (SLOT, CANDIDATE) if option == "--judge-prompt" else (SLOT,)
    known = yaml.safe_load(Path(__file__).with_name("prompts.yaml").read_text(encoding="utf-8"))
    path, found = Path(name), known.get(name)
    if found is None:
        if not path.is_file():
            raise RephraseError(
                f"{option}={name}: neither one of {', '.join(known)} nor a file. Write the "
                f"instruction to a file, with {' and '.join(slots)} where the texts go."
            )
        try:
            found = read_text(path)
            found = parse_yaml(found, name) if path.suffix in (".yaml", ".yml") else found
        except FileError as error:
            raise RephraseError(f"{option}={error}") from error
    text = str(found.get("text", "") if isinstance(found, dict) else found)
    for slot in slots:
        if (count := text.count(slot)) != 1:
            raise RephraseError(f"{option}={name}: {slot} occurs {count} times. Write it once.")
    return Prompt(text)
