r"""Checks of formulas: sides of relations that went missing, came in, or were edited.

A text may have one formula where the other has three. So each side of a relation, in a compact
spelling, is looked up in the whole other text.
"""

import re
from collections.abc import Iterator, Sequence

from rapidfuzz import fuzz

from prompt_aug.rephrase.verify.reasons import Reason, doubt, reject
from prompt_aug.rephrase.verify.text import Reading, compact

EDIT_LIKENESS = 60.0  # pieces at least this alike are one edited piece
LONG = 3  # longer pieces must not come or go
_RELATION = re.compile(r"(<=|>=|!=|<|>|=)")
_SPLIT = re.compile(r",(?![^(\[{]*[)\]}])|\\(?:text|quad)|\\\\|&|;|(?<=[^a-z])and(?=[^a-z])")
_OPERATION = re.compile(r"[-+*/^|!]|sqrt|sin|cos|tan|log|sum|int|prod|floor|ceil")
_WHOLE = re.compile(r"[A-Za-z]?[(\[][^()\[\]]*,[^()\[\]]*[)\]]|[A-Za-z]\(-?\d+(?:\.\d+)?\)")
_SPELLING = re.compile(r"[A-Za-z()\[\]{}.,\s]+")


def compare_formulas(question: Reading, candidate: Reading) -> Iterator[Reason]:
    """Yield reasons: pieces and relations of formulas that are in one text only."""
    own, other = question.formulas, candidate.formulas
    flat_own, flat_other = (
        "\n".join([*found, compact("".join(found)), compact(reading.whole)])
        for found, reading in ((own, question), (other, candidate))
    )
    lost = [piece for piece in pieces(own) if piece not in flat_other]
    new = [piece for piece in pieces(other) if piece not in flat_own]
    for gone, came in ((a, b) for a in lost for b in new if fuzz.ratio(a, b) >= EDIT_LIKENESS):
        # Another bracket, command or name of a variable may be no fault; another digit or sign is.
        same = _SPELLING.sub("", gone) == _SPELLING.sub("", came)
        yield (doubt if same else reject)("formulas", f"{gone} became {came}")
        return
    if lost and new:
        yield doubt("formulas", f"{lost[0]} went missing, {new[0]} came in")
    elif only := max((piece for piece in lost + new if len(piece) > LONG), key=len, default=""):
        yield doubt("formulas", f"{only} {'went missing' if lost else 'came in'}")
    before, after = relations(own), relations(other)
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
        if _WHOLE.fullmatch(side) or (_OPERATION.search(side) and len(side) > 2)
    }


def relations(formulas: Sequence[str]) -> dict[tuple[str, str], set[str]]:
    """Map two sides, in alphabetic order, to the signs between them."""
    found: dict[tuple[str, str], set[str]] = {}
    for sides in _sides(formulas):
        for left, sign, right in zip(sides[::2], sides[1::2], sides[2::2], strict=False):
            if left > right:
                left, sign, right = right, sign.translate(str.maketrans("<>", "><")), left
            if left:
                found.setdefault((left, right), set()).add(sign)
    return found
