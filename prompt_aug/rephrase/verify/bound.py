"""What the numbers of a question are bound to: a unit, the other side of a comparison, "times".

The same numbers make another problem when they exchange what they count ("5 miles in 40 minutes",
"40 miles in 5 minutes"), or what they are compared with ("5 more than Amy", "5 more than Ben").
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction

from prompt_aug.rephrase.verify.reading import AMOUNT, Reading, sentences
from prompt_aug.rephrase.verify.reasons import Reason, doubt
from prompt_aug.rephrase.verify.values import in_words, ratios, words
from prompt_aug.rephrase.verify.wording import meaning_of, names_in, stem, vocabulary

Bindings = dict[tuple[Fraction, str], set[str]]  # (value, how) -> to what
SKIPPED = frozenset("of the such other full additional extra whole new old equal".split())
PER = "in each "
NO_NOUN = frozenset(
    "and or is are was were on in at for to from with if how each per by every".split()
)
_COMPARED = ("than", "as")
_ARTICLES = frozenset("the his her their its a an on in at for of it was is did does".split())
LOOK_AHEAD = 8  # words between a number and the "than" or "as" that belongs to it


def compare_bindings(question: Reading, candidate: Reading) -> Iterator[Reason]:
    """Reasons of the filters "unit", "comparison", "flow" and "numbers"."""
    yield from _compare_units(units(question), units(candidate))
    yield from _compare_people(ranked(question), ranked(candidate))
    for name, bound in (("comparison", comparisons), ("flow", flows)):
        own, other = bound(question), bound(candidate)
        for key in sorted(own.keys() & other.keys()):
            if not own[key] & other[key]:
                gone, came = (", ".join(sorted(side[key])) for side in (own, other))
                yield doubt(name, f"{' '.join(map(str, key))}: {came}, not {gone}")
                break
    for one, two, what in ((question, candidate, "missing"), (candidate, question, "in")):
        if lost := _ratios_lost(words(one.prose), words(two.prose)):
            verb = "went" if what == "missing" else "came"
            yield doubt("numbers", f"{', '.join(map(str, sorted(lost)))} times {verb} {what}")
            return


def _ratios_lost(own: list[str], other: list[str]) -> set[Fraction]:
    """What is "times" in the one and stands less often in the other, where it is no "times"."""
    counts = [Counter(number.value for number in in_words(side)) for side in (own, other)]
    kept = set(ratios(other))
    return {
        value
        for value in ratios(own)
        if value not in kept and not counts[1][1 / value] and counts[0][value] > counts[1][value]
    }


def units(reading: Reading) -> dict[Fraction, set[str]]:
    """value -> the dollar sign before it, the one or two nouns after it, for all its places."""
    found: dict[Fraction, set[str]] = {}
    for sentence in sentences(reading):
        listed = words(sentence.prose)
        for number in in_words(listed):
            known = found.setdefault(number.value, set())
            if number.start and listed[number.start - 1] == AMOUNT:
                known.add("$")
            elif not number.soft and number.value > 1:
                nouns = _nouns(listed[number.end : number.end + 4])
                known.update(nouns or (not number.percent and _share(listed[: number.start])) or ())
    return found


def _nouns(after: list[str]) -> set[str]:
    """Up to two nouns that begin the words after a number, "additional" and the like left out."""
    known = vocabulary()
    compared = {word for pole in known.contrasts["amount"].values() for word, *_ in pole}
    rest = [word for word in after if word not in SKIPPED | compared][:2]
    nouns = itertools.takewhile(
        lambda word: word.isalpha() and word not in known.neutral | NO_NOUN, rest
    )
    return set(map(meaning_of, nouns))


def _share(before: list[str]) -> set[str]:
    """ "in bags of 6": 6 is what one of them holds, and no number of bags."""
    several = len(before) > 1 and before[-1] == "of" and before[-2].endswith("s")
    return {PER + meaning_of(before[-2])} if several else set()


def _exchanged(gone: set[str], came: set[str], others: set[str]) -> bool:
    """Whether a number lost its units for those of `others`; "bags of 6" for "6 bags"."""
    if not gone or not came or gone & came:
        return False
    shares = {name for name in gone | came if name.startswith(PER)}
    if shares:
        return any(name.removeprefix(PER) in gone | came for name in shares)
    return bool(came & others)


def _compare_units(
    own: dict[Fraction, set[str]], other: dict[Fraction, set[str]]
) -> Iterator[Reason]:
    """A number with the unit of another one in place of its own, or with its dollar sign."""
    for value in sorted(own.keys() & other.keys()):
        gone, came = own[value], other[value]
        others = set[str]().union(*(names for v, names in own.items() if v != value))
        if _exchanged(gone, came, others):
            yield doubt("unit", f"{value} {min(gone)} became {value} {min(came)}")
            return
        if "$" in came - gone and any("$" in own[v] - other[v] for v in own.keys() & other.keys()):
            yield doubt("unit", f"{value} became ${value}")
            return


def flows(reading: Reading) -> Bindings:
    """(value, "goes") -> whether the verb before it in its sentence brings in or takes away."""
    found: Bindings = {}
    named = vocabulary().flows
    for sentence in sentences(reading):
        listed = words(sentence.prose)
        starts = {n.start: n for n in in_words(listed) if not n.soft}
        flow = ""
        for place, word in enumerate(listed):
            flow = next((name for name in named if stem(word) in named[name]), flow)
            if flow and place in starts:
                found.setdefault((starts[place].value, "goes"), set()).add(flow)
    return found


def comparisons(reading: Reading) -> Bindings:
    """(value, "more" or "less" or "times") -> what it is compared with, by its first word."""
    found: Bindings = {}
    for sentence in sentences(reading):
        for clause in re.split(r"[,;:]\s", sentence.prose):
            listed = words(clause)
            for number in in_words(listed):
                direction, place = _direction(listed, number.end)
                other = _object(listed[place + 1 : place + 5]) if direction else ""
                if other:
                    found.setdefault((number.value, direction), set()).add(other)
    return found


def ranked(reading: Reading) -> set[tuple[str, str]]:
    """(who is less, who is more): "Ann is older than Ben" is (ben, ann)."""
    found = set()
    poles = vocabulary().contrasts["amount"]
    people = names_in(reading.prose)
    for sentence in sentences(reading):
        listed = words(re.sub(r"['’]s?\b", "", sentence.prose))
        for place, word in enumerate(listed):
            if word != "than":
                continue
            before, after = listed[:place], listed[place + 1 : place + 4]
            compared = (p for w in before[-LOOK_AHEAD:] for p in poles if (w,) in poles[p])
            one = next((w for w in reversed(before) if w in people), "")
            two = next((w for w in after if w in people), "")
            if one and two and one != two and (pole := next(compared, "")):
                found.add((one, two) if pole == "less" else (two, one))
    return found


def _compare_people(own: set[tuple[str, str]], other: set[tuple[str, str]]) -> Iterator[Reason]:
    """A comparison of two people turned round."""
    for one, two in sorted(own):
        if (two, one) in other and (one, two) not in other:
            yield doubt("comparison", f"{one} less than {two} became {two} less than {one}")
            return


def _direction(listed: list[str], start: int) -> tuple[str, int]:
    """(direction, place of its "than" or second "as") after a number; ("", 0) without any."""
    direction = ""
    poles = vocabulary().contrasts["amount"]
    for place in range(start, min(start + LOOK_AHEAD, len(listed))):
        word = listed[place]
        if word in _COMPARED and direction:
            return direction, place
        if word == "times" or (word == "as" and place == start):
            direction = "times"
        elif not direction:
            direction = next((pole for pole in poles if (word,) in poles[pole]), "")
        if word.isdigit():
            return "", 0
    return "", 0


def _object(after: list[str]) -> str:
    """The first word that says with what is compared, "" for a pronoun."""
    known = vocabulary().neutral
    for word in after:
        if word in _ARTICLES:
            continue
        if number := next(iter(in_words([word])), None):
            return f"#{number.value}"
        return "" if word in known or not word.isalpha() else meaning_of(word)
    return ""
