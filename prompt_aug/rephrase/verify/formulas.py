r"""Formulas of two texts: which sides of relations went missing, came in, or were edited.

"$f(x) = 2x$ for $x > 0$" may be written as one formula or three, in TeX, Unicode or ASCII. So the
sides of relations are compared, in one compact spelling, with the whole other text.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from rapidfuzz import fuzz

from prompt_aug.rephrase.verify.reading import Reading, compact
from prompt_aug.rephrase.verify.reasons import Reason, doubt, reject

EDIT_LIKENESS = 60.0  # two pieces so alike are one piece edited
_RELATION = re.compile(r"(<=|>=|!=|<|>|=)")
_SPLIT = re.compile(r",(?![^(\[{]*[)\]}])|\\(?:text|quad)|\\\\|&|;|(?<=[^a-z])and(?=[^a-z])")
_OPERATION = re.compile(r"[-+*/^|!]|sqrt|sin|cos|tan|log|sum|int|prod|floor|ceil")
_WHOLE = re.compile(r"[A-Za-z]?[(\[][^()\[\]]*,[^()\[\]]*[)\]]|[A-Za-z]\(-?\d+(?:\.\d+)?\)")
_WORD = re.compile(r"[A-Za-z]{2,}")
_FLIP = {">": "<", ">=": "<="}


def compare_formulas(question: Reading, candidate: Reading) -> Iterator[Reason]:
    """Yield pieces and relations of formulas that stand in one text only."""
    names = renaming(question.formulas, candidate.formulas)
    own = [rename(formula, names) for formula in question.formulas]
    flat_own, flat_other = _flat(own, question), _flat(candidate.formulas, candidate)
    lost = [p for p in pieces(own) if p not in flat_other]
    new = [p for p in pieces(candidate.formulas) if p not in flat_own]
    edits = [(a, b) for a in lost for b in new if fuzz.ratio(a, b) >= EDIT_LIKENESS]
    if edits:
        yield reject("formulas", f"{edits[0][0]} became {edits[0][1]}")
        return
    if lost and new:
        yield doubt("formulas", f"{lost[0]} went missing, {new[0]} came in")
    elif any(len(p) > 3 for p in lost):
        yield doubt("formulas", f"{max(lost, key=len)} went missing")
    elif any(len(p) > 3 for p in new):
        yield doubt("formulas", f"{max(new, key=len)} came in")
    before, after = relations(own), relations(candidate.formulas)
    for sides in sorted(before.keys() & after.keys()):
        if before[sides] != after[sides]:
            yield reject("formulas", f"{sides} related by {before[sides]}, then {after[sides]}")
            return


def pieces(formulas: Sequence[str]) -> Counter[str]:
    """Count the sides of relations that say more than a letter or a number."""
    found: Counter[str] = Counter()
    for formula in formulas:
        for part in _SPLIT.split(formula):
            for side in map(_tidy, _RELATION.split(part)[::2]):
                if _WHOLE.fullmatch(side) or (_OPERATION.search(side) and len(side) > 2):
                    found[side] += 1
    return found


def relations(formulas: Sequence[str]) -> dict[tuple[str, str], set[str]]:
    """Map two sides, in alphabetic order, to the signs between them."""
    found: dict[tuple[str, str], set[str]] = {}
    for formula in formulas:
        for part in _SPLIT.split(formula):
            sides = _RELATION.split(part)
            for left, sign, right in zip(sides[::2], sides[1::2], sides[2::2], strict=False):
                left, right = _tidy(left), _tidy(right)
                if sign in _FLIP:
                    left, sign, right = right, _FLIP[sign], left
                if left and right:
                    first, last = sorted((left, right))
                    turned = first != left and sign in ("<", "<=")
                    found.setdefault((first, last), set()).add(sign + "'" * turned)
    return found


def _tidy(side: str) -> str:
    return re.sub(r"[.,;:?\s]+$|^[.,;:\s]+", "", side)


def _flat(formulas: Sequence[str], reading: Reading) -> str:
    return "\n".join([*formulas, compact("".join(formulas)), compact(reading.whole)])


def letters(formulas: Sequence[str]) -> list[str]:
    """Return the one-letter names of formulas, in order of first appearance."""
    joined = " ".join(_WORD.sub(" ", formula) for formula in formulas)
    return list(dict.fromkeys(re.findall(r"[A-Za-z]", joined)))


def renaming(question: Sequence[str], candidate: Sequence[str]) -> dict[str, str]:
    """Return the one-to-one renaming of letters that gives the candidate more pieces, or {}."""
    own, other = letters(question), letters(candidate)
    gone = [name for name in own if name not in other]
    came = [name for name in other if name not in own]
    if not gone or len(gone) != len(came):
        return {}
    names = dict(zip(gone, came, strict=True))
    before = pieces(question).keys() & pieces(candidate).keys()
    after = pieces([rename(f, names) for f in question]).keys() & pieces(candidate).keys()
    return names if len(after) > len(before) else {}


def rename(formula: str, names: dict[str, str]) -> str:
    """Replace one-letter names, but not letters of function names."""
    known = r"(sqrt|sin|cos|tan|log|ln|floor|ceil|pi|text)"
    parts = re.split(known, formula) if names else [formula]
    return "".join(
        part if re.fullmatch(known, part) else "".join(names.get(char, char) for char in part)
        for part in parts
    )
