"""Checks that need no mathematics: drawing, language, length, chatter, solution, copies."""

import re
from collections.abc import Collection, Iterator, Sequence

from rapidfuzz import fuzz

from prompt_aug.rephrase.verify.edit import NEUTRAL, tokens
from prompt_aug.rephrase.verify.reasons import Reason, doubt, reject
from prompt_aug.rephrase.verify.text import DRAWING, read
from prompt_aug.rephrase.verify.values import numbers

SHORTEST, LONGEST = 0.35, 3.0  # of the question's words, drawings aside
SHORT, LONG = 0.55, 2.0
FEWEST_WORDS, MANY = 3, 25
FEWEST_ENGLISH = 0.15  # share of function words in an English text
SIBLING_LIKENESS = 90.0  # rapidfuzz token_sort_ratio of the words in any order
_WORDS = re.compile(r"[^\W\d_]+")
_CHATTER = re.compile(
    r"(?i)^\W*(?:sure|certainly|of course|okay|here (?:is|are)|here's|rephras\w*\b.{0,40}:"
    r"|the above question|question\s*:|original\s*:|problem\s*:|as an ai)"
    r"|\bI hope (?:this|that)\b|\blet me know if\b|\brephrased (?:question|version|problem)s?\b"
    r"|</?(?:think|answer|question|script|img|div|span|html|body|iframe|svg|style)\b|</[a-z]+>"
    r"|^\W*(?:version|perspective|rephrasing)\s*\d"
    r"|<\|[^|\s]{1,40}\|>|^\s*```"  # a special token would end the user's turn
)
_LEAK = re.compile(
    r"(?i)\\boxed|\bthe (?:final |correct )?answer (?:is|equals|=)|\b(?:answer|solution)\s*:"
    r"|\bhint\b|\bwe (?:get|obtain|conclude)\b|\bstep\s*\d|\bsince\b.{0,60}="
    r"|\bso (?:the|we)\b.{0,40}="
)
_NUMERIC = re.compile(r"[-\d.,/$\s]+|\$?\\[dt]?frac\{?\d+\}?\{?\d+\}?\$?")


def surface(question: str, candidate: str) -> Iterator[Reason]:
    """Yield reasons about drawings, language, length, chatter and leaked solutions."""
    drawings = [[d.strip() for d in DRAWING.findall(text)] for text in (question, candidate)]
    if drawings[0] != drawings[1]:
        yield reject("diagram", "the [asy] blocks differ from the question's")
    if _is_english(question) != _is_english(candidate):
        yield reject("language", "one text is English, the other is not")
    own, found = len(tokens(read(question))), len(tokens(read(candidate)))
    ratio = found / max(own, 1)
    words = f"{found} words, the question has {own}"
    if found < FEWEST_WORDS or ratio < SHORTEST or (ratio > LONGEST and found > MANY):
        yield reject("length", words)
    elif (ratio < SHORT and own > 12) or (ratio > LONG and found > MANY):
        yield doubt("length", words)
    for name, pattern in (("chatter", _CHATTER), ("leak", _LEAK)):
        if (match := pattern.search(candidate)) and not pattern.search(question):
            yield reject(name, f"not the question alone: {match.group().strip()[:80]!r}")


def _is_english(text: str) -> bool:
    """Return True for enough function words; in short texts, if most letters are Latin."""
    listed = _WORDS.findall(read(text).prose.lower())
    letters = "".join(listed)
    if len(letters) < 20:
        return sum(letter > "\u024f" for letter in letters) <= len(letters) / 2
    return sum(word in NEUTRAL for word in listed) >= FEWEST_ENGLISH * len(listed)


def copies(question: str, candidate: str, siblings: Sequence[str]) -> Iterator[Reason]:
    """Yield a reason if the candidate copies the question or an accepted sibling."""
    own = tokens(read(candidate))
    if own == tokens(read(question)):
        yield reject("copy", "the same words, numbers and formulas in the same order")
    for place, sibling in enumerate(siblings):
        likeness = fuzz.token_sort_ratio(" ".join(own), " ".join(tokens(read(sibling))))
        if likeness >= SIBLING_LIKENESS:
            yield reject("sibling", f"a copy of sibling {place} ({likeness:.0f} % alike)")
            return


def leaked_answers(question: str, candidate: str, answers: Collection[str]) -> Iterator[Reason]:
    """Yield a reason for a right answer that is in the candidate and not in the question."""
    before, inside = ({n.value for n in numbers(read(text))} for text in (question, candidate))
    for answer in answers:
        said = {n.value for n in numbers(read(answer))}
        if _NUMERIC.fullmatch(answer.strip()):
            leaked = bool(said & inside - before) and not said <= {0, 1, 2}
        else:
            plain, text, asked = (re.sub(r"\s+", "", t) for t in (answer, candidate, question))
            leaked = len(plain) > 2 and plain in text and plain not in asked
        if leaked:
            yield reject("leak", f"the answer {answer!r} stands in the text")
            return
