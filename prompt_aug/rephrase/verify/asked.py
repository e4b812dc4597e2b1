"""What two questions ask for: the part that asks, its formula and quantity, the answer's form.

The part that asks starts at the asking word of the last sentence that asks ("how many", "find"),
sentences on the form of the answer left out ("Express your answer as a common fraction").
"""

import re
from collections.abc import Iterable, Iterator

from prompt_aug.rephrase.verify.reading import FORMULA, Reading, sentences
from prompt_aug.rephrase.verify.reasons import Reason, doubt
from prompt_aug.rephrase.verify.values import in_words, words
from prompt_aug.rephrase.verify.wording import (
    NOT,
    content,
    meaning_of,
    names_in,
    stem,
    tokens,
    vocabulary,
)

_ASKING = re.compile(
    r"(?i)\?|^\W*(?:find|determine|compute|calculate|evaluate|what|how|simplify|express|solve|count)"
    r"|\b(?:find|determine|compute|calculate|evaluate)\b"
)
_ABOUT_THE_ANSWER = re.compile(
    r"(?i)\b(?:your|the) (?:final )?answers?\b|^\W*\(|^\W*note\b"
    r"|\b(?:list|enter|separate|write|give|express) (?:them|it|these)\b"
)
_ASKING_WORD = re.compile(
    r"(?i)\b(?:how|what|find|determine|compute|calculate|evaluate|simplify|solve)\b"
)
TOTALS = frozenset(("sum", "product", "reciprocal"))  # no other word of a question says them
_CONDITION = re.compile(r"(?i)\b(?:if|given that|when|such that)\b")
_BEFORE_ITS_FORMULA = re.compile(
    r"(?i)^\W*(?:(?:find|determine|compute|calculate|evaluate|simplify|what|is|are|the|an?|of|all|"
    r"value|values|possible|real|positive|integers?|constants?|smallest|largest|greatest|least|"
    r"maximum|minimum|numbers?|exact|numerical|measure|length|then|does|equal)\s+)*" + FORMULA
)
_FORMS = re.compile(
    r"(?i)common fraction|mixed number|improper fraction|decimal|interval notation|in terms of"
    r"|scientific notation|nearest \w+|simplest radical|\bin base\b"
)


def compare_asked(question: Reading, candidate: Reading) -> Iterator[Reason]:
    """Reasons of the filters "asked" and "form"."""
    people = {stem(name) for name in names_in(question.prose) | names_in(candidate.prose)}
    forms = [{f.lower() for f in _FORMS.findall(r.prose)} for r in (question, candidate)]
    if forms[0] - forms[1] and forms[1] - forms[0]:
        detail = f"{_listed(forms[0] - forms[1])} became {_listed(forms[1] - forms[0])}"
        yield doubt("form", detail)
    own, other = asking_sentence(question), asking_sentence(candidate)
    if own is None or other is None:
        return
    one, two = set(content(tokens(own))), set(content(tokens(other)))
    if one and two and not one & two and len(one) > 1 and len(two) > 1:
        yield doubt("asked", "the asking sentences have nothing in common")
    else:
        # Of a sentence that also tells conditions, the part that asks.
        one, two = (set(content(tokens(asking_part(sentence)))) for sentence in (own, other))
        named = (one - two) & people, (two - one) & people
        if all(named):
            yield doubt("asked", f"asked for {_listed(named[1])}, not {_listed(named[0])}")
    yield from _compare_parts(asking_part(own), asking_part(other))
    if not re.search("[-+*/]", asked_formula(asking_part(own))):
        before = set(map(meaning_of, words(question.prose)))  # "plus" is a sum
        now = set(map(stem, words(asking_part(other).prose)))
        if (came := TOTALS & now - before) and not (came == {"product"} and "tim" in before):
            yield doubt("asked", f"asked for the {_listed(came)}")


def asking_sentence(reading: Reading) -> Reading | None:
    """The last sentence that asks for something; None where none does."""
    asking = [s for s in sentences(reading) if _ASKING.search(s.prose.strip())]
    proper = [s for s in asking if not _ABOUT_THE_ANSWER.search(s.prose)]
    found = proper or asking
    return found[-1] if found else None


def asking_part(sentence: Reading) -> Reading:
    """The sentence from its asking word on."""
    match = _ASKING_WORD.search(sentence.prose)
    if match is None:
        return sentence
    before = sentence.prose[: match.start()].count(FORMULA)
    return Reading(sentence.prose[match.start() :], sentence.formulas[before:], ())


def _compare_parts(own: Reading, other: Reading) -> Iterator[Reason]:
    formulas = asked_formula(own), asked_formula(other)
    if all(formulas) and formulas[0] != formulas[1]:
        yield doubt("asked", f"asked for {formulas[1]}, not {formulas[0]}")
    numbers = [{n.value for n in in_words(words(r.prose)) if not n.soft} for r in (own, other)]
    if all(numbers) and not numbers[0] & numbers[1]:
        yield doubt("asked", f"asked with {_listed(numbers[1])}, not with {_listed(numbers[0])}")
    stems = [set(map(stem, words(_CONDITION.split(r.prose)[0]))) for r in (own, other)]
    denied = any(NOT in tokens(r) or "unsold" in r.prose for r in (own, other))
    for meanings in () if denied else vocabulary().asked:
        said = [{name for name, listed in meanings.items() if listed & s} for s in stems]
        gone, came = said[0] - said[1], said[1] - said[0]
        if gone and came:
            yield doubt("asked", f"asked for {_listed(came)}, not for {_listed(gone)}")


def asked_formula(part: Reading) -> str:
    """The formula whose value is asked for, "" where it is a quantity in words."""
    if not _BEFORE_ITS_FORMULA.match(part.prose):
        return ""
    return part.formulas[0].rstrip(".,;:?") if part.formulas else ""


def _listed(found: Iterable[object]) -> str:
    return ", ".join(sorted(map(str, found)))
