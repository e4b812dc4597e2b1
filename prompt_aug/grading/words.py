"""Equality of answers that are not values: choices, words, numbers in a base, the empty set."""

import re

from prompt_aug.grading.notation import TEXT, flat
from prompt_aug.grading.quantities import is_number

_BASED = re.compile(r"(-?\d+(?:\.\d+)?)\s*_\s*\{?\s*(\d+)\s*\}?")
_DIGITS = re.compile(r"-?\d+(?:\.\d+)?")
CHOICE_GOLD = re.compile(r"(?:\\text\{)?\s*\(?\s*([A-J])\s*\)?\s*\}?\)?")
_CHOICE_MARKED = re.compile(r".*(?:\\text|\().*")
_CHOICE_PRED = re.compile(
    r"(?:(?:option|choice|answer)\s*:?\s*)?"
    r"(\(\s*)?([A-Ja-j])(?(1)\s*\)|(?:\s*[).:]|$))(.*)",
    re.IGNORECASE | re.DOTALL,
)
_OPTION = re.compile(
    r"(?:\\text\{\s*\(?\s*([A-J])\s*(?:\)[.:]?|[.:])\s*\}\s*|\(?([A-J])\)\s+)(\S.*)", re.DOTALL
)
_SECOND_CHOICE = re.compile(
    r"\([A-Ja-j]\)|(?<![A-Za-z])[A-J]\s*[).:](?:\W|$)|^\W*(?:(?:or|and)\b)?\W*[A-J](?![A-Za-z'])"
)
# A denial or a judgment of the letter, not the option's own words. "is correct" agrees.
_CHOICE_DENIED = re.compile(
    r"\W*no\b|\W*(?:is|was|are|has|had|can|could|would|will|does|did|do|must|should|may|might"
    r"|seems?|looks?|fails?)(?![a-z'])(?!\s+(?:the\s+)?(?:correct|right|true|answer|best)\b)"
    r"|.*\b(?:not|never|cannot|[a-z]+n't|wrong|false|incorrect|(?:ruled|crossed)\s+out|eliminated"
    r"|excluded|rejected|impossible|maybe|perhaps|possibly|actually|unless|instead)\b",
    re.IGNORECASE | re.DOTALL,
)
# Words of an option's own text: `larger than A or D`, `cannot be determined`.
_OWN_TEXT = re.compile(
    r"\bthan\s+[A-J]\b(?:\s*(?:,|or|and)\s*[A-J]\b)*|\b[Cc]an(?:\s?not|'t) be determined\b"
)
_OTHER_LETTER = re.compile(
    r"(?<![A-Za-z'\\])([A-HJ])(?![A-Za-z'])|\b(?:[Oo]ption|[Cc]hoice|[Aa]nswer)\s+([a-j])\b"
)
_WORDS = re.compile(r"[A-Za-z][A-Za-z' ,.\-]{2,}")
# Words, not products such as mgR: no capital after a small letter, and a vowel unless \text marks
# them.
_MARKED_WORD = re.compile(r"[A-Z]{2,}|[A-Za-z][a-z]+")
_PLAIN_WORD = re.compile(r"(?=.*[aeiouyAEIOUY])(?:[A-Z]{4,}|[A-Za-z][a-z]{3,})|[Yy]es|[Nn]o|[Oo]dd")
_SHORT = re.compile(r"[A-Za-z]|[A-Z]{2,}|[A-Za-z][a-z]+")
_MARKED_HYPHEN = re.compile(
    r"(?<=[A-Za-z]{4})-(?=[A-Za-z])|(?<=[A-Za-z])-(?=[A-Za-z]{4})|(?<=[A-Za-z]{3})-(?=[A-Za-z]{3})"
)
_PLAIN_HYPHEN = re.compile(r"(?<=[A-Za-z]{4})-(?=[A-Za-z]{2})|(?<=[A-Za-z]{2})-(?=[A-Za-z]{4})")
_LETTER_LIST = re.compile(r"[A-Za-z](?:\s*,\s*(?:and\s+|or\s+)?[A-Za-z])+")
_CAPITALS = re.compile(r"[A-Z]{2,20}")
_EMPTY = re.compile(r"none|(?:there (?:is|are) )?no (?:real )?solutions?")
_MISSING = re.compile(r"(?:(?:the )?limit )?does ?n(?:o|')t exist|dne")
_CLOCK = re.compile(r"(\d{1,2})(?::(\d\d))?(?:\s*([ap])\.?\s?m\.?)?", re.IGNORECASE)
_TEXT_WORD = re.compile(r"\\text\{[^{}]*[A-Za-z]{2}[^{}]*\}")
EMPTY_SIGN = re.compile(r"\\emptyset|\\\{\s*\\\}")
LETTER_LABEL = re.compile(r"([A-Za-z]|\\[a-z]+)('*)(?:_(\{[^{}]*\}|\w))?")
_OTHER_LABEL = re.compile(
    r"(\\text\{[^{}]*\}|\\?[A-Za-z]+)('*)(?:_(\{[^{}]*\}|\w))?(?:\(([^()]*)\))?"
)
# (name, argument) of f(2), P(A), an angle or a side.
_POINTED = re.compile(r"([A-Za-z]+(?=\()|\\angle|)((?:\(-?[\dA-Z.]+\)|[A-Z]{1,3}))")
_VARIABLES = re.compile(r"[A-Za-z](?:,[A-Za-z])*")
_ANY_NAME = re.compile(r"(?:the|final|our|my)*(?:answer|result|solution|value|total|ans)s?(?:is)?")


def compare_choices(gold: str, pred: str) -> bool | None:
    """Return whether the chosen letter is that of the gold; None if either is not a choice."""
    choice = CHOICE_GOLD.fullmatch(gold)
    chosen = _CHOICE_PRED.fullmatch(flat(pred)) if choice else None
    if choice is None or chosen is None:
        return None
    letter = chosen[2]
    if _SECOND_CHOICE.search(chosen[3]) or _denied(chosen[3], letter.upper()):
        return False
    if not (_CHOICE_MARKED.fullmatch(gold) or letter.isupper()):
        return None
    return letter.upper() == choice[1]


def _denied(text: str, letter: str) -> bool:
    """Return whether the text after a letter denies it or names another one."""
    text = _OWN_TEXT.sub(" ", text)
    others = _OTHER_LETTER.findall(text)
    named = {(capital or small).upper() for capital, small in others}
    return bool(_CHOICE_DENIED.match(text) or named - {letter})


def option_of(gold: str) -> tuple[str, str] | None:
    r"""Return the letter and the value of a gold with both, as `\text{(B)}\ 12`, else None."""
    option = _OPTION.fullmatch(gold)
    if option is None or _SECOND_CHOICE.search(option[3]):
        return None
    return option[1] or option[2], option[3]


def text_of_choice(pred: str) -> str:
    """Return the text after the letter of a choice, "" without any."""
    chosen = _CHOICE_PRED.fullmatch(flat(pred))
    return chosen[3].strip(" .,:") if chosen else ""


def compare_words(gold: str, pred: str) -> bool | None:
    """Compare numbers in a base, or words; None if neither applies."""
    based = [_BASED.fullmatch(text) for text in (gold, pred)]
    if any(based):
        digits = [m.group(1) if m else t.strip() for m, t in zip(based, (gold, pred), strict=True)]
        bases = {match.group(2) for match in based if match}
        if not _DIGITS.fullmatch(digits[1]):
            return None
        return digits[0] == digits[1] and len(bases) == 1
    said = [flat(text).strip(" .").lower() for text in (gold, pred)]
    if all(map(_MISSING.fullmatch, said)):
        return True
    empty = [EMPTY_SIGN.fullmatch(gold), EMPTY_SIGN.fullmatch(pred)]
    if all(sign or _EMPTY.fullmatch(words) for sign, words in zip(empty, said, strict=True)):
        return True
    runs = ["".join(flat(text).split()) for text in (gold, pred)]
    if all(map(_CAPITALS.fullmatch, runs)):
        return runs[0] == runs[1]  # as products of letters, IV would equal VI, and TH HT
    marked = any(map(_TEXT_WORD.search, (gold, pred)))
    words = [words_of(text, marked=marked) for text in (gold, pred)]
    if all(words):
        return words[0] == words[1]
    return False if any(words) and is_number(pred if words[0] else gold) else None


def compare_times(gold: str, pred: str) -> bool | None:
    """Compare two times of a clock, one at least with am or pm; None for other texts.

    The other needs minutes, if it has neither.
    """
    times = [_CLOCK.fullmatch(flat(text)) for text in (gold, pred)]
    found = [(int(time[1]), time[2], (time[3] or "").lower()) for time in times if time]
    halves = {half for _, _, half in found}
    if len(found) < 2 or halves == {""} or ("" in halves and not (found[0][1] and found[1][1])):
        return None
    (hour, minutes, _), (other, more, _) = found
    return len(halves - {""}) == 1 and (hour, minutes or "00") == (other, more or "00")


def formula_of(text: str) -> str:
    r"""Remove \text from letters that are not words: `\text{mgR}`."""
    plain = flat(text)
    return plain if _WORDS.fullmatch(plain) and not words_of(text) else text


def words_of(text: str, *, marked: bool = False) -> str:
    r"""Return the words of an answer of words only, in one spelling; "" for any other.

    Single letters and short runs of them are a formula (`p - q`, `ab-c`, `mgR`), in which signs and
    case count. `marked` is True if \text marks this answer, or the one it is compared with.
    """
    plain = flat(text)
    if not _WORDS.fullmatch(plain):
        return ""
    if _LETTER_LIST.fullmatch(plain):
        return " ".join(re.findall(r"[A-Za-z]", re.sub(r"\b(?:and|or)\b", "", plain)))
    marked = marked or bool(_TEXT_WORD.search(text))
    runs = re.findall(r"[A-Za-z]+", plain.replace("'", ""))
    hyphen = _MARKED_HYPHEN if marked else _PLAIN_HYPHEN
    if "-" in hyphen.sub(" ", plain) or not all(map(_SHORT.fullmatch, runs)):
        return ""
    if not any(map((_MARKED_WORD if marked else _PLAIN_WORD).fullmatch, runs)):
        return ""
    if len(runs) > 1 and runs[0].lower() in ("a", "an", "the"):
        runs = runs[1:]
    return " ".join(run if len(run) == 1 and run not in "Aa" else run.lower() for run in runs)


def labels_contradict(one: str, other: str) -> bool:
    """Return whether labels differ: x and y, f(1) and f(2), f' and f, AB and AC, min and max.

    Neither f(x) nor "the answer" contradicts y.
    """
    if one == other or not one or not other:
        return False
    if LETTER_LABEL.fullmatch(one) and LETTER_LABEL.fullmatch(other):
        return re.sub("[{}]", "", one) != re.sub("[{}]", "", other)
    named = [_POINTED.fullmatch(label) for label in (one, other)]
    if named[0] and named[1] and named[0][1] == named[1][1]:
        return sorted(named[0][2]) != sorted(named[1][2])
    parts = [_OTHER_LABEL.fullmatch(label) for label in (one, other)]
    if parts[0] is None or parts[1] is None:
        return False
    said = [_label_words(part[1]) for part in parts if part]
    if all(said):
        related = said[0] in said[1] or said[1] in said[0]
        return not related and not any(map(_ANY_NAME.fullmatch, said))
    if any(said):
        return False
    name, primes, index, of = parts[0].groups()
    other_name, other_primes, other_index, other_of = parts[1].groups()
    if primes != other_primes or name != other_name:
        return primes != other_primes  # f' against f
    if (index or "").strip("{}") != (other_index or "").strip("{}"):
        return True
    variables = not (of and other_of) or all(map(_VARIABLES.fullmatch, (of, other_of)))
    return of != other_of and not variables


def _label_words(name: str) -> str:
    r"""Return the words of a label such as `\text{max}` or `area`; "" for `f` or `AB`."""
    plain = TEXT.fullmatch(name)
    if plain is None and not re.fullmatch(r"[a-z]{3,}", name):
        return ""
    words = "".join(re.findall(r"[a-z]+", (plain[1] if plain else name).lower()))
    return words if len(words) > 1 else ""
