"""The instructions of `prompts.yaml`."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import yaml

from prompt_aug.base.errors import UserError

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


def load_prompt(name: str) -> Prompt:
    """Return the prompt of that name in prompts.yaml."""
    known = yaml.safe_load(Path(__file__).with_name("prompts.yaml").read_text(encoding="utf-8"))
    return Prompt(known[name]["text"])
