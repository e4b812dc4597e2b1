"""Instructions as data: `prompts.yaml`, or a file of the user's with the place of the question."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from prompt_aug.base.errors import UserError

SLOT, CANDIDATE = "{question}", "{candidate}"


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

    def messages(self, question: str, candidate: str = "") -> list[dict[str, str]]:
        """Return the chat with the texts in their places, in one pass: a text may hold a slot."""
        texts = {SLOT: question, CANDIDATE: candidate}
        parts = re.split(f"({re.escape(SLOT)}|{re.escape(CANDIDATE)})", self.text)
        return [{"role": "user", "content": "".join(texts.get(part, part) for part in parts)}]


def load_prompt(name: str, *, option: str = "--prompt", slots: tuple[str, ...] = (SLOT,)) -> Prompt:
    """Return the prompt of that name, or of a file: text, or yaml with `text` and `source`.

    Raises RephraseError if a slot does not stand in it once.
    """
    known: dict[str, Any] = yaml.safe_load(
        Path(__file__).with_name("prompts.yaml").read_text(encoding="utf-8")
    )
    path = Path(name)
    if name not in known and not path.is_file():
        raise RephraseError(
            f"{option}={name}: neither one of {', '.join(known)} nor a file. Write the instruction "
            f"to a file, with {' and '.join(slots)} where the texts go."
        )
    try:
        found = known[name] if name in known else path.read_text(encoding="utf-8")
        if path.suffix in (".yaml", ".yml") and name not in known:
            found = yaml.safe_load(found)
    except (UnicodeDecodeError, yaml.YAMLError) as error:
        raise RephraseError(f"{option}={name}: not UTF-8 text or yaml. {error}") from error
    if isinstance(found, dict):
        text, source = str(found.get("text", "")), str(found.get("source", path.name))
    else:
        text, source = str(found), path.name
    for slot in slots:
        if text.count(slot) != 1:
            raise RephraseError(
                f"{option}={name}: {slot} stands there {text.count(slot)} times. Once is wanted."
            )
    return Prompt(name if name in known else path.name, source, text)
