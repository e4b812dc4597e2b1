"""Rephrasing by rules, without a model: for tests of the pipeline and for the toy world.

A question ``a op b`` is put into other forms. In any other question phrases are replaced.
"""

import itertools
import re
from collections.abc import Iterator
from typing import Any

_ARITHMETIC = {
    r"What is (?P<a>\d+) \+ (?P<b>\d+)\?|Add (?P<a>\d+) and (?P<b>\d+)\."
    r"|Find the sum of (?P<a>\d+) and (?P<b>\d+)\."
    r"|\w+ has (?P<a>\d+) \w+ and gets (?P<b>\d+) more\. How many \w+ has s?he now\?": (
        "What is {a} + {b}?",
        "Add {a} and {b}.",
        "Find the sum of {a} and {b}.",
        "What do {a} and {b} make together?",
        "A shelf has {a} books and gets {b} more. How many books does it hold then?",
        "{a} children sit in a bus before another {b} get on. What is their number in the end?",
    ),
    r"What is (?P<a>\d+) - (?P<b>\d+)\?|By how much is (?P<a>\d+) larger than (?P<b>\d+)\?"
    r"|Subtract (?P<b>\d+) from (?P<a>\d+)\."
    r"|\w+ has (?P<a>\d+) \w+ and spends (?P<b>\d+)\. How many \w+ are left\?": (
        "What is {a} - {b}?",
        "Subtract {b} from {a}.",
        "By how much is {a} larger than {b}?",
        "What is left of {a} when {b} is taken away?",
        "A shelf has {a} books, of which {b} are lent. How many books remain?",
        "Of {a} children in a bus {b} get off. What is the number of those who stay?",
    ),
}
_PHRASES = {
    r"\bHow many (\w+) (are|were|will)\b": [r"What number of \1 \2"],
    r"\bHow many (\w+) (does|did) (\w+) (have|need|use|make)\b": [
        *(r"What number of \1 \2 \3 \4", r"What is the number of \1 that \3 must \4")
    ],
    r"\bWhat is the (value|sum|product|area|probability|number)\b": [
        r"Find the \1",
        r"Determine the \1",
    ],
    r"\b(?:Find|Determine|Compute|Calculate) (?:the )?": ["What is the "],
    r"\baltogether\b|\bin total\b": ["all together", "in all"],
    r"\bbuys\b": ["purchases"],
    r"\bhas\b": ["owns"],
    r"\bSuppose\b|\bGiven that\b": ["Assume that", "It is known that"],
    r"\bLet (\$[^$]+\$) be\b": [r"Suppose that \1 is"],
    r"\beach\b": ["apiece"],
}
_IF = re.compile(r"^If (?P<a>[^?.]+), (?:then )?(?P<b>(?:what|how|find)[^?.]*)(?P<end>[?.])$")


def responses(question: str, count: int) -> list[dict[str, Any]]:
    """Return up to `count` different texts, in the form of a model's responses."""
    found = dict.fromkeys(text for text in _texts(question.strip()) if text != question)
    texts = itertools.islice(found, count)
    return [{"text": text, "model": "rules", "sample": i} for i, text in enumerate(texts)]


def _texts(question: str) -> Iterator[str]:
    for known, forms in _ARITHMETIC.items():
        for pattern in known.split("|"):
            if match := re.fullmatch(pattern, question):
                yield from (form.format(**match.groupdict()) for form in forms)
    if match := _IF.match(question):
        condition, asked = match["a"], match["b"][0].upper() + match["b"][1:]
        if match["end"] == "?":
            yield f"{asked} if {condition}?"
        yield f"Assume that {condition}. {asked}{match['end']}"
    together = [question, question]  # with all phrases replaced
    for phrase, replacements in _PHRASES.items():
        for place, replacement in enumerate(replacements):
            if (changed := re.sub(phrase, replacement, question, count=1)) != question:
                yield changed
            together[place] = re.sub(phrase, replacement, together[place], count=1)
    yield from together
