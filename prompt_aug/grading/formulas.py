r"""The formulas of a question, in forms that can be compared with an answer.

Labels, units, brackets, fonts and thousands separators do not count as tokens, so `x = 5` is
spelled like `5`. Plain integers, words and letters are not formulas.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from prompt_aug.grading.normalize import canonical, is_balanced
from prompt_aug.grading.notation import TEXT_PATTERN, whole
from prompt_aug.grading.structure import Node, build, split_top
from prompt_aug.grading.units import split_unit

DRAWING = re.compile(r"\[asy\].*?(\[/asy\]|\Z)", re.DOTALL)  # whose coordinates are no formulas
MAX_QUESTION = 20_000  # characters; the longest of 10081 real questions has 4309

_MATH = re.compile(
    r"\$\$(.+?)\$\$|\$(.+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]"
    r"|\\begin\{(?:align|equation|gather)\*?\}(.+?)\\end\{",
    re.DOTALL,
)
# A formula in running text: numbers, single letters and signs, at least one sign between two.
_BARE = re.compile(
    r"(?<![\w\\])(?:[\d.]+|[a-zA-Z](?![a-zA-Z])|[-+*/^(){}=<>!|\u2212√π×÷·±⁰¹²³⁴-⁹]|\s(?=\S))+"
)
_TOKEN = re.compile(r"\\[a-zA-Z]+|\d+(?:\.\d+)?|\.\d+|[^\s\\]")
_IDLE = frozenset(
    (*"{}()[],;:.$&*!?+", r"\cdot", r"\times", r"\text", r"\displaystyle", r"\quad", r"\degree")
)
_DIVIDED = {"/": r"\frac", r"\div": r"\frac"}
_PLAIN = re.compile(rf"[\s(]*-?(?:\d+|[A-Za-z]+|{TEXT_PATTERN})[\s).%]*")
RELATION = re.compile(r"\\(?:le|ge|ne|lt|gt|in|equiv)(?![a-zA-Z])|[<>=]")
ORDER = re.compile(r"(\\(?:le|ge|lt|gt)(?![a-zA-Z])|[<>])")
_MIRRORED = {">": "<", r"\gt": r"\lt", r"\ge": r"\le"}
LETTER_ALONE = re.compile(r"\s*[A-Za-z]\s*")
# Respelled before tokens are compared: 07, x - -1, \sqrt[2]{5}.
_RESPELLED = (
    (re.compile(r"(?<![\d.])0+(?=\d)"), ""),
    (re.compile(r"(?<![\d.])\.(?=\d)"), "0."),
    (re.compile(r"-\s*-"), "+"),
    (re.compile(r"\+\s*\+"), "+"),
    (re.compile(r"\\sqrt\s*\[\s*2\s*\]"), r"\\sqrt"),
)
_ROW = re.compile(r"^(?!.*\\begin).*(?:&|\\end)|\\begin(?!.*\\end)", re.DOTALL)  # of a matrix


def written_form(text: str) -> str:
    r"""Return canonical LaTeX that keeps repeating decimals: the fraction may be the answer."""
    return canonical(text, fractions=False)


@lru_cache(maxsize=512)
def pieces_of(question: str) -> tuple[str, ...]:
    """Return the formulas of the question, their parts between commas, and the sides of these."""
    spans = [next(group for group in match.groups() if group) for match in _MATH.finditer(question)]
    texts = [written_form(span) for span in (*spans, *_BARE.findall(_MATH.sub(" ; ", question)))]
    parts = (part for text in texts for part in (text, *split_top(text, r"[,;]|\\\\")))
    return tuple(dict.fromkeys(piece for part in parts for piece in (part, *RELATION.split(part))))


@lru_cache(maxsize=512)
def formulas_of(question: str) -> dict[tuple[str, ...], list[str]]:
    """Return the pieces of the question by their sorted tokens."""
    found: dict[tuple[str, ...], list[str]] = {}
    for text in pieces_of(question):
        found.setdefault(tokens_in(text), []).append(text)
    return found


@lru_cache(maxsize=512)
def leaves_of_question(question: str) -> tuple[str, ...]:
    """Return the pieces of the question and their items, without whole relations."""
    sides = [piece for piece in pieces_of(question) if not RELATION.search(piece)]
    leaves = dict.fromkeys(leaf for side in sides for leaf in (side, *leaves_of(side)))
    return tuple(
        leaf
        for leaf in leaves
        if leaf.strip() and is_formula(leaf) and is_balanced(leaf) and not _ROW.search(leaf)
    )


def tokens_in(text: str) -> tuple[str, ...]:
    """Return the sorted tokens that carry meaning, without label and unit."""
    label = re.match(r"\s*[A-Za-z](?:_\{?\w+\}?)?(?:\([a-z, ]{1,9}\))?\s*=(?!.*[=<>])", text)
    text = split_unit(text[label.end() :] if label else text)[0].rstrip("% ")
    text = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", text)
    for spelling, plain in _RESPELLED:
        text = spelling.sub(plain, text)
    sides = ORDER.split(text)
    if len(sides) == 3:  # a < b is b > a, and not a > b
        low, sign, high = sides[::-1] if sides[1] in _MIRRORED else sides
        return (*_sorted_tokens(low), _MIRRORED.get(sign, sign), *_sorted_tokens(high))
    return _sorted_tokens(text)


def _sorted_tokens(text: str) -> tuple[str, ...]:
    r"""Return the tokens, of numbers the digits: `\log_2 32` and `\frac12` may have no gap."""
    found: list[str] = []
    for token in _TOKEN.findall(text):
        if token[-1].isdigit():
            found += token.rstrip("0").rstrip(".") if "." in token else token
        elif token not in _IDLE:
            found.append(_DIVIDED.get(token, token))
    return tuple(sorted(found))


def is_formula(text: str) -> bool:
    """Return whether a text is more than an integer, a letter or a word."""
    return not _PLAIN.fullmatch(text)


def last_side(written: str) -> str:
    """Return the last side of a chain of equations, its result; 5 for 5 = x."""
    sides = split_top(written, "=")
    while len(sides) > 1 and LETTER_ALONE.fullmatch(sides[-1]):
        sides.pop()
    return sides[-1]


def leaves_of(text: str) -> list[str]:
    """Return the values of an answer, without labels and units."""

    def walk(node: Node) -> Iterator[str]:
        if not node.items:
            yield value_of(node.text)
        for item in node.items:
            yield from walk(item)

    return list(walk(build(whole(written_form(text)))))


def value_of(leaf: str) -> str:
    return split_unit(last_side(leaf))[0].rstrip("% ")
