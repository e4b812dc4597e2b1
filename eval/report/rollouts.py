"""A few training rollouts to read. The texts come from a model and are hostile.

They are shortened and made visible here, and escaped where the page is made.
"""

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prompt_aug.base.files import iter_lines
from recipe.run.folder import RunFolder

TEXT_LIMIT = 4000
PER_TEMPLATE = 1
MOST = 26


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One answer. `facts` are short name-value pairs, in the order to show them."""

    step: int
    heading: str
    preview: str
    prompt: str
    response: str
    correct: bool
    facts: tuple[tuple[str, str], ...]


def visible(text: object, limit: int = TEXT_LIMIT) -> str:
    r"""`text` with control and direction-changing characters spelled out (``\u202e``), shortened.

    A response must not be able to reorder, hide or blow up the page around it.
    """
    raw = text if isinstance(text, str) else repr(text)
    cut = len(raw) - limit
    shown = "".join(_visible_character(character) for character in raw[:limit])
    return f"{shown}\n... and {cut} more characters" if cut > 0 else shown


def _visible_character(character: str) -> str:
    if character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf", "Cs", "Co"):
        return character
    return f"\\u{ord(character):04x}"


def rollout_samples(run: Path) -> list[Sample]:
    """From the first and the last recorded step: a right and a wrong one per template."""
    steps = RunFolder(run).rollout_steps()
    if not steps:
        return []
    samples = []
    for step in dict.fromkeys((min(steps), max(steps))):
        samples += _pick(_rollout(step, line) for line in iter_lines(steps[step]))
    return samples


def _pick(samples: Iterable[Sample], most: int = MOST, each: int = PER_TEMPLATE) -> list[Sample]:
    """The first `each` right and `each` wrong samples under every heading, `most` in all."""
    picked: list[Sample] = []
    counts: dict[tuple[str, bool], int] = {}
    for sample in samples:
        key = (sample.heading, sample.correct)
        if counts.get(key, 0) < each:
            counts[key] = counts.get(key, 0) + 1
            picked.append(sample)
        if len(picked) == most:
            break
    return sorted(picked, key=lambda sample: sample.heading)


def _rollout(step: int, line: Mapping[str, Any]) -> Sample:
    return Sample(
        step=step,
        heading=visible(line.get("template", "no template"), 80),
        preview=_short(line.get("response", "")),
        prompt=visible(line.get("prompt", "")),
        response=visible(line.get("response", "")),
        correct=bool(line.get("accuracy")),
        facts=_facts(line, ("gold", "status", "reward", "format", "length", "truncated", "uid")),
    )


def _short(text: object) -> str:
    """The beginning of a text, on one line."""
    return visible(" ".join(str(text).split()), 100).split("\n")[0]


def _facts(line: Mapping[str, Any], names: Iterable[str]) -> tuple[tuple[str, str], ...]:
    return tuple((name, _fact(line[name])) for name in names if line.get(name) is not None)


def _fact(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list):
        return visible(" | ".join(str(item) for item in value), 300)
    return visible(str(value), 300)
