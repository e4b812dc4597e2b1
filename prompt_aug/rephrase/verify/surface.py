"""What a candidate looks like: diagram, language, length, chatter, leaked solution, copies."""

import re
from collections.abc import Collection, Iterator, Sequence

from rapidfuzz import fuzz

from prompt_aug.rephrase.verify.reading import DRAWING, read
from prompt_aug.rephrase.verify.reasons import Reason, doubt, reject
from prompt_aug.rephrase.verify.values import numbers
from prompt_aug.rephrase.verify.wording import tokens

SHORTEST, LONGEST = 0.35, 3.0  # of the question's words, diagrams aside
SHORT, LONG = 0.55, 2.0
FEWEST_WORDS, MANY = 3, 25
SIBLING_LIKENESS = 90.0  # rapidfuzz token_sort_ratio of the words in any order

_WORDS = re.compile(r"[^\W\d_]+")
_ENGLISH = frozenset(
    "the of a an is are and in to if what how find for that at on with be it by from many which "
    "each all has have can when let given there does do as than he she his her they their its "
    "was were will this these who where then so or not compute determine more suppose".split()
)
_OTHER = frozenset(
    "de la el los las que un una es en y con por para cuál cuántos sea si der die das und ist ein "
    "eine einen von zu mit wie viele haben sie hat zusammen le les des est et dans pour ils ont "
    "une combien quel quelle du sont il di che sono con per o e da em os um uma quantos qual na "
    "het een van zijn hoeveel och att är som det".split()
)
_CHATTER = re.compile(
    r"(?i)^\W*(?:sure|certainly|of course|okay|here (?:is|are)|here's|rephras\w*\b.{0,40}:"
    r"|the above question|question\s*:|original\s*:|problem\s*:|as an ai)"
    r"|\bI hope (?:this|that)\b|\blet me know if\b|\brephrased (?:question|version|problem)s?\b"
    r"|</?(?:think|answer|question|script|img|div|span|html|body|iframe|svg|style)\b|</[a-z]+>"
    r"|^\W*(?:version|perspective|rephrasing)\s*\d"
)
_LIST = re.compile(
    r"(?m)^\s*(?:\d+[.)]|[-*])\s+\S.*\n+\s*(?:\d+[.)]|[-*])\s+\S|\b1\..{20,}\b2\..{20,}"
)
_LEAK = re.compile(
    r"(?i)\\boxed|\bthe (?:final |correct )?answer (?:is|equals|=)|\b(?:answer|solution)\s*:"
    r"|\bhint\b|\bwe (?:get|obtain|conclude)\b|\bstep\s*\d|\bsince\b.{0,60}="
    r"|\bso (?:the|we)\b.{0,40}="
)
_REASONING = re.compile(r"(?i)\b(?:therefore|thus|hence|which (?:gives|yields))\b")


def surface(question: str, candidate: str) -> Iterator[Reason]:
    """The reasons that need no mathematics."""
    yield from _drawing(question, candidate)
    found = reject("language", detail) if (detail := foreign(question, candidate)) else None
    if found:
        yield found
    yield from _length(question, candidate)
    if (match := _CHATTER.search(candidate)) and not _CHATTER.search(question):
        yield reject("chatter", f"not the question alone: {match.group().strip()!r}")
    elif _LIST.search(candidate) and not _LIST.search(question):
        yield doubt("chatter", "a list where the question has none")
    if (match := _LEAK.search(candidate)) and not _LEAK.search(question):
        yield reject("leak", f"tells a solution: {match.group().strip()!r}")
    elif (match := _REASONING.search(candidate)) and not _REASONING.search(question):
        yield doubt("leak", f"may tell a solution: {match.group().strip()!r}")


def _drawing(question: str, candidate: str) -> Iterator[Reason]:
    if [d.strip() for d in DRAWING.findall(question)] != [
        d.strip() for d in DRAWING.findall(candidate)
    ]:
        yield reject(
            "diagram", "the [asy] blocks are not those of the question, character by character"
        )


def foreign(question: str, candidate: str) -> str | None:
    """Why the candidate is not in the question's language, None where it is."""
    listed = [word.lower() for word in _WORDS.findall(read(candidate).prose)]
    letters = "".join(listed)
    beyond = sum(ord(char) > 0x24F for char in letters if char.isalpha())
    own = "".join(_WORDS.findall(read(question).prose))
    own_beyond = sum(ord(char) > 0x24F for char in own)
    if letters and own and (beyond / len(letters) > 0.2) != (own_beyond / len(own) > 0.2):
        return "another script"
    english = sum(word in _ENGLISH for word in listed)
    other = sum(word in _OTHER and word not in _ENGLISH for word in listed)
    if len(listed) >= 5 and other > english:
        return f"{other} function words of other languages, {english} English ones"
    return None


def _length(question: str, candidate: str) -> Iterator[Reason]:
    own, found = len(tokens(read(question))), len(tokens(read(candidate)))
    ratio = found / max(own, 1)
    if found < FEWEST_WORDS or ratio < SHORTEST or (ratio > LONGEST and found > MANY):
        yield reject("length", f"{found} words, the question has {own}")
    elif (ratio < SHORT and own > 12) or (ratio > LONG and found > MANY):
        yield doubt("length", f"{found} words, the question has {own}")


def copies(question: str, candidate: str, siblings: Sequence[str]) -> Iterator[Reason]:
    """A copy of the question, or of a sibling that is kept before it."""
    own = tokens(read(candidate))
    if own == tokens(read(question)):
        yield reject("copy", "the same words, numbers and formulas in the same order")
    joined = " ".join(own)
    for place, sibling in enumerate(siblings):
        likeness = fuzz.token_sort_ratio(joined, " ".join(tokens(read(sibling))))
        if likeness >= SIBLING_LIKENESS:
            yield reject("sibling", f"a copy of sibling {place} ({likeness:.0f} % alike)")
            return


def leaked_answers(question: str, candidate: str, answers: Collection[str]) -> Iterator[Reason]:
    """A right answer that is in the candidate and not in the question."""
    own, found = read(question), read(candidate)
    before, inside = ({n.value for n in numbers(reading)} for reading in (own, found))
    for answer in answers:
        said = {n.value for n in numbers(read(answer))}
        if re.fullmatch(r"[-\d.,/$\s]+|\$?\\[dt]?frac\{?\d+\}?\{?\d+\}?\$?", answer.strip()):
            leaked = bool(said & inside - before) and not said <= {0, 1, 2}
        else:
            plain, text, asked = (re.sub(r"\s+", "", t) for t in (answer, candidate, question))
            leaked = len(plain) > 2 and plain in text and plain not in asked
        if leaked:
            yield reject("leak", f"the answer {answer!r} stands in the text")
            return
