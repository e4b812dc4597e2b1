"""Cheap checks of a candidate rephrasing: accept, doubtful or reject, with reasons.

Drawing, language, length, chatter, leaks and copies need no mathematics. In a near copy each
changed word must be in `NEUTRAL` or a name. Each side of a relation, in a compact spelling, is
looked up in the whole other text, because a text may have one formula where the other has three.
"""

import functools
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain
from typing import Literal

from rapidfuzz import fuzz
from rapidfuzz.distance import LCSseq

from prompt_aug.grading.echo import DRAWING
from prompt_aug.rephrase.reading import FORMULA, Reading, compact, in_tokens, numbers, read

Verdict = Literal["accept", "doubtful", "reject"]


@dataclass(frozen=True, slots=True)
class Reason:
    """Name of a filter, its verdict on the candidate, and what it found."""

    filter: str
    verdict: Verdict
    detail: str


def reject(name: str, detail: str) -> Reason:
    return Reason(name, "reject", detail)


def doubt(name: str, detail: str) -> Reason:
    return Reason(name, "doubtful", detail)


@dataclass(frozen=True, slots=True)
class Check:
    """The reasons against a candidate."""

    reasons: tuple[Reason, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of the reasons; "accept" without any."""
        verdicts = {reason.verdict for reason in self.reasons}
        return "reject" if "reject" in verdicts else "doubtful" if verdicts else "accept"


# Near: likeness >= NEAR, or >= LOOSELY_NEAR in <= FEW_RUNS runs, or INSIDE of the shorter text.
NEAR, LOOSELY_NEAR, FEW_RUNS, INSIDE = 0.85, 0.6, 3, 0.93
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
# Neutral words that do change a near copy: reduced by or to, how many he had or has.
PIVOTS = [
    frozenset(words.split())
    for words in (
        "by to from",
        "he she they",
        "his her their",
        "did had do does has have will is are was were be been",
    )
]
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
    formulas, listed = iter(reading.formulas), list[str]()
    for token in _TOKEN.findall(in_tokens(re.sub(r"[’']s?\b", "", prose))):
        if token == FORMULA:
            formula = next(formulas, "")
            listed.append(f"${formula}" if len(formula) == 1 else formula)
        elif token in NEGATIONS:
            listed.append(NOT)
        elif token != "percent":
            listed.append(token if token in NEUTRAL or token[0] == "#" else stem(token))
    return tuple(listed)


def likeness(first: Sequence[str], second: Sequence[str]) -> float:
    """Return 2 L / (m + n), L the longest common subsequence of lists of m and n tokens."""
    return 2 * LCSseq.similarity(first, second) / max(len(first) + len(second), 1)


def is_near(first: Sequence[str], second: Sequence[str]) -> bool:
    """Return True if `second` is `first` with few runs of tokens changed, put in or taken out."""
    shorter, alike = min(len(first), len(second)), likeness(first, second)
    runs = sum(code.tag != "equal" for code in LCSseq.opcodes(first, second))
    return (
        alike >= NEAR
        or (alike >= LOOSELY_NEAR and runs <= FEW_RUNS)
        or (shorter > 5 and LCSseq.similarity(first, second) >= INSIDE * shorter)
    )


def compare_words(question: Reading, candidate: Reading) -> Iterator[Reason]:
    """Yield reasons: another operation, and the edits of a near copy."""
    before, after = (
        {name for name, words in OPERATIONS.items() if words.search(text.text.lower())}
        for text in (question, candidate)
    )
    if before and after and not before & after:
        yield doubt("edit", f"{', '.join(sorted(before))} became {', '.join(sorted(after))}")
    own, changed = tokens(question), tokens(candidate)
    if not is_near(own, changed):
        return
    figures = [[t for t in s if re.search(r"\d", t) and t not in SOFT] for s in (own, changed)]
    renamed = {*_NAME.findall(question.prose)} ^ {*_NAME.findall(candidate.prose)}
    names = {stem(name.lower()) for name in renamed}
    lost, new = _content(own, names), _content(changed, names)
    lost, new = lost - new, new - lost
    # A letter named more or less often is ignored; one that replaces another is an edit.
    if not all(any(token[0] == "$" for token in side) for side in (lost, new)):
        lost, new = (Counter({t: n for t, n in c.items() if t[0] != "$"}) for c in (lost, new))
    shown = [", ".join(sorted(side)) or "nothing" for side in (lost, new)]
    detail = f"a near copy in which {shown[0]} became {shown[1]}"
    gone = {*lost, *new} - (set(own) & set(changed))  # missing in one of the texts
    if NOT in (lost | new) or any(t[0] == "#" and t not in SOFT for t in gone):
        yield reject("edit", detail)
    elif lost or new:
        yield doubt("edit", detail)
    elif figures[0] != figures[1]:
        yield reject("edit", "a near copy in which numbers or formulas changed places")
    else:
        fewer, more = Counter(own) - Counter(changed), Counter(changed) - Counter(own)
        if turned := [x for x in PIVOTS if x & fewer.keys() and x & more.keys()]:
            yield doubt("edit", f"a near copy with another word of {', '.join(sorted(turned[0]))}")
        # "A" and "I" begin sentences; "Will" is a name, too.
        upper = re.findall(r"\b(?![AI]\b)[^\W\d_]+", question.prose)
        people = {x.lower() for x in upper if x[0].isupper()} - (NEUTRAL - {"will"})
        people |= {stem(name) for name in people}
        first, second = ([t for t in s if t in people] for s in (own, changed))
        if first != second and sorted(first) == sorted(second):
            yield doubt("edit", "a near copy in which names changed places")


def _content(listed: Sequence[str], names: Collection[str]) -> Counter[str]:
    """Count the tokens without neutral words, names and single characters."""
    return Counter(t for t in listed if len(t) > 1 and t not in NEUTRAL and t not in names)


SHORTEST, LONGEST = 0.35, 3.0  # of the question's words, drawings aside
SHORT, LONG = 0.55, 2.0
FEWEST_WORDS, MANY = 3, 25
FEWEST_ENGLISH = 0.15  # share of function words in an English text
SIBLING_LIKENESS = 90.0  # rapidfuzz token_sort_ratio of the words in any order
_WORDS = re.compile(r"[^\W\d_]+")
ASKS = re.compile(  # a question mark, a question word or an imperative
    r"(?i)[?？]|\b(?:find|determine|compute|calculate|evaluate|estimate|solve|simplify|prove|show"
    r"|express|what|how|provide|report|indicate|obtain|specify|derive|give|(?:work|figure) out)\b"
    r"|(?:^|[.,:;$\])}]\s*|\b(?:please|then)\s+)(?:enter"
    r"|expand|factor|convert|rationalize|(?:re)?write|round|add|subtract|multiply|divide|list|give"
    r"|name|state|count|choose|select|identify|tell)\b"
)
_OPTION = re.compile(r"(?m)(?:^[^\w\n]*|(?<![\w)])\(|(?<=\s)(?=[A-J]\)))([A-J])[.)]")
_LAYOUT = re.compile(r"\\(?:q?quad|text\w*|math\w*)|[\s\\${}*~]|[.,;]$")
_STOPS = re.compile(r"[^\W\d_]\s*$")
_CHATTER = re.compile(
    r"(?i)^\W*(?:sure|certainly|of course|okay|here (?:is|are)|here's|rephras\w*\b.{0,40}:"
    r"|the above question|question\s*:|original\s*:|problem\s*:|as an ai|let me re|analysis(?=we )"
    r"|(?:absolutely|got it|great|alright|understood)[!.,:])|\[/?THINK\]|◁/?think▷"
    r"|\n\W{0,9}(?:note|explanation|or|alternative\w*)\b\W{0,3}:|\bto solve this\b"
    r"|\bwould you like\b|\border of (?:the )?(?:information|facts)\b|\bthe question asks\b"
    r"|\bI hope (?:this|that)\b|\blet me know if\b|\brephrased (?:question|version|problem)s?\b"
    r"|</?(?:think|answer|question|script|img|div|span|html|body|iframe|svg|style)\b|</[a-z]+>"
    r"|^\W*(?:version|perspective|rephrasing)\s*\d|^\W*(?:version|option)\s*\w\W*[:\n]"
    r"|<\|[^|\s]{1,40}\|>|^\s*```"  # a special token would end the user's turn
)
_LEAK = re.compile(
    r"(?i)\\boxed|\bthe (?:final |correct )?answer (?:is|equals|=)|\b(?:answer|solution)\s*:"
    r"|\bhint\b|\bwe (?:get|obtain|conclude)\b|\bstep\s*\d|\bsince\b.{0,60}="
    r"|\bso (?:the|we)\b.{0,40}="
)
_NUMERIC = re.compile(r"[-\d.,/$\s]+|\$?\\[dt]?frac\{?\d+\}?\{?\d+\}?\$?")


def surface(question: str, candidate: str) -> Iterator[Reason]:
    """Yield reasons about drawings, language, length, chatter, leaked solutions and copies."""
    drawings = [[d.strip() for d in DRAWING.findall(text)] for text in (question, candidate)]
    if drawings[0] != drawings[1]:
        yield reject("diagram", "the [asy] blocks differ from the question's")
    english = [_is_english(text) for text in (question, candidate)]
    if english[0] != english[1]:
        yield reject("language", "one text is English, the other is not")
    elif not english[0]:
        yield doubt("language", "number words and negations are read in English only")
    listed, changed = tokens(read(question)), tokens(read(candidate))
    own, count = len(listed), len(changed)
    ratio = count / max(own, 1)
    words = f"{count} words, the question has {own}"
    if count < FEWEST_WORDS or ratio < SHORTEST or (ratio > LONGEST and count > MANY):
        yield reject("length", words)
    elif (ratio < SHORT and own > 12) or (ratio > LONG and count > MANY):
        yield doubt("length", words)
    for name, pattern in (("chatter", _CHATTER), ("leak", _LEAK)):
        if (match := pattern.search(candidate)) and not pattern.search(question):
            yield reject(name, f"not the question alone: {match.group().strip()[:80]!r}")
    if changed == listed:
        yield reject("copy", "the same words, numbers and formulas in the same order")


def requests(question: str, candidate: str) -> Iterator[Reason]:
    """Yield reasons: other options, no request or half of one, and a remark after it."""
    own, others = _options(question), _options(candidate)
    if own and own != others:
        decide = reject if sorted(own) == sorted(others) else doubt
        yield decide("options", "the lettered options differ, or their order does")
    if ASKS.search(question) and not ASKS.search(candidate):
        yield doubt("request", "it asks nothing")
    elif _STOPS.search(candidate) and not _STOPS.search(question):
        yield doubt("request", "it ends without a period")
    if _has_remark(candidate) and not _has_remark(question):
        last = re.split(r"\n\s*\n", candidate.strip())[-1]
        decide = doubt if {*tokens(read(last))} <= {*tokens(read(question))} else reject
        yield decide("chatter", "a remark after the question")


def _has_remark(text: str) -> bool:
    """Return True for a last paragraph without request, number and formula after a request."""
    *before, last = re.split(r"\n\s*\n", text.strip())
    plain = not (ASKS.search(last) or re.search(r"[\d$\\[]", last) or _options(text))
    return plain and any(map(ASKS.search, before))


def _options(text: str) -> list[str]:
    """Return the options A, B, ... without spaces and commands of TeX; [] if there are none."""
    text = re.sub(r"\(\w+ [A-J]\)", "", DRAWING.sub("", text))  # (group A)
    letters, texts = (_OPTION.split(text)[place::2] for place in (1, 2))
    if len(letters) < 2 or not "ABCDEFGHIJ".startswith("".join(letters)):
        return []
    texts[-1] = texts[-1].strip().split("\n")[0]
    return [_LAYOUT.sub("", text).lower() for text in texts]


def _is_english(text: str) -> bool:
    """Return True for enough function words; in short texts, if most letters are Latin."""
    listed = _WORDS.findall(read(text).prose.lower())
    letters = "".join(listed)
    if len(letters) < 20:
        return sum(letter > "\u024f" for letter in letters) <= len(letters) / 2
    return sum(word in NEUTRAL for word in listed) >= FEWEST_ENGLISH * len(listed)


def sibling_copies(candidate: str, siblings: Sequence[str]) -> Iterator[Reason]:
    """Yield a reason if the candidate copies an accepted sibling."""
    own = tokens(read(candidate))
    for place, sibling in enumerate(siblings):
        likeness = fuzz.token_sort_ratio(" ".join(own), " ".join(tokens(read(sibling))))
        if likeness >= SIBLING_LIKENESS:
            yield reject("sibling", f"a copy of sibling {place} ({likeness:.0f} % alike)")
            return


def leaked_answers(question: str, candidate: str, answers: Collection[str]) -> Iterator[Reason]:
    """Yield a reason for a right answer that is in the candidate and not in the question."""
    before, inside = ({n.value for n in numbers(read(text))} for text in (question, candidate))
    for answer in answers:
        values = {n.value for n in numbers(read(answer))}
        if _NUMERIC.fullmatch(answer.strip()):
            leaked = bool(values & inside - before) and not values <= {0, 1, 2}
        else:
            plain, text, original = (re.sub(r"\s+", "", t) for t in (answer, candidate, question))
            leaked = len(plain) > 2 and plain in text and plain not in original
        if leaked:
            yield reject("leak", f"the answer {answer!r} stands in the text")
            return


EDIT_LIKENESS = 60.0  # pieces at least this alike are one edited piece
LONG_PIECE = 3  # longer pieces must not come or go
_RELATION = re.compile(r"(<=|>=|!=|<|>|=)")
_SPLIT = re.compile(r",(?![^(\[{]*[)\]}])|\\(?:text|quad)|\\\\|&|;|(?<=[^a-z])and(?=[^a-z])")
_OPERATION = re.compile(r"[-+*/^|!]|sqrt|sin|cos|tan|log|sum|int|prod|floor|ceil")
_COORDINATES = re.compile(r"[A-Za-z]?[(\[][^()\[\]]*,[^()\[\]]*[)\]]|[A-Za-z]\(-?\d+(?:\.\d+)?\)")
_SPELLING = re.compile(r"[A-Za-z()\[\]{}.,\s]+")


def compare_formulas(question: Reading, candidate: Reading) -> Iterator[Reason]:
    """Yield reasons: pieces and relations of formulas that are in one text only."""
    own, changed = question.formulas, candidate.formulas
    flat_own, flat_other = (
        "\n".join([*formulas, compact("".join(formulas)), compact(reading.text)])
        for formulas, reading in ((own, question), (changed, candidate))
    )
    lost = [piece for piece in pieces(own) if piece not in flat_other]
    new = [piece for piece in pieces(changed) if piece not in flat_own]
    for gone, came in ((a, b) for a in lost for b in new if fuzz.ratio(a, b) >= EDIT_LIKENESS):
        # Another bracket, command or name of a variable may be no fault; another digit or sign is.
        same = _SPELLING.sub("", gone) == _SPELLING.sub("", came)
        yield (doubt if same else reject)("formulas", f"{gone} became {came}")
        return
    if lost and new:
        yield doubt("formulas", f"{lost[0]} went missing, {new[0]} came in")
    elif only := max((p for p in lost + new if len(p) > LONG_PIECE), key=len, default=""):
        yield doubt("formulas", f"{only} {'went missing' if lost else 'came in'}")
    before, after = relations(own), relations(changed)
    for sides in sorted(before.keys() & after.keys()):
        if before[sides] != after[sides]:
            yield reject("formulas", f"{sides} related by {before[sides]}, then {after[sides]}")
            return


def _sides(formulas: Sequence[str]) -> Iterator[list[str]]:
    """Yield the sides and, between them, the relations of each part of the formulas."""
    for part in (part for formula in formulas for part in _SPLIT.split(formula)):
        yield [side.strip(" \n\t.,;:?") for side in _RELATION.split(part)]


def pieces(formulas: Sequence[str]) -> dict[str, None]:
    """Return the sides of relations that say more than a letter or a number, in order."""
    return {
        side: None
        for sides in _sides(formulas)
        for side in sides[::2]
        if _COORDINATES.fullmatch(side) or (_OPERATION.search(side) and len(side) > 2)
    }


def relations(formulas: Sequence[str]) -> dict[tuple[str, str], set[str]]:
    """Map two sides, in alphabetic order, to the signs between them."""
    signs: dict[tuple[str, str], set[str]] = {}
    for sides in _sides(formulas):
        for left, sign, right in zip(sides[::2], sides[1::2], sides[2::2], strict=False):
            if left > right:
                left, sign, right = right, sign.translate(str.maketrans("<>", "><")), left
            if left:
                signs.setdefault((left, right), set()).add(sign)
    return signs


# Hours other than a half are not converted: it let a changed question of GSM-Plus pass.
_PARTS = {"decade": (120, "months"), "year": (12, "months"), "week": (7, "days")}
_AMOUNT = re.compile(
    r"\b(?:half(?:[\s-]an?)?[\s-]hours?|(an?|one|two|three|four|five|six|\d+)[\s-]"
    rf"({'|'.join(_PARTS)})s?)\b",
    re.IGNORECASE,
)


def converted(reading: Reading) -> Reading:
    """Return the text with half hours, weeks, years and decades in smaller units."""

    def smaller(match: re.Match[str]) -> str:
        if match[1] is None:
            return "30 minutes"
        count, unit = _PARTS[match[2].lower()]
        values = [number.value for number in numbers(Reading(match[1]))]
        return f"{count * values[0] if values else count} {unit}"

    return replace(reading, prose=_AMOUNT.sub(smaller, reading.prose))


def compare_numbers(question: Reading, candidate: Reading) -> Iterator[Reason]:
    """Yield a reason for values that went missing, came in, or changed their count.

    Values that are equal after a conversion, as a decade and 10 years, give none.
    """
    smaller = converted(question), converted(candidate)
    if smaller != (question, candidate) and not any(_number_changes(*smaller)):
        return
    yield from _number_changes(question, candidate)


def _number_changes(question: Reading, candidate: Reading) -> Iterator[Reason]:
    both = (question, candidate), (candidate, question)
    lost, new = (unmatched(*pair) for pair in both)
    fewer, more = (unmatched(*pair, counted=True) for pair in both)
    if lost and new:
        yield reject("numbers", f"{_listed(lost)} became {_listed(new)}")
    elif lost or new:
        yield doubt("numbers", f"{_listed(lost or new)} {'went missing' if lost else 'came in'}")
    elif fewer or more:
        detail = f"{_listed(fewer) or 'none'} less often, {_listed(more) or 'none'} more often"
        yield doubt("numbers", detail)


def unmatched(first: Reading, second: Reading, counted: bool = False) -> set[Fraction]:
    """Return hard values of `first` that `second` lacks or, if `counted`, names less often."""
    own, others = numbers(first), numbers(second)
    matched = {n.value for n in others} | {n.share for n in others}
    if counted:  # a percentage matches its fraction
        return set(Counter(n.share for n in own if not n.soft) - Counter(n.share for n in others))
    return {n.value for n in own if not n.soft and not {n.value, n.share} & matched}


# Words that may stand for a minus sign, and words for one and two that come and go.
_BELOW = re.compile(
    r"(?i)\b(?:below|under|negative|minus|loss|los[et]|debt|ow(?:e|ing)|opposite|left|west|south"
    r"|down|drop|fall|fell|less|subtract|reduc|decreas|before)"
)
_PAIRS = re.compile(r"(?i)\b(?:both|pairs?|couples?|either|once|single)\b")


def compare_signs(question: Reading, candidate: Reading) -> Iterator[Reason]:
    """Yield reasons: a sign came or went, and one, two or a rank became another."""
    soft: list[set[Fraction]] = []
    for first, second in ((question, candidate), (candidate, question)):
        own, others = numbers(first), numbers(second)
        values = {n.value for n in others}
        unclear = {n.value for n in own if not n.negative}
        unclear |= {n.value for n in others if n.negative is not False}
        turned = {n.value for n in own} & values - unclear
        if turned and not _BELOW.search(second.prose):
            yield doubt("numbers", f"{_listed(turned)} changed the sign")
        words = numbers(Reading(_PAIRS.sub("", first.prose)))
        soft.append({n.value for n in words if n.soft and n.value >= 1} - values)
    for gone, came in ((a, b) for a in soft[0] for b in soft[1] if (a > 2) == (b > 2)):
        yield doubt("numbers", f"{gone} became {came}")


def _listed(values: set[Fraction]) -> str:
    return ", ".join(str(value) for value in sorted(values))


LONGEST_TEXT = 2000  # characters that a candidate may have beyond three times the question's


def check_text(
    question: str, candidate: str, siblings: Sequence[str] = (), *, answers: Collection[str] = ()
) -> Check:
    """Compare `candidate` with `question` and return the verdict with all reasons.

    `siblings` are accepted candidates of the question; `answers` are its right answers, which a
    candidate must not add.
    """
    if len(candidate) > LONGEST_TEXT + 3 * len(question):
        return Check((reject("length", f"{len(candidate)} characters"),))
    original, changed = read(question), read(candidate)
    found = (
        surface(question, candidate),
        sibling_copies(candidate, siblings),
        leaked_answers(question, candidate, answers),
        requests(question, candidate),
        compare_numbers(original, changed),
        compare_signs(original, changed),
        compare_formulas(original, changed),
        compare_words(original, changed),
    )
    return Check(tuple(chain(*found)))
