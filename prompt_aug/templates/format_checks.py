"""Format checks: yes-or-no checks of a response, summed with dyadic weights.

    format reward = sum of the weights of the rules that hold,   weights sum to 1

Every weight is a multiple of 1/1024, so that a reward is exact in float32 and a group of equal
rewards has advantage exactly 0. (With thirds, eight rewards of 4/3 in float32 give +-0.106.)
A response is the generated text after the prefill. Every check is linear in its length.
"""

import re
import unicodedata
from collections.abc import Sequence
from itertools import chain, pairwise
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator

from prompt_aug.grading.extract import closed_boxes, is_placeholder
from prompt_aug.typed import Part, Record, Several, as_list

UNIT = 1024  # rewards are multiples of 1 / UNIT
# Layout commands, whose names are not content of a box.
_LAYOUT = re.compile(
    r"\\(?:q?quad|[hv]space|h?phantom|smash|left|right|displaystyle|hline"
    r"|f?box(?:ed)?|mbox|(?:text|math)(?:rm|bf|it|tt|sf|normal)?)(?![A-Za-z])"
)
Mark = Annotated[str, Field(pattern=r"\S")]  # not empty
TagName = Annotated[str, Field(pattern=r"^[^<>/\n]*[^<>/\s][^<>/\n]*$")]  # without <>
Marks = Annotated[Several[Mark], BeforeValidator(as_list)]
# Checks that require content; `absent` alone would pay an empty response.
REQUIRING = ("once", "order", "nested", "filled", "last", "boxed", "boxed_in", "boxed_after")


class Rule(Record):
    """Checks that must ALL hold for `weight` to be paid.

    once          each of these strings occurs exactly once in the response
    absent        none of these strings occurs in the response (a prefilled tag, say)
    order         each occurs exactly once, and they begin in this order (adjacent markers may
                  share a newline)
    nested        the tags of these names open and close like brackets, none inside itself, with at
                  least one pair; tags that the prefill opened are open
    filled        for each of these pairs, the text between its two strings has content: a letter, a
                  digit or a mathematical sign; the prefill counts
    last          only white space follows the last occurrence of this string
    boxed         there is a complete \\boxed{...} with content, not ``{}`` or ``{answer}``
    boxed_in      such a box is inside the tag pair of this name, before its first closing tag
    boxed_after   such a box begins after the last occurrence of this string
    """

    weight: Part
    once: Marks = ()
    absent: Marks = ()
    order: Marks = ()
    nested: Annotated[Several[TagName], BeforeValidator(as_list)] = ()
    filled: Several[Annotated[Marks, Field(min_length=2, max_length=2)]] = ()
    last: Mark | None = None
    boxed: bool = False
    boxed_in: TagName | None = None
    boxed_after: Mark | None = None

    @model_validator(mode="after")
    def _is_dyadic_and_requires_content(self) -> Self:
        if not (self.weight * UNIT).is_integer():
            raise ValueError(f"weight={self.weight}: not a multiple of 1/{UNIT}. Use 0.75 or 0.5.")
        if not any(getattr(self, key) for key in REQUIRING):
            raise ValueError(f"an empty response would be paid. Add one of {', '.join(REQUIRING)}.")
        return self

    def holds(self, response: str, prefill: str = "") -> bool:
        """Return whether all checks hold for `response`, generated after `prefill`."""
        text = prefill + response
        places = [response.find(marker) for marker in self.order]
        return (
            all(-1 < response.find(x) == response.rfind(x) for x in (*self.once, *self.order))
            and not any(marker in response for marker in self.absent)
            and all(first < second for first, second in pairwise(places))
            and (not self.nested or _well_nested(text, self.nested))
            and all(has_content(_between(text, *pair)) for pair in self.filled)
            and (self.last is None or _ends_with(response, self.last))
            and (not self.boxed or _boxed(response))
            and (self.boxed_in is None or _boxed(_in_tag(text, self.boxed_in)))
            and (self.boxed_after is None or _boxed(_after(response, self.boxed_after)))
        )

    def requires(self, tag: str) -> bool:
        """Return True if a check needs <tag> in the response or the prefill."""
        marks = (*self.once, *self.order, *chain(*self.filled), self.last, self.boxed_after)
        named = tag in (*self.nested, self.boxed_in)
        return named or any(f"<{tag}>" in mark for mark in marks if mark)


def published_reward(markers: Sequence[str], response: str) -> float:
    """Return the share of `markers` that occur exactly once, as the code of arXiv 2602.03190.

    It checks neither order nor nesting nor a repeated prefill. 1 without markers.
    Departure: rounded to a multiple of 1/1024 (1/3 becomes 341/1024), so that these rewards are
    dyadic too; the error is below 0.0005.
    """
    if not markers:
        return 1.0
    count = sum(response.count(marker) == 1 for marker in markers)
    return round(count * UNIT / len(markers)) / UNIT


def has_content(text: str) -> bool:
    """Return whether `text` has a letter, a digit, a sign or set braces, and is no placeholder."""
    return r"\{" in text or any(
        character.isalnum() or (unicodedata.category(character) == "Sm" and character not in "|~")
        for character in _LAYOUT.sub(" ", "" if is_placeholder(text) else text)
    )


def _boxed(text: str) -> bool:
    return any(has_content(content) for _, _, content in closed_boxes(text))


def _well_nested(text: str, names: Sequence[str]) -> bool:
    pattern = re.compile("<(/?)(" + "|".join(re.escape(name) for name in names) + ")>")
    stack: list[str] = []
    for match in pattern.finditer(text):
        slash, name = match.groups()
        if not slash:
            if name in stack:
                return False
            stack.append(name)
        elif not stack or stack.pop() != name:
            return False
    return not stack and pattern.search(text) is not None


def _between(text: str, opening: str, closing: str) -> str:
    """Return the text from the first `opening` to the first `closing` after it; "" without."""
    inside, closed, _ = text.partition(opening)[2].partition(closing)
    return inside if closed else ""


def _in_tag(text: str, tag: str) -> str:
    """Return the text from <tag> to the first </tag>; "" if that one comes first."""
    before, closed, _ = text.partition(f"</{tag}>")
    return before.partition(f"<{tag}>")[2] if closed else ""


def _ends_with(text: str, marker: str) -> bool:
    return text.rstrip().endswith(marker.rstrip()) and marker in text


def _after(text: str, marker: str) -> str:
    return text.rpartition(marker)[2] if marker in text else ""
