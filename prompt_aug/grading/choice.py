r"""Answers to multiple-choice questions: the leading letter decides (GRADING.md has the rules).

`B`, `\text{B. } 10^{-4}` and `(B) $10^{-4}$ eV` choose B; `B or C` chooses none.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence

LETTERS = "ABCDEFGHIJ"
_STYLE = r"\\(?:text|math)[a-z]*|\\(?:mbox|bf|rm|displaystyle)(?![a-zA-Z])"
_SPACE = r"\\[()\[\],;:! ]|\\q?quad(?![a-zA-Z])"
_AFTER = rf"(?:[\s$)}}\]*]|{_SPACE})*"
_LEADING = re.compile(
    rf"(?:[\s$({{\[*]|{_STYLE}|{_SPACE})*"
    rf"(?:(?i:option|choice|answer)(?![a-zA-Z])(?:[\s:({{]|{_SPACE})*)?"
    rf"([A-J])(?![a-zA-Z]){_AFTER}(?:[.:,](?!\d){_AFTER})?(?:-(?=\s))?"
)
_IDLE = re.compile(rf"{_STYLE}|{_SPACE}|\\(?:left|right)(?![a-zA-Z])|[$*]")
_BRACES = re.compile(r"[{}\\]")
# A letter that stands for itself: it begins the text, or follows one of these words or a blank and
# a bracket. An article, a symbol of a formula and `I and II` of a list of statements are none.
_NAMED = re.compile(
    r"(?:^|\b(?:both|either|neither|nor|not|only|(?:option|choice|answer)s?(?: is)?)\b|\s(?=\())"
    r"[\s:(\[]*(?-i:([A-J]))(?=\s*(?:$|[),;\]]|[.:](?!\w)|(?:and|or|nor|is|only)\b))"
    r"(?!(?<=I)\s*(?:,|and\b|or\b|only\b))",
    re.IGNORECASE,
)


def chosen(answer: str, options: Sequence[str], equal: Callable[[str, str], bool]) -> str | None:
    """Return the letter that `answer` chooses; None if it chooses none of `options`, or several.

    `equal` compares an option's text with the text after the letter if their spelling differs.
    """
    leading = _LEADING.match(answer)
    if leading is None or (place := LETTERS.index(leading[1])) >= len(options):
        return None
    rest, option = answer[leading.end() :], options[place]
    words, others = _words(rest), [rival for rival in options if rival != option]
    if words and words != _words(option) and words in map(_words, others):
        return None
    folded, expected = ([w.casefold() for w in some] for some in (words, _words(option)))
    if folded == expected[: len(folded)] or "".join(folded) == "".join(expected):
        return leading[1]
    unopened = max(0, rest.count("}") - rest.count("{"))  # closes a \text{ before the letter
    rest = rest.rstrip(" $.)")
    rest = rest[: len(rest) - unopened]
    same = equal(option, rest) and not any(equal(rival, rest) for rival in others)
    return leading[1] if same else None


def names_letter(answer: str, options: Sequence[str]) -> bool:
    """Return whether `answer` names an option's letter, as `A or B` and `(A) 5` do, not `CO_2`."""
    plain = re.sub("[{}]", "", _IDLE.sub(" ", answer)).strip()
    return bool(set(_NAMED.findall(plain)) & set(LETTERS[: len(options)]))


def _words(text: str) -> list[str]:
    """Return the words to compare, without dollars, braces, style and brackets around them."""
    plain = _IDLE.sub(" ", unicodedata.normalize("NFKC", text)).split()
    spelled = (_BRACES.sub("", word).strip("()[]").rstrip(".,;:") for word in plain)
    return [word for word in spelled if word]
