"""Rephrasing of the toy world's questions by the forms of rules.yaml, without a model."""

import re
from pathlib import Path
from typing import Any

import yaml

_RULES = yaml.safe_load(Path(__file__).with_name("rules.yaml").read_text(encoding="utf-8"))


def responses(question: str, count: int) -> list[dict[str, Any]]:
    """Return up to `count` different texts, in the form of a model's responses."""
    question = question.strip()
    texts = [
        form.format(**match.groupdict())
        for rule in _RULES
        for pattern in rule["questions"]
        if (match := re.fullmatch(pattern, question))
        for form in rule["forms"]
    ]
    texts = [text for text in dict.fromkeys(texts) if text != question]
    return [{"text": text, "model": "rules", "sample": i} for i, text in enumerate(texts[:count])]
