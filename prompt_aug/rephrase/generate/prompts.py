"""Instructions as data: `prompts.yaml`, or a file of the user's with the place of the question."""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from prompt_aug.errors import UserError

SLOT = "{question}"


class RephraseError(UserError, ValueError):
    """A setting or a file with which nothing can be rephrased; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A name, where the text is from, and the text with `SLOT` once."""

    name: str
    source: str
    text: str

    @property
    def sha256(self) -> str:
        """The hash of the text, in hex."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    def messages(self, question: str) -> list[dict[str, str]]:
        """The chat with the question in its place."""
        return [{"role": "user", "content": self.text.replace(SLOT, question)}]


def load_prompt(name: str) -> Prompt:
    """The prompt of that name, or the text file of that path. Raises RephraseError."""
    file = Path(__file__).with_name("prompts.yaml")
    known: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    if name in known:
        return Prompt(name, known[name]["source"], known[name]["text"])
    path = Path(name)
    if not path.is_file():
        raise RephraseError(
            f"--prompt {name}: neither one of {', '.join(known)} nor a file; a file holds the "
            f"instruction, with {SLOT} where the question goes"
        )
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise RephraseError(f"--prompt {name}: no text in UTF-8") from error
    if text.count(SLOT) != 1:
        raise RephraseError(
            f"--prompt {name}: {SLOT} stands there {text.count(SLOT)} times: once is wanted"
        )
    return Prompt(path.name, str(path.name), text)
