"""What changed in the words: edits of a near copy, contrasts turned round, what is asked, clauses.

A rewording changes many words and no number; an edit changes few words and one that matters. So
the fewer words changed, the more each of them must be explained: as a synonym or as a word that
says nothing.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from rapidfuzz.distance import LCSseq

from prompt_aug.rephrase.verify.mathematics import renamed, renaming
from prompt_aug.rephrase.verify.reading import Reading, sentences
from prompt_aug.rephrase.verify.reasons import Reason, doubt, reject
from prompt_aug.rephrase.verify.wording import (
    NOT,
    content,
    meanings,
    names_in,
    stem,
    tokens,
    vocabulary,
)

# A near copy: so much in common in the same order, or less in so few runs, or one inside the other.
NEAR, LOOSELY_NEAR, FEW_RUNS, INSIDE = 0.85, 0.6, 3, 0.93
COVERED = 0.25  # a sentence with less of its content in the other text is lost or new
SENTENCE_WORDS = 3

BEFORE, AFTER = 1, 2  # tokens around a number that say what it counts
LONGEST_SWAPPED = 5
JOINING = frozenset("and or plus times".split())
SOFT = ("#1", "#2")  # "one", "both", "pair" come and go
KIN = frozenset("brother sister mother father cousin uncle aunt neighbor wif husband".split())
DIRECTIONS = frozenset("on off up down in out before after".split())


def compare_words(question: Reading, candidate: Reading) -> Iterator[Reason]:
    """The reasons of this module, in order."""
    names = renaming(question.formulas, candidate.formulas)
    same_names = renamed(question, names)
    own, other = tokens(same_names), tokens(candidate)
    lost = Counter(content(own)) - Counter(content(other))
    new = Counter(content(other)) - Counter(content(own))
    if names and not _reworded(own, other):
        yield reject("renamed", f"only names changed: {names}")
    near = is_near(own, other)
    if near:
        yield from _edits(lost, new, set(own) & set(other))
    yield from _contrasts(question, candidate, near, likeness(own, other) >= LOOSELY_NEAR)
    yield from _order(own, other, near)
    yield from _moved(own, other)
    yield from _people(question, candidate)
    yield from _clauses(same_names, candidate, near)


def likeness(own: Sequence[str], other: Sequence[str]) -> float:
    """2 L / (m + n), with L the longest common subsequence of two lists of m and n tokens."""
    return 2 * LCSseq.similarity(own, other) / max(len(own) + len(other), 1)


def is_near(own: Sequence[str], other: Sequence[str]) -> bool:
    """Whether `other` is `own` with few runs of tokens changed, put in or taken out."""
    common, shorter = LCSseq.similarity(own, other), max(min(len(own), len(other)), 1)
    alike = likeness(own, other)
    if alike >= NEAR or (common / shorter >= INSIDE and shorter > 5):
        return True
    runs = sum(code.tag != "equal" for code in LCSseq.opcodes(own, other))
    return alike >= LOOSELY_NEAR and runs <= FEW_RUNS


def _reworded(own: Sequence[str], other: Sequence[str]) -> bool:
    """Whether more than a tenth of the prose differs, formulas aside."""
    one, two = (Counter(t for t in listed if t.isalpha() and len(t) > 1) for listed in (own, other))
    changed = sum(((one - two) + (two - one)).values())
    return changed > 0.1 * (sum(one.values()) + sum(two.values()))


def _edits(lost: Counter[str], new: Counter[str], common: set[str]) -> Iterator[Reason]:
    """In a near copy, every changed token that says something."""
    # A letter named once more or less says nothing; one in another's place is an edit.
    letters = [{t for t in side if t.startswith("$")} for side in (lost, new)]
    if not all(letters):
        lost, new = (Counter({t: n for t, n in c.items() if t[0] != "$"}) for c in (lost, new))
    if not (lost or new):
        return
    detail = f"a near copy in which {_shown(lost)} became {_shown(new)}"
    changed = [*lost, *new]
    gone = [token for token in changed if token not in common]  # not only said once less
    if any(token.startswith("#") and token not in SOFT for token in gone) or NOT in changed:
        yield reject("edit", detail)
    else:
        yield doubt("edit", detail)


def _moved(own: Sequence[str], other: Sequence[str]) -> Iterator[Reason]:
    """In a text that is all but the same, a word or a number that stands elsewhere."""
    moved = sorted(_changed(own, other)) if likeness(own, other) >= NEAR else _swapped(own, other)
    if moved:
        detail = f"a near copy in which {', '.join(moved)} stands elsewhere"
        telling = any(not token.isalpha() or token in DIRECTIONS for token in moved)
        yield reject("order", detail) if telling else doubt("order", detail)


def _swapped(own: Sequence[str], other: Sequence[str]) -> list[str]:
    """Two short runs of tokens that changed places across a third one, all else being the same."""
    if len(own) != len(other):
        return []
    differing = [
        place for place, pair in enumerate(zip(own, other, strict=True)) if len({*pair}) > 1
    ]
    if not differing:
        return []
    start, end = differing[0], differing[-1] + 1
    one, two = tuple(own[start:end]), tuple(other[start:end])
    for left in range(1, min(LONGEST_SWAPPED, len(one) - 1)):
        for right in range(1, min(LONGEST_SWAPPED, len(one) - left)):
            middle = one[left : len(one) - right]
            if two == (*one[len(one) - right :], *middle, *one[:left]):
                joined = JOINING & set(middle) and "respectively" not in own
                return [] if joined else sorted({*one[:left], *one[-right:]})
    return []


def _changed(own: Sequence[str], other: Sequence[str]) -> set[str]:
    """What says something and stands outside the longest common subsequence in both."""
    known = vocabulary().neutral - DIRECTIONS
    gone, came = set[str](), set[str]()
    for code in LCSseq.opcodes(own, other):
        if code.tag != "equal":
            gone.update(own[code.src_start : code.src_end])
            came.update(other[code.dest_start : code.dest_end])
    return (gone & came) - known


def _shown(tokens_: Counter[str]) -> str:
    return ", ".join(sorted(tokens_)) or "nothing"


def _contrasts(
    question: Reading, candidate: Reading, near: bool, loosely: bool
) -> Iterator[Reason]:
    """A meaning exchanged for one that excludes it; where much is alike, one that came or went."""
    own, other = meanings(question), meanings(candidate)
    for group in own:
        gone, came = (
            own[group].keys() - other[group].keys(),
            other[group].keys() - own[group].keys(),
        )
        fewer, more = own[group] - other[group], other[group] - own[group]
        strict = group in vocabulary().strict
        detail = (
            f"{', '.join(sorted(fewer)) or 'nothing'} became {', '.join(sorted(more)) or 'nothing'}"
        )
        if gone and came and ((strict and own["negation"] == other["negation"]) or near):
            yield reject("contrast", detail)
        elif (
            (gone and came)
            or (fewer and more and (strict or loosely))
            or (strict and came and own[group])
            or ((gone | came) & vocabulary().telling[group] and (strict or loosely))
        ):
            yield doubt("contrast", detail)


def _order(own: Sequence[str], other: Sequence[str], near: bool) -> Iterator[Reason]:
    """Two numbers that have exchanged their places: each has the other's neighbouring words."""
    context_own, context_other = _contexts(own), _contexts(other)
    both = sorted(context_own.keys() & context_other.keys())
    for i, a in enumerate(both):
        for b in both[i + 1 :]:
            straight = _common(context_own[a], context_other[a]) + _common(
                context_own[b], context_other[b]
            )
            crossed = _common(context_own[a], context_other[b]) + _common(
                context_own[b], context_other[a]
            )
            if crossed > straight + 1:
                detail = f"{a[1:]} and {b[1:]} have exchanged their places"
                yield reject("order", detail) if near else doubt("order", detail)
                return


def _contexts(found: Sequence[str]) -> dict[str, Counter[str]]:
    """number or formula -> the content words around it, for those that occur once."""
    places: dict[str, list[int]] = {}
    for place, token in enumerate(found):
        if token.startswith("#") or re.search(r"\d", token):
            places.setdefault(token, []).append(place)
    known = vocabulary().neutral
    contexts = {}
    for token, at in places.items():
        if len(at) == 1:
            around = [*found[max(0, at[0] - BEFORE) : at[0]], *found[at[0] + 1 : at[0] + 1 + AFTER]]
            contexts[token] = Counter(
                content([t for t in around if t not in known and not t.startswith("#")])
            )
    return contexts


def _common(one: Counter[str], other: Counter[str]) -> int:
    return sum((one & other).values())


def _people(question: Reading, candidate: Reading) -> Iterator[Reason]:
    """A person who is in one text only: by name, or as a relative of another."""
    inside, before = (
        {stem(word.lower()) for word in re.findall(r"[A-Za-z]+", r.prose)}
        for r in (candidate, question)
    )
    gone = {name for name in names_in(question.prose) if not _among(name, inside)}
    came = {name for name in names_in(candidate.prose) if not _among(name, before)}
    if gone and came:
        yield doubt("people", f"{', '.join(sorted(gone))} became {', '.join(sorted(came))}")
    elif gone:
        yield doubt("people", f"{', '.join(sorted(gone))} went missing")
    elif kin := sorted(KIN & inside - before):
        yield doubt("people", f"{', '.join(kin)} came in")


def _among(name: str, stems: set[str]) -> bool:
    """Whether a word begins as `name` does: Sunday, Sundays, Ann's."""
    return any(name.startswith(word) for word in stems if len(word) > 2) or name in stems


def _clauses(question: Reading, candidate: Reading, near: bool) -> Iterator[Reason]:
    """A sentence of which nothing is in the other text; the asked-for quantity likewise."""
    for one, two, what in ((question, candidate, "lost"), (candidate, question, "new")):
        known = set(content(tokens(two)))
        for sentence in sentences(one):
            said = set(content(tokens(sentence)))
            if len(said) >= SENTENCE_WORDS and len(said & known) < COVERED * len(said):
                yield doubt("clause", f"{what}: {sentence.prose.strip()[:60]!r}")
                return
