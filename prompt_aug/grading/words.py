"""Equality of answers that are no values: choices, words, numbers in a base, the empty set."""

import re

from prompt_aug.grading.notation import TEXT
from prompt_aug.grading.quantities import is_number

_BASED = re.compile(r"(-?\d+(?:\.\d+)?)\s*_\s*\{?\s*(\d+)\s*\}?")

_DIGITS = re.compile(r"-?\d+(?:\.\d+)?")

_CHOICE_GOLD = re.compile(r"(?:\\text\{)?\s*\(?\s*([A-J])\s*\)?\s*\}?\)?")

_CHOICE_MARKED = re.compile(r".*(?:\\text|\().*")

_CHOICE_PRED = re.compile(
    r"(?:(?:option|choice|answer)\s*:?\s*)?"
    r"(?:\(\s*([A-Ja-j])\s*\)|([A-Ja-j])\s*[).:]|([A-Ja-j])$)(.*)",
    re.IGNORECASE | re.DOTALL,
)

_SECOND_CHOICE = re.compile(
    r"\([A-Ja-j]\)|(?<![A-Za-z])[A-J]\s*[).:](?:\W|$)|^\W*(?:(?:or|and)\b)?\W*[A-J](?![A-Za-z'])"
)

_CHOICE_DENIED = re.compile(
    r"\W*(?:is\s+)?(?:wrong|false|incorrect|not|no)\b|.*\b(?:also|through|plus)\W+[A-J]\b",
    re.IGNORECASE | re.DOTALL,
)

_WORDS = re.compile(r"[A-Za-z][A-Za-z' ,.\-]{2,}")

_CAPITALS = re.compile(r"[A-Z]{2,20}")
_EMPTY = frozenset(("none", "no solution", "no solutions", "no real solution", "no real solutions"))

EMPTY_SIGN = re.compile(r"\\emptyset|\\\{\s*\\\}")


def compare_choices(gold: str, pred: str) -> bool | None:
    """Whether the chosen letter is that of the gold; None where either is no choice.

    Whoever marks a second letter has not chosen: `(A)(B)`, `A. B.`, but `C. larger than A or D`.
    """
    choice = _CHOICE_GOLD.fullmatch(gold)
    chosen = _CHOICE_PRED.fullmatch(_flat(pred)) if choice else None
    if choice is None or chosen is None:
        return None
    letter = chosen[1] or chosen[2] or chosen[3]
    if _SECOND_CHOICE.search(chosen[4]) or _CHOICE_DENIED.match(chosen[4]):
        return False
    if not (_CHOICE_MARKED.fullmatch(gold) or letter.isupper()):
        return None
    return letter.upper() == choice[1]


_OPTION = re.compile(
    r"(?:\\text\{\s*\(?\s*([A-J])\s*(?:\)[.:]?|[.:])\s*\}\s*|\(?([A-J])\)\s+)(\S.*)", re.DOTALL
)


def option_of(gold: str) -> tuple[str, str] | None:
    r"""The letter and the value of a gold that gives both, `\text{(B)}\ 12`."""
    option = _OPTION.fullmatch(gold)
    if option is None or _SECOND_CHOICE.search(option[3]):
        return None
    return option[1] or option[2], option[3]


def text_of_choice(pred: str) -> str:
    """What stands behind the letter of a choice, "" where nothing does."""
    chosen = _CHOICE_PRED.fullmatch(_flat(pred))
    return chosen[4].strip(" .,:") if chosen else ""


def compare_words(gold: str, pred: str) -> bool | None:
    """Numbers in a base and plain text; None where neither applies."""
    based = [_BASED.fullmatch(text) for text in (gold, pred)]
    if any(based):
        digits = [m.group(1) if m else t.strip() for m, t in zip(based, (gold, pred), strict=True)]
        bases = {match.group(2) for match in based if match}
        return (
            (digits[0] == digits[1] and len(bases) == 1) if _DIGITS.fullmatch(digits[1]) else None
        )
    if _is_empty(gold) and _is_empty(pred):
        return True
    runs = ["".join(_flat(text).split()) for text in (gold, pred)]
    if all(map(_CAPITALS.fullmatch, runs)):
        return runs[0] == runs[1]  # IV is not VI, TH not HT, as a product of letters would have it
    words = [words_of(text) for text in (gold, pred)]
    if all(words):
        return words[0] == words[1]
    return False if any(words) and is_number(pred if words[0] else gold) else None


def _is_empty(text: str) -> bool:
    return bool(EMPTY_SIGN.fullmatch(text)) or _flat(text).strip(" .").lower() in _EMPTY


def _flat(text: str) -> str:
    return " ".join(TEXT.sub(r" \1 ", text).split())


def words_of(text: str) -> str:
    """The words of an answer that is nothing but words, in one spelling; "" otherwise."""
    if not _WORDS.fullmatch(flat := _flat(text)):
        return ""
    return " ".join(re.findall(r"[a-z]+", flat.lower()))
