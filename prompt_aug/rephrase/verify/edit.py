"""Checks of edits: in a near copy each changed word must be in `NEUTRAL` or a name."""

import functools
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from rapidfuzz.distance import LCSseq

from prompt_aug.rephrase.verify.reasons import Reason, doubt, reject
from prompt_aug.rephrase.verify.text import FORMULA, Reading
from prompt_aug.rephrase.verify.values import in_tokens, numbers, unmatched

# Near: likeness >= NEAR, or >= LOOSELY_NEAR in <= FEW_RUNS runs, or INSIDE of the shorter text.
NEAR, LOOSELY_NEAR, FEW_RUNS, INSIDE = 0.85, 0.6, 3, 0.93
SENTENCE_WORDS, SHARED = 3, 0.4  # an added sentence: fewest content words, most in the question
NEGATIONS = frozenset("not no never neither nor cannot without none fail fails except".split())
NOT = "<not>"  # no stem: "note" has the stem "not"
SOFT = ("#1", "#2")  # "one", "both", "pair" may be added or dropped
NEUTRAL = frozenset(
    "find determine compute calculate evaluate what which who how many much give given suppose let "
    "if assume value number amount answer result is are was were be been do does did have has had "
    "own owns can will would the a an this that these those it its they them their there he she "
    "his her i my we you your of in on at by to from for with as than then when where while so "
    "such and but also any some each every per into during please tell state".split()
)
_SIGN = r"(?<=\d) [{}] (?=\d)"  # between two numbers
OPERATIONS = {
    "add": re.compile(_SIGN.format("+") + r"|\b(?:sum|plus|add(?:ed|ing)?)\b"),
    "subtract": re.compile(_SIGN.format("−-") + r"|\b(?:difference|minus|subtract(?:ed|ing)?)\b"),
    "multiply": re.compile(_SIGN.format("*×") + r"|\b(?:product|times|multipl\w+)\b"),
    "divide": re.compile(_SIGN.format("/÷") + r"|\b(?:quotient|ratio|divided?|dividing)\b"),
}
_ENDING = re.compile(r"(?<=\w{3})(?:ingly|edly|ing|ies|ied|es|ed|ly|s|e|y)$")
_NEGATED = re.compile(r"\b(\w+)n['’]t\b")
_TOKEN = re.compile(rf"{FORMULA}|#[\d/]+%?|[^\W\d_]+")
_SENTENCE = re.compile(r"(?<=[.?!;])\s+")
_NAME = re.compile(r"\b[A-Z][a-z]{2,}\b")


@functools.cache
def stem(word: str) -> str:
    """Return `word` without one English ending: appl for apples and apple."""
    word = _ENDING.sub("", word)
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "sl" else word


@functools.lru_cache(maxsize=256)
def tokens(reading: Reading) -> tuple[str, ...]:
    """Return stems, ``#value``, formulas and `NOT`; a one-letter formula is ``$letter``."""
    prose = _NEGATED.sub(r"\1 not", reading.prose.lower()).replace("cann not", "can not")
    formulas, found = iter(reading.formulas), list[str]()
    for token in _TOKEN.findall(in_tokens(re.sub(r"[’']s?\b", "", prose))):
        if token == FORMULA:
            formula = next(formulas, "")
            found.append(f"${formula}" if len(formula) == 1 else formula)
        elif token in NEGATIONS:
            found.append(NOT)
        elif token != "percent":
            found.append(token if token in NEUTRAL or token[0] == "#" else stem(token))
    return tuple(found)


def likeness(own: Sequence[str], other: Sequence[str]) -> float:
    """Return 2 L / (m + n), L the longest common subsequence of lists of m and n tokens."""
    return 2 * LCSseq.similarity(own, other) / max(len(own) + len(other), 1)


def is_near(own: Sequence[str], other: Sequence[str]) -> bool:
    """Return True if `other` is `own` with few runs of tokens changed, put in or taken out."""
    shorter, alike = min(len(own), len(other)), likeness(own, other)
    runs = sum(code.tag != "equal" for code in LCSseq.opcodes(own, other))
    return (
        alike >= NEAR
        or (alike >= LOOSELY_NEAR and runs <= FEW_RUNS)
        or (shorter > 5 and LCSseq.similarity(own, other) >= INSIDE * shorter)
    )


def compare_words(question: Reading, candidate: Reading) -> Iterator[Reason]:
    """Yield reasons: another operation, and the edits of a near copy."""
    before, after = (
        {name for name, said in OPERATIONS.items() if said.search(text.whole.lower())}
        for text in (question, candidate)
    )
    if before and after and not before & after:
        yield doubt("edit", f"{', '.join(sorted(before))} became {', '.join(sorted(after))}")
    own, other = tokens(question), tokens(candidate)
    if not is_near(own, other):
        return
    figures = [[t for t in side if re.search(r"\d", t) and t not in SOFT] for side in (own, other)]
    renamed = {*_NAME.findall(question.prose)} ^ {*_NAME.findall(candidate.prose)}
    names = {stem(name.lower()) for name in renamed}
    lost, new = _content(own, names), _content(other, names)
    lost, new = lost - new, new - lost
    # A letter named more or less often is ignored; one that replaces another is an edit.
    if not all(any(token[0] == "$" for token in side) for side in (lost, new)):
        lost, new = (Counter({t: n for t, n in c.items() if t[0] != "$"}) for c in (lost, new))
    shown = [", ".join(sorted(side)) or "nothing" for side in (lost, new)]
    detail = f"a near copy in which {shown[0]} became {shown[1]}"
    gone = {*lost, *new} - (set(own) & set(other))  # missing in one of the texts
    if NOT in (lost | new) or any(t[0] == "#" and t not in SOFT for t in gone):
        yield reject("edit", detail)
    elif lost or new:
        yield doubt("edit", detail)
    elif figures[0] != figures[1]:
        yield reject("edit", "a near copy in which numbers or formulas changed places")


def added_quantity(question: Reading, candidate: Reading, allow: bool) -> Iterator[Reason]:
    """Yield a reason for each sentence with a value and words that are not in the question."""
    lost, new = unmatched(question, candidate), unmatched(candidate, question)
    known = _content(tokens(question)).keys()
    for sentence in _SENTENCE.split(candidate.prose) if new and not lost else ():
        said = _content(tokens(Reading(sentence))).keys()
        values = {number.value for number in numbers(Reading(sentence))}
        if new & values and len(said) >= SENTENCE_WORDS and len(said & known) < SHARED * len(said):
            detail = f"an added sentence with a quantity: {sentence.strip()[:80]!r}"
            yield (doubt if allow else reject)("extra", detail)


def _content(found: Sequence[str], names: Collection[str] = ()) -> Counter[str]:
    """Count the tokens without neutral words, names and single characters."""
    return Counter(t for t in found if len(t) > 1 and t not in NEUTRAL and t not in names)
