"""The words of a question and what they mean: contrasts, synonyms, words that say nothing.

The tables are `vocabulary.yaml`. A word is compared by a crude stem; two words of one list of
synonyms have one meaning, the list's first word.
"""

import functools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from prompt_aug.rephrase.verify.reading import AMOUNT, FORMULA, Reading
from prompt_aug.rephrase.verify.values import in_words, words

_SUFFIXES = ("ingly", "edly", "ing", "ies", "ied", "es", "ed", "ly", "s", "e", "y")
NEGATIONS = frozenset(
    "not no never neither nor cannot without none fail fails unable except".split()
)
NOT = "<not>"  # no stem: "note" has the stem "not"
_UN = re.compile(r"\bun(?:sold|used|eaten|paid|read|occupied|filled|equal|able|married|solved)\b")
_NAME = re.compile(r"(?<![.?!]\s)(?<!^)\b[A-Z][a-z]{2,}\b")
_BOUND = re.compile(r"\bat (least|most)\b")
_NEGATED = re.compile(r"\b(\w+)n['’]t\b")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`vocabulary.yaml`, as sets and stems.

    contrasts:  group -> meaning -> phrases
    strict:     groups of which no rephrasing turns one meaning into another
    telling:    group -> meanings that say something where they come or go alone
    asked:      meaning -> stems, for each contrast of the part that asks
    flows:      "in" and "out" -> stems
    """

    contrasts: dict[str, dict[str, tuple[tuple[str, ...], ...]]]
    strict: frozenset[str]
    telling: dict[str, frozenset[str]]
    asked: tuple[dict[str, frozenset[str]], ...]
    flows: dict[str, frozenset[str]]
    meaning: dict[str, str]
    neutral: frozenset[str]
    silent: frozenset[str]  # meanings of neutral words: those of "expression", "use"


@functools.cache
def stem(word: str) -> str:
    """`word` without one English ending: apples, appl(e); crude, and the same on both sides."""
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            word = word[: -len(suffix)]
            break
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "sl" else word


@functools.cache
def vocabulary() -> Vocabulary:
    """`vocabulary.yaml`, read once."""
    file = Path(__file__).with_name("vocabulary.yaml")
    raw: dict[str, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    contrasts = {
        group: {
            name: tuple(tuple(phrase.lower().replace("-", " ").split()) for phrase in phrases)
            for name, phrases in poles.items()
            if name not in ("strict", "telling")
        }
        for group, poles in raw["contrasts"].items()
    }
    strict = frozenset(group for group, poles in raw["contrasts"].items() if poles["strict"])
    telling = {
        group: frozenset(poles.get("telling", ())) for group, poles in raw["contrasts"].items()
    }
    asked = tuple(
        {name: frozenset(map(stem, listed)) for name, listed in poles.items()}
        for poles in raw["asked"].values()
    )
    meaning: dict[str, str] = {}
    for listed in raw["synonyms"]:
        for word in listed:
            meaning.setdefault(stem(word), stem(listed[0]))
    neutral = frozenset(raw["neutral"].split()) - NEGATIONS
    silent = frozenset(stem(word) for word in neutral if meaning.get(stem(word)) == stem(word))
    return Vocabulary(
        contrasts=contrasts,
        strict=strict,
        telling=telling | {"negation": frozenset(("not",))},
        asked=asked,
        flows={name: frozenset(map(stem, listed)) for name, listed in raw["flows"].items()},
        meaning=meaning,
        neutral=neutral,
        silent=silent,
    )


@functools.lru_cache(maxsize=256)
def tokens(reading: Reading) -> tuple[str, ...]:
    """The text as comparable tokens in order: stems, ``#value``, formulas, `NOT`.

    A formula of one letter is ``$letter``, which no word is.
    """
    prose = _NEGATED.sub(r"\1 not", reading.prose.lower())
    prose = re.sub(r"[’']s?\b", "", prose).replace("cann not", "can not")
    formulas = iter(reading.formulas)
    found: list[str] = []
    for piece in re.split(f"({FORMULA})", prose):
        if piece == FORMULA:
            formula = next(formulas, "")
            found.append(f"${formula}" if len(formula) == 1 else formula)
        else:
            found += _prose_tokens(piece)
    return tuple(found)


def _prose_tokens(prose: str) -> list[str]:
    """The stems of a prose without formulas, its numbers as ``#value``."""
    listed = words(prose)
    at = {number.start: number for number in in_words(listed)}
    found, place = [], 0
    while place < len(listed):
        number = at.get(place)
        if number is not None:
            found.append(f"#{number.value}{'%' if number.percent else ''}")
            place = number.end
            continue
        word = listed[place]
        place += 1
        if word in NEGATIONS:
            found.append(NOT)
        elif word not in (AMOUNT, "%"):
            found.append(word if word in vocabulary().neutral else stem(word))
    return found


def meaning_of(word: str) -> str:
    """The stem of a word, or of the first of its synonyms."""
    return vocabulary().meaning.get(stem(word), stem(word))


def content(found: Sequence[str]) -> list[str]:
    """The tokens that say something, each as the first of its synonyms."""
    known = vocabulary()
    said = (known.meaning.get(token, token) for token in found if token not in known.neutral)
    return [token for token in said if token not in known.silent and len(token) > 1]


@functools.lru_cache(maxsize=256)
def meanings(reading: Reading) -> dict[str, Counter[str]]:
    """group -> meanings of it that the prose has, with how often."""
    prose = _BOUND.sub(r"at\1", reading.prose.lower())  # no extreme
    listed = re.findall(r"[a-z]+", prose)
    joined = " " + "  ".join(listed) + " "  # two spaces: neighbouring phrases share none
    exact, stems = Counter(listed), Counter(map(stem, listed))
    found: dict[str, Counter[str]] = {}
    for group, poles in vocabulary().contrasts.items():
        found[group] = +Counter(
            {
                name: sum(_occurrences(joined, exact, stems, phrase) for phrase in phrases)
                for name, phrases in poles.items()
            }
        )
    denied = sum(exact[word] for word in NEGATIONS)
    denied += sum(len(form.findall(reading.prose.lower())) for form in (_NEGATED, _UN))
    found["negation"] = +Counter({"not": denied})
    return found


def _occurrences(
    joined: str, exact: Counter[str], stems: Counter[str], phrase: tuple[str, ...]
) -> int:
    """How often the words of `phrase` stand in a row; a long single word counts by its stem."""
    if len(phrase) > 1:
        return joined.count(" " + "  ".join(phrase) + " ")
    return exact[phrase[0]] if len(phrase[0]) <= 5 else stems[stem(phrase[0])]


def names_in(prose: str) -> set[str]:
    """Capitalised words within sentences: people, places, days."""
    found = {match.group().lower() for match in _NAME.finditer(prose)}
    return {name for name in found if name not in vocabulary().neutral}
