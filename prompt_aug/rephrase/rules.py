"""Rephrasing by rules, without a model: for rehearsals of the pipeline and for the toy world.

A whole question ``a op b`` in a known form is put into the other forms. In any other question
single phrases are replaced, and "If A, B?" becomes "B if A?". A language model does much more. The
provenance names the candidates "rules", and they pass the same checks as a model's.
"""

import itertools
import re
from collections.abc import Iterator
from typing import Any

_A, _B = r"(?P<a>\d+)", r"(?P<b>\d+)"
_ARITHMETIC: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        rf"What is {_A} \+ {_B}\?|Add {_A} and {_B}\.|Find the sum of {_A} and {_B}\."
        rf"|\w+ has {_A} \w+ and gets {_B} more\. How many \w+ has s?he now\?",
        (
            "What is {a} + {b}?",
            "Add {a} and {b}.",
            "Find the sum of {a} and {b}.",
            "What do {a} and {b} make together?",
            "A shelf has {a} books and gets {b} more. How many books does it hold then?",
            "{a} children sit in a bus before another {b} get on. What is their number in the end?",
        ),
    ),
    (
        rf"What is {_A} - {_B}\?|By how much is {_A} larger than {_B}\?"
        rf"|Subtract {_B} from {_A}\.|\w+ has {_A} \w+ and spends {_B}\. How many \w+ are left\?",
        (
            "What is {a} - {b}?",
            "Subtract {b} from {a}.",
            "By how much is {a} larger than {b}?",
            "What is left of {a} when {b} is taken away?",
            "A shelf has {a} books, of which {b} are lent. How many books remain?",
            "Of {a} children in a bus {b} get off. What is the number of those who stay?",
        ),
    ),
)
_PHRASES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"\bHow many (\w+) (are|were|will)\b", (r"What number of \1 \2",)),
    (
        r"\bHow many (\w+) (does|did) (\w+) (have|need|use|make)\b",
        (r"What number of \1 \2 \3 \4", r"What is the number of \1 that \3 must \4"),
    ),
    (
        r"\bWhat is the (value|sum|product|area|probability|number)\b",
        (r"Find the \1", r"Determine the \1"),
    ),
    (r"\b(?:Find|Determine|Compute|Calculate) (?:the )?", ("What is the ",)),
    (r"\baltogether\b|\bin total\b", ("all together", "in all")),
    (r"\bbuys\b", ("purchases",)),
    (r"\bhas\b", ("owns",)),
    (r"\bSuppose\b|\bGiven that\b", ("Assume that", "It is known that")),
    (r"\bLet (\$[^$]+\$) be\b", (r"Suppose that \1 is",)),
    (r"\beach\b", ("apiece",)),
)
_IF = re.compile(r"^If (?P<a>[^?.]+), (?:then )?(?P<b>(?:what|how|find)[^?.]*)(?P<end>[?.])$")


def responses(question: str, count: int) -> list[dict[str, Any]]:
    """Return up to `count` different texts, in the form of a model's responses."""
    found = dict.fromkeys(text for text in _texts(question.strip()) if text != question)
    texts = itertools.islice(found, count)
    return [{"text": text, "model": "rules", "sample": i} for i, text in enumerate(texts)]


def _texts(question: str) -> Iterator[str]:
    for known, forms in _ARITHMETIC:
        for pattern in known.split("|"):
            if match := re.fullmatch(pattern, question):
                yield from (form.format(**match.groupdict()) for form in forms)
    if match := _IF.match(question):
        condition, asked = match["a"], match["b"][0].upper() + match["b"][1:]
        if match["end"] == "?":
            yield f"{asked} if {condition}?"
        yield f"Assume that {condition}. {asked}{match['end']}"
    together = [question, question]  # with all phrases replaced
    for phrase, replacements in _PHRASES:
        for place, replacement in enumerate(replacements):
            if (changed := re.sub(phrase, replacement, question, count=1)) != question:
                yield changed
            together[place] = re.sub(phrase, replacement, together[place], count=1)
    yield from together
