"""Rephrasing by the rules of rules.yaml, without a model: for tests and for the toy world."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

_RULES = yaml.safe_load(Path(__file__).with_name("rules.yaml").read_text(encoding="utf-8"))
_IF = re.compile(r"^If (?P<a>[^?.]+), (?:then )?(?P<b>(?:what|how|find)[^?.]*)(?P<end>[?.])$")


def responses(question: str, count: int) -> list[dict[str, Any]]:
    """Return up to `count` different texts, in the form of a model's responses."""
    found = dict.fromkeys(text for text in _texts(question.strip()) if text != question)
    texts = itertools.islice(found, count)
    return [{"text": text, "model": "rules", "sample": i} for i, text in enumerate(texts)]


def _texts(question: str) -> Iterator[str]:
    for rule in _RULES["arithmetic"]:
        for pattern in rule["questions"]:
            if match := re.fullmatch(pattern, question):
                yield from (form.format(**match.groupdict()) for form in rule["forms"])
    if match := _IF.match(question):
        condition, asked = match["a"], match["b"][0].upper() + match["b"][1:]
        if match["end"] == "?":
            yield f"{asked} if {condition}?"
        yield f"Assume that {condition}. {asked}{match['end']}"
    together = [question, question]  # with all phrases replaced
    for phrase, replacements in _RULES["phrases"].items():
        for place, replacement in enumerate(replacements):
            if (changed := re.sub(phrase, replacement, question, count=1)) != question:
                yield changed
            together[place] = re.sub(phrase, replacement, together[place], count=1)
    yield from together
