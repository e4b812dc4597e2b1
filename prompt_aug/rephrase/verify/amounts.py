"""Numbers of two texts: which went missing, which came in, which were converted."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction

from prompt_aug.rephrase.verify.reading import Reading
from prompt_aug.rephrase.verify.reasons import Reason, doubt, reject
from prompt_aug.rephrase.verify.values import Number, numbers
from prompt_aug.rephrase.verify.wording import uncovered

UNITS = (
    (7, "week", "day"), (12, "year", "month"), (12, "dozen", ""), (12, "f(?:oo|ee)t", "inch"),
    (24, "day", "hour"), (60, "hour", "min"), (60, "min", "sec"), (3600, "hour", "sec"),
    (3, "yard", "f(?:oo|ee)t"), (16, "pound", "ounce"), (100, "dollar|\ue001", "cent|¢"),
    (1000, "km|kilo", "m(?:eter)?\\b|gram"), (100, "m(?:eter)?\\b", "cm|centi"),
    (365, "year", "day"), (52, "year", "week"), (10, "decade", "year"),
)  # fmt: skip
SHARED = 0.4  # an added sentence has less of its words in the question


def compare_numbers(
    question: Reading, candidate: Reading, allow_extra: bool = False
) -> Iterator[Reason]:
    """Yield values that one text has and the other has in no spelling."""
    own, other = numbers(question), numbers(candidate)
    lost, new = _unmatched(own, other), _unmatched(other, own)
    texts = question.prose.lower(), candidate.prose.lower()
    before, after = ({Fraction(1), *(n.value for n in listed)} for listed in (own, other))

    def unexplained(values: set[Fraction], first: bool) -> set[Fraction]:
        known, (a, b) = (after, texts) if first else (before, texts[::-1])
        return {v for v in values if not any(_converted(v, k, a, b) for k in known)}

    lost, new = unexplained(lost, True), unexplained(new, False)
    if lost and new:
        yield reject("numbers", f"{_listed(lost)} became {_listed(new)}")
    elif lost := lost - {n.value for n in own if n.counts}:
        yield doubt("numbers", f"{_listed(lost)} went missing")
    elif new := new - {n.value for n in other if n.counts}:
        sentences = uncovered(candidate, question, SHARED)
        readings = ((s, {n.value for n in numbers(Reading(s, (), ()))}) for s in sentences)
        added = next((sentence for sentence, values in readings if values & new), "")
        if added and not allow_extra:
            yield reject("extra", f"an added sentence with a quantity: {added[:80]!r}")
        else:
            yield doubt("numbers", f"{_listed(new)} came in")
    else:
        fewer = unexplained(_counts(own, other), True)
        more = unexplained(_counts(other, own), False)
        if fewer or more:
            detail = f"{_listed(fewer) or 'none'} less often, {_listed(more) or 'none'} more often"
            yield doubt("numbers", detail)


def _converted(one: Fraction, two: Fraction, first: str, second: str) -> bool:
    """Return True if the values are one quantity in two units that the texts name."""
    for factor, large, small in UNITS:
        for a, b, texts in ((one, two, (first, second)), (two, one, (second, first))):
            if a * factor == b and re.search(large, texts[0]) and re.search(small, texts[1]):
                return True
    return False


def _unmatched(own: Sequence[Number], other: Sequence[Number]) -> set[Fraction]:
    """Return hard values of `own` that `other` lacks; percents match their fractions."""
    known = {number.value for number in other}
    known |= {number.value / 100 for number in other if number.percent}
    return {
        number.value
        for number in own
        if not (number.soft or number.value in known)
        and not (number.percent and number.value / 100 in known)
    }


def _counts(own: Sequence[Number], other: Sequence[Number]) -> set[Fraction]:
    """Return values that `own` has, as hard ones, more often than `other` has them at all."""
    hard = Counter(_share(number) for number in own if not number.soft)
    return set(hard - Counter(map(_share, other)))


def _share(number: Number) -> Fraction:
    return number.value / 100 if number.percent else number.value


def _listed(values: set[Fraction]) -> str:
    return ", ".join(str(value) for value in sorted(values))
