"""Words of a question as comparable tokens, and edits of a near copy.

A rewording changes many words and no number. An edit changes few words and one that matters. So in
a near copy each changed token must be a synonym, a name or a word of `vocabulary.yaml`'s `neutral`.
"""

import functools
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from rapidfuzz.distance import LCSseq

from prompt_aug.rephrase.verify.reading import AMOUNT, FORMULA, Reading
from prompt_aug.rephrase.verify.reasons import Reason, doubt, reject
from prompt_aug.rephrase.verify.values import in_words, words

# A near copy: so much in common in the same order, or less in so few runs, or one inside the other.
NEAR, LOOSELY_NEAR, FEW_RUNS, INSIDE = 0.85, 0.6, 3, 0.93
SENTENCE_WORDS = 3
NEGATIONS = frozenset(
    "not no never neither nor cannot without none fail fails unable except".split()
)
NOT = "<not>"  # no stem: "note" has the stem "not"
SOFT = ("#1", "#2")  # "one", "both", "pair" come and go
_SUFFIXES = ("ingly", "edly", "ing", "ies", "ied", "es", "ed", "ly", "s", "e", "y")
_NEGATED = re.compile(r"\b(\w+)n['’]t\b")
_SENTENCE = re.compile(r"(?<=[.?!;])\s+")
_NAME = re.compile(r"\b[A-Z][a-z]{2,}\b")


@functools.cache
def stem(word: str) -> str:
    """Return `word` without one English ending: apples, appl(e)."""
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= 3:
            word = word[: -len(suffix)]
            break
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "sl" else word


OPERATIONS = {
    words.split()[0]: frozenset(map(stem, words.split()))
    for words in (
        "sum plus add",
        "difference minus subtract",
        "product times multiply multiplied",
        "quotient divided divide ratio",
    )
}


@functools.cache
def vocabulary() -> tuple[frozenset[str], dict[str, str]]:
    """Read the neutral words, and stem -> stem of the first synonym."""
    raw: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("vocabulary.yaml").read_text())
    meaning: dict[str, str] = {}
    for listed in (line.split() for line in raw["synonyms"].splitlines()):
        for word in listed:
            meaning.setdefault(stem(word), stem(listed[0]))
    return frozenset(raw["neutral"].split()) - NEGATIONS, meaning


@functools.lru_cache(maxsize=256)
def tokens(reading: Reading) -> tuple[str, ...]:
    """Return stems, ``#value``, formulas and `NOT`; a one-letter formula is ``$letter``."""
    prose = _NEGATED.sub(r"\1 not", reading.prose.lower())
    prose = re.sub(r"[’']s?\b", "", prose).replace("cann not", "can not")
    formulas, found = iter(reading.formulas), list[str]()
    for piece in re.split(f"({FORMULA})", prose):
        if piece == FORMULA:
            formula = next(formulas, "")
            found.append(f"${formula}" if len(formula) == 1 else formula)
        else:
            found += _prose_tokens(piece)
    return tuple(found)


def _prose_tokens(prose: str) -> Iterator[str]:
    listed = words(prose)
    at = {number.start: number for number in in_words(listed)}
    place = 0
    while place < len(listed):
        if number := at.get(place):
            yield f"#{number.value}{'%' if number.percent else ''}"
            place = number.end
            continue
        word = listed[place]
        place += 1
        if word in NEGATIONS:
            yield NOT
        elif word not in (AMOUNT, "%"):
            yield word if word in vocabulary()[0] else stem(word)


def likeness(own: Sequence[str], other: Sequence[str]) -> float:
    """Return 2 L / (m + n), L the longest common subsequence of lists of m and n tokens."""
    return 2 * LCSseq.similarity(own, other) / max(len(own) + len(other), 1)


def is_near(own: Sequence[str], other: Sequence[str]) -> bool:
    """Return True if `other` is `own` with few runs of tokens changed, put in or taken out."""
    common, shorter = LCSseq.similarity(own, other), max(min(len(own), len(other)), 1)
    alike = likeness(own, other)
    if alike >= NEAR or (common / shorter >= INSIDE and shorter > 5):
        return True
    runs = sum(code.tag != "equal" for code in LCSseq.opcodes(own, other))
    return alike >= LOOSELY_NEAR and runs <= FEW_RUNS


def compare_words(question: Reading, candidate: Reading) -> Iterator[Reason]:
    """Yield the edits of a near copy."""
    own, other = tokens(question), tokens(candidate)
    before, after = (
        {name for name, words in OPERATIONS.items() if words & {*found}} for found in (own, other)
    )
    if before and after and not before & after:
        yield doubt("operation", f"{', '.join(before)} became {', '.join(after)}")
    if not is_near(own, other):
        return
    names = _names(question) ^ _names(candidate)  # a renamed person is no fault
    lost, new = _content(own, names), _content(other, names)
    lost, new = lost - new, new - lost
    # A letter named once more or less says nothing; one in another's place is an edit.
    if not all(any(token[0] == "$" for token in side) for side in (lost, new)):
        lost, new = (Counter({t: n for t, n in c.items() if t[0] != "$"}) for c in (lost, new))
    detail = f"a near copy in which {_shown(lost)} became {_shown(new)}"
    gone = {*lost, *new} - (set(own) & set(other))  # not only said once less
    if NOT in (lost | new) or any(t[0] == "#" and t not in SOFT for t in gone):
        yield reject("edit", detail)
    elif lost or new:
        yield doubt("edit", detail)
    elif _figures(own) != _figures(other):
        yield reject("edit", "a near copy in which numbers or formulas changed places")


def uncovered(one: Reading, other: Reading, share: float) -> Iterator[str]:
    """Yield sentences of `one` with less than `share` of their content in `other`."""
    known = set(_content(tokens(other), set()))
    for sentence in _SENTENCE.split(one.prose):
        said = set(_content(tokens(Reading(sentence, (), ())), set()))
        if len(said) >= SENTENCE_WORDS and len(said & known) < share * len(said):
            yield sentence.strip()


def _content(found: Sequence[str], names: set[str]) -> Counter[str]:
    """Count the tokens that matter, each as the first of its synonyms."""
    neutral, meaning = vocabulary()
    said = (meaning.get(token, token) for token in found if token not in neutral | names)
    return Counter(token for token in said if len(token) > 1)


def _names(reading: Reading) -> set[str]:
    return {stem(name.lower()) for name in _NAME.findall(reading.prose)}


def _figures(found: Sequence[str]) -> list[str]:
    return [token for token in found if any(char.isdigit() for char in token) and token not in SOFT]


def _shown(counts: Counter[str]) -> str:
    return ", ".join(sorted(counts)) or "nothing"
