r"""Numbers and formulas of two texts: which went missing, which came in.

Formulas are compared in pieces, since "$f(x) = 2x$ for $x > 0$" may be written as three formulas
or one: the sides of relations, and the relation signs between them. A piece of the question that
stands nowhere in the candidate is missing; one of the candidate that stands nowhere in the
question is extra. Both at once is an edit.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from fractions import Fraction

from rapidfuzz import fuzz

from prompt_aug.rephrase.verify.reading import Reading
from prompt_aug.rephrase.verify.reasons import Reason, doubt, reject
from prompt_aug.rephrase.verify.values import Number

_RELATION = re.compile(
    r"(\\(?:le|ge|ne|lt|gt|equiv|approx|in|notin|subset|to|mapsto)(?![a-zA-Z])|<|>|=)"
)
_SPLIT = re.compile(r",(?![^(\[{]*[)\]}])|\\(?:text|quad)\{?|\\\\|&|;")
_LETTER = re.compile(r"(?<![\\A-Za-z])[A-Za-z](?![a-zA-Z])|(?<=[A-Za-z])(?<!\\)[A-Za-z]")
_COMMAND = re.compile(r"\\[a-zA-Z]+")
_OPERATION = re.compile(r"[-+*/^|!]|\\(?:frac|sqrt|cdot|times|div|sin|cos|tan|log|sum|int|prod)")
_POINT = re.compile(r"[A-Z]?[(\[][^()\[\]]*,[^()\[\]]*[)\]]")
_LABEL = re.compile(r"(?<![A-Za-z\\])[A-Z]{2,4}(?![A-Za-z(])")  # AB, ABC
_APPLIED = re.compile(r"[A-Za-z]\(-?\d+(?:\.\d+)?\)")  # f(2)
_FLIP = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le", r"\lt": r"\gt", r"\gt": r"\lt"}
CONVERSIONS = frozenset((7, 12, 24, 60, 100, 1000, 3600, 365, 52))
EDIT_LIKENESS = 60.0  # two pieces so alike are one piece edited


def compare_numbers(question: Sequence[Number], candidate: Sequence[Number]) -> Iterator[Reason]:
    """Values that one text has and the other has not in any spelling."""
    lost, new = _unmatched(question, candidate), _unmatched(candidate, question)
    if lost and new:
        pairs = [(one, two) for one in lost for two in new if _converted(one, two)]
        if {one for one, _ in pairs} == lost and {two for _, two in pairs} == new:
            yield doubt("numbers", f"{_listed(lost)} became {_listed(new)}: converted?")
        else:
            yield reject("numbers", f"{_listed(lost)} became {_listed(new)}")
    elif lost:
        yield doubt("numbers", f"{_listed(lost)} went missing")
    elif new := {n.value for n in candidate if n.value in new and not n.counts}:
        yield doubt("numbers", f"{_listed(new)} came in")
    else:
        fewer, more = _counts(question, candidate), _counts(candidate, question)
        if fewer and more:
            yield doubt("numbers", f"{_listed(fewer)} less often, {_listed(more)} more often")


def _converted(one: Fraction, two: Fraction) -> bool:
    """Whether the values may be one in two units (weeks, days), or a share and its inverse."""
    if not one or not two:
        return False
    return one * two == 1 or one / two in CONVERSIONS or two / one in CONVERSIONS


def _unmatched(own: Sequence[Number], other: Sequence[Number]) -> set[Fraction]:
    """Hard values of `own` that `other` has not, percents matched with their fractions."""
    known = {number.value for number in other}
    known |= {number.value / 100 for number in other if number.percent}
    return {
        number.value
        for number in own
        if not (number.soft or number.value in known)
        and not (number.percent and number.value / 100 in known)
    }


def _counts(own: Sequence[Number], other: Sequence[Number]) -> set[Fraction]:
    """Values that `own` has, as hard ones, more often than `other` has them at all."""
    hard = Counter(_share(number) for number in own if not number.soft)
    return set(hard - Counter(map(_share, other)))


def _share(number: Number) -> Fraction:
    """The value, 1/2 for 50 %."""
    return number.value / 100 if number.percent else number.value


def _listed(values: set[Fraction]) -> str:
    return ", ".join(str(value) for value in sorted(values))


def pieces(formulas: Sequence[str]) -> Counter[str]:
    """The sides of relations that say more than a letter or a number."""
    found: Counter[str] = Counter()
    for formula in formulas:
        for part in _SPLIT.split(formula):
            for side in _RELATION.split(part)[::2]:
                side = _tidy(side)
                whole = _POINT.fullmatch(side) or _APPLIED.fullmatch(side)
                if whole or (_OPERATION.search(side) and len(side) > 2):
                    found[side] += 1
    return found


def _tidy(side: str) -> str:
    while side[:1] == "{" and side[-1:] == "}":
        side = side[1:-1]
    return re.sub(r"[.,;:?\s]+$|^[.,;:\s]+", "", side)


def relations(formulas: Sequence[str]) -> Counter[str]:
    """Each relation as "left sign right", turned so that < and > are one."""
    found: Counter[str] = Counter()
    for formula in formulas:
        for part in _SPLIT.split(formula):
            sides = _RELATION.split(part)
            for left, sign, right in zip(sides[::2], sides[1::2], sides[2::2], strict=False):
                left, right = _tidy(left), _tidy(right)
                sign = {r"\lt": "<", r"\gt": ">"}.get(sign, sign)
                if sign in _FLIP and _FLIP[sign] in ("<", r"\le"):
                    left, sign, right = right, _FLIP[sign], left
                if left and right:
                    found[f"{left} {sign} {right}"] += 1
    return found


def compare_formulas(question: Reading, candidate: Reading) -> Iterator[Reason]:
    """Pieces and relations of formulas that are in one text only."""
    renamed = renaming(question.formulas, candidate.formulas)
    own = [rename(formula, renamed) for formula in question.formulas]
    flat_own, flat_other = _flat(own, question), _flat(candidate.formulas, candidate)
    lost = [p for p in pieces(own) if p not in flat_other]
    new = [p for p in pieces(candidate.formulas) if p not in flat_own]
    edits = [(a, b) for a in lost for b in new if fuzz.ratio(a, b) >= EDIT_LIKENESS]
    if edits:
        yield reject("formulas", f"{edits[0][0]} became {edits[0][1]}")
    elif lost and new:
        yield doubt("formulas", f"{lost[0]} went missing, {new[0]} came in")
    elif any(len(p) > 4 for p in lost):
        yield doubt("formulas", f"{max(lost, key=len)} went missing")
    elif any(len(p) > 4 or _APPLIED.fullmatch(p) for p in new):
        yield doubt("formulas", f"{max(new, key=len)} came in")
    if not edits:
        yield from _compare_relations(relations(own), relations(candidate.formulas))
        yield from _compare_labels(own, candidate.formulas)


def _compare_relations(own: Counter[str], other: Counter[str]) -> Iterator[Reason]:
    """The same two sides with another sign between them."""
    lost, new = set(own) - set(other), set(other) - set(own)
    for one in sorted(lost):
        left, sign, right = one.split(" ", 2)
        for two in sorted(new):
            left_2, sign_2, right_2 = two.split(" ", 2)
            numbers_differ = (left, sign) == (left_2, sign_2) and all(
                re.fullmatch(r"-?\d+(?:\.\d+)?", side) for side in (right, right_2)
            )
            same_sides = {left, right} == {left_2, right_2}
            symmetric = sign == sign_2 and sign in ("=", r"\ne", r"\equiv", r"\approx")
            if not (
                numbers_differ
                or (same_sides and not symmetric)
                or _one_side_edited((left, right), (left_2, right_2))
            ):
                continue
            yield reject("formulas", f"{one} became {two}")
            return


def _one_side_edited(own: tuple[str, str], other: tuple[str, str]) -> bool:
    """Whether a side that says something is the same, and what it is related to is edited."""
    for kept, gone, same, came in (
        (own[0], own[1], other[0], other[1]),
        (own[1], own[0], other[1], other[0]),
    ):
        if kept == same and _OPERATION.search(kept) and len(gone) > 1 and len(came) > 1:
            return fuzz.ratio(gone, came) >= EDIT_LIKENESS
    return False


def _compare_labels(question: Sequence[str], candidate: Sequence[str]) -> Iterator[Reason]:
    """Points, segments, triangles by their letters, in any order: one for another."""
    own, other = (
        {"".join(sorted(name)) for formula in formulas for name in _LABEL.findall(formula)}
        for formulas in (question, candidate)
    )
    if own - other and other - own:
        gone, came = sorted(own - other), sorted(other - own)
        yield doubt("formulas", f"{', '.join(gone)} became {', '.join(came)}")


def _flat(formulas: Sequence[str], reading: Reading) -> str:
    return "\n".join([*map(_tidy, formulas), *formulas, re.sub(r"\s", "", reading.prose)])


def letters(formulas: Sequence[str]) -> list[str]:
    """The one-letter names of formulas, in order of first appearance."""
    joined = " ".join(_COMMAND.sub(" ", formula) for formula in formulas)
    return list(dict.fromkeys(re.findall(r"[A-Za-z]", joined)))


def renaming(question: Sequence[str], candidate: Sequence[str]) -> dict[str, str]:
    """The one-to-one renaming of letters under which the candidate has more of the pieces, or {}.

    Letters of both texts keep their names; the others are matched in order of appearance.
    """
    own, other = letters(question), letters(candidate)
    gone = [name for name in own if name not in other]
    came = [name for name in other if name not in own]
    if not gone or len(gone) != len(came):
        return {}
    names = dict(zip(gone, came, strict=True))
    before = pieces(question).keys() & pieces(candidate).keys()
    after = pieces([rename(f, names) for f in question]).keys() & pieces(candidate).keys()
    return names if len(after) > len(before) else {}


def renamed(question: Reading, names: dict[str, str]) -> Reading:
    """The question with the letters of its formulas renamed."""
    formulas = tuple(rename(formula, names) for formula in question.formulas)
    return Reading(question.prose, formulas, question.drawings)


def rename(formula: str, names: dict[str, str]) -> str:
    if not names:
        return formula
    parts = re.split(r"(\\[a-zA-Z]+)", formula)
    return "".join(
        part if part.startswith("\\") else "".join(names.get(char, char) for char in part)
        for part in parts
    )
