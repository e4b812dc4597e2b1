"""Rephrasing by rules, without a model: for rehearsals of the pipeline and for the toy world.

Two kinds of rule. A whole question ``a op b`` in one of the known forms is put into the others. In
any other question single phrases are replaced ("How many ... are" -> "What number of ... are"), and
"If A, B?" is turned into "B if A?". That is far from what a language model does; it is named
"rules" in the provenance, and every candidate goes through the same check as a model's.
"""

import itertools
import re
from collections.abc import Iterator

MODEL = "rules"

_ADD = (
    "What is {a} + {b}?",
    "Add {a} and {b}.",
    "Find the sum of {a} and {b}.",
    "What do {a} and {b} make together?",
    "A shelf has {a} books and gets {b} more. How many books does it hold then?",
    "{a} children sit in a bus before another {b} get on. What is their number in the end?",
)
_SUBTRACT = (
    "What is {a} - {b}?",
    "Subtract {b} from {a}.",
    "By how much is {a} larger than {b}?",
    "What is left of {a} when {b} is taken away?",
    "A shelf has {a} books, of which {b} are lent. How many books remain?",
    "Of {a} children in a bus {b} get off. What is the number of those who stay?",
)
_SUM = tuple(
    re.compile(form)
    for form in (
        r"What is (?P<a>\d+) \+ (?P<b>\d+)\?",
        r"Add (?P<a>\d+) and (?P<b>\d+)\.",
        r"Find the sum of (?P<a>\d+) and (?P<b>\d+)\.",
        r"\w+ has (?P<a>\d+) \w+ and gets (?P<b>\d+) more\. How many \w+ has s?he now\?",
    )
)
_DIFFERENCE = tuple(
    re.compile(form)
    for form in (
        r"What is (?P<a>\d+) - (?P<b>\d+)\?",
        r"Subtract (?P<b>\d+) from (?P<a>\d+)\.",
        r"By how much is (?P<a>\d+) larger than (?P<b>\d+)\?",
        r"\w+ has (?P<a>\d+) \w+ and spends (?P<b>\d+)\. How many \w+ are left\?",
    )
)
_PHRASES: tuple[tuple[re.Pattern[str], tuple[str, ...]], ...] = tuple(
    (re.compile(pattern), replacements)
    for pattern, replacements in (
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
)
_IF = re.compile(r"^If (?P<a>[^?.]+), (?:then )?(?P<b>(?:what|how|find)[^?.]*)(?P<end>[?.])$")


def candidates(question: str, count: int) -> list[str]:
    """Up to `count` different texts, none the question itself, in a fixed order."""
    texts = itertools.chain(_arithmetic(question), _turned(question), _replaced(question))
    found = dict.fromkeys(text for text in texts if text != question)
    return list(itertools.islice(found, count))


def _arithmetic(question: str) -> Iterator[str]:
    for known, forms in ((_SUM, _ADD), (_DIFFERENCE, _SUBTRACT)):
        for pattern in known:
            if match := pattern.fullmatch(question.strip()):
                yield from (form.format(**match.groupdict()) for form in forms)


def _turned(question: str) -> Iterator[str]:
    """ "If A, B?" as "B if A?"."""
    if match := _IF.match(question.strip()):
        condition, asked = match["a"], match["b"]
        if match["end"] == "?":
            yield f"{asked[0].upper()}{asked[1:]} if {condition}?"
        yield f"Assume that {condition}. {asked[0].upper()}{asked[1:]}{match['end']}"


def _replaced(question: str) -> Iterator[str]:
    """The question with one phrase replaced, then with several."""
    together = [question, question]
    for pattern, replacements in _PHRASES:
        for place, replacement in enumerate(replacements):
            changed = pattern.sub(replacement, question, count=1)
            if changed != question:
                yield changed
            together[place] = pattern.sub(replacement, together[place], count=1)
    yield from together
