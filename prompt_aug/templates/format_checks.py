"""Format checks: small yes-or-no checks of a response, summed with dyadic weights.

    format reward = sum of the weights of the rules that hold,   weights sum to 1

Every weight is a multiple of 1/1024, so a reward is exact in float32 and a group of equal rewards
has advantage exactly 0. (Thirds are not: eight rewards of 4/3 in float32 give +-0.106.)
A response is the generated text after the prefill. Every check is linear in its length.
"""

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

from prompt_aug.grading.extract import closed_boxes

UNIT = 1024  # rewards are multiples of 1 / UNIT
# Commands that print nothing or only set what they hold; their names are no content of a box.
_LAYOUT = re.compile(
    r"\\(?:q?quad|[hv]space|h?phantom|smash|left|right|displaystyle|hline"
    r"|f?box(?:ed)?|mbox|(?:text|math)(?:rm|bf|it|tt|sf|normal)?)(?![A-Za-z])"
)


# The checks that want something to be there; `absent` alone would pay an empty response.
WANTING = ("once", "order", "nested", "filled", "last", "boxed", "boxed_in", "boxed_after")


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """Checks that must ALL hold for `weight` to be paid.

    once          each of these strings occurs exactly once in the response
    absent        none of these strings occurs in the response (a prefilled tag, say)
    order         each occurs exactly once, and they begin in this order (neighbouring markers may
                  share a newline)
    nested        the tags of these names open and close like brackets, none inside itself; tags
                  that the prefill opened are open; at least one pair must be there
    filled        between the two strings of each of these pairs something is said: a letter, a
                  digit or a mathematical sign; the prefill counts
    last          nothing but white space follows the last occurrence of this string
    boxed         a complete \\boxed{...} that says something occurs, not ``{}`` or ``{.}``
    boxed_in      such a box lies inside the tag pair of this name, before its first closing tag
    boxed_after   such a box begins after the last occurrence of this string
    """

    weight: float
    once: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    order: tuple[str, ...] = ()
    nested: tuple[str, ...] = ()
    filled: tuple[tuple[str, ...], ...] = ()
    last: str | None = None
    boxed: bool = False
    boxed_in: str | None = None
    boxed_after: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.weight <= 1 or not float(self.weight * UNIT).is_integer():
            raise ValueError(
                f"format weight {self.weight} is not a multiple of 1/{UNIT} in (0, 1]: rewards are "
                "dyadic, use 0.5, 0.25, 0.125, ..."
            )
        if not any(getattr(self, key) for key in WANTING):
            raise ValueError(
                f"a format rule needs one of {', '.join(WANTING)}: without it an empty response "
                "would be paid"
            )
        if any(len(pair) != 2 for pair in self.filled):
            raise ValueError(f"filled must be pairs (opening, closing): {self.filled}")
        single = (m for m in (self.last, self.boxed_in, self.boxed_after) if m is not None)
        pairs = (marker for pair in self.filled for marker in pair)
        markers = (*self.once, *self.absent, *self.order, *self.nested, *pairs, *single)
        if not all(isinstance(marker, str) and marker.strip() for marker in markers):
            raise ValueError("a format rule has a marker that is empty or no text")
        if not isinstance(self.boxed, bool):
            raise ValueError(f"boxed must be true or false, got {self.boxed!r}")

    def holds(self, response: str, prefill: str = "") -> bool:
        """Whether all checks of the rule hold for `response`, generated after `prefill`."""
        return (
            all(response.count(marker) == 1 for marker in self.once)
            and not any(marker in response for marker in self.absent)
            and (not self.order or in_order(response, self.order))
            and (not self.nested or well_nested(prefill + response, self.nested))
            and all(filled_between(prefill + response, *pair) for pair in self.filled)
            and (self.last is None or ends_with(response, self.last))
            and (not self.boxed or boxed(response))
            and (self.boxed_in is None or boxed_in(prefill + response, self.boxed_in))
            and (self.boxed_after is None or boxed_after(response, self.boxed_after))
        )


RULE_KEYS = tuple(field.name for field in fields(Rule))


def check_rules(rules: Sequence[Rule]) -> None:
    """Raise ValueError unless the weights sum to exactly 1 (no rule at all: a constant 1)."""
    total = sum(rule.weight for rule in rules)
    if rules and total != 1:
        raise ValueError(f"the weights of the format rules sum to {total}, not to 1")


def format_reward(rules: Sequence[Rule], response: str, prefill: str = "") -> float:
    """Sum of the weights of the rules that hold, in [0, 1]; 1 if there are no rules."""
    if not rules:
        return 1.0
    return float(sum(rule.weight for rule in rules if rule.holds(response, prefill)))


def published_reward(markers: Sequence[str], response: str) -> float:
    """The check of the code of arXiv 2602.03190: the share of markers that occur exactly once.

    Nothing else is looked at: neither order, nor nesting, nor a repeated prefill. 1 if there are no
    markers. Departure: the share is rounded to a multiple of 1/1024 (1/3 becomes 341/1024), so
    that these rewards are dyadic too; the error is below 0.0005.
    """
    if not markers:
        return 1.0
    found = sum(response.count(marker) == 1 for marker in markers)
    return round(found * UNIT / len(markers)) / UNIT


def in_order(text: str, markers: Sequence[str]) -> bool:
    """Whether each marker occurs exactly once and each begins after the one before it."""
    places = [text.find(marker) for marker in markers if text.count(marker) == 1]
    return len(places) == len(markers) and all(a < b for a, b in pairwise(places))


def well_nested(text: str, names: Sequence[str]) -> bool:
    """Whether the tags `names` open and close like brackets, none inside itself, with one pair."""
    pattern = re.compile("<(/?)(" + "|".join(re.escape(name) for name in names) + ")>")
    stack: list[str] = []
    closed = 0
    for match in pattern.finditer(text):
        slash, name = match.groups()
        if not slash:
            if name in stack:
                return False
            stack.append(name)
        elif not stack or stack.pop() != name:
            return False
        else:
            closed += 1
    return not stack and closed > 0


def filled(text: str) -> bool:
    """Whether `text` says anything: a letter, a digit, a mathematical sign or set braces."""
    return r"\{" in text or any(
        character.isalnum() or (unicodedata.category(character) == "Sm" and character not in "|~")
        for character in _LAYOUT.sub(" ", text)
    )


def filled_between(text: str, opening: str, closing: str) -> bool:
    """Whether something is said between the first `opening` and the first `closing` after it."""
    _, found, rest = text.partition(opening)
    inside, closed, _ = rest.partition(closing)
    return bool(found and closed) and filled(inside)


def ends_with(text: str, marker: str) -> bool:
    """Whether nothing but white space follows the last occurrence of `marker`, which is there."""
    return text.rstrip().endswith(marker.rstrip()) and marker in text


def boxed(text: str) -> bool:
    """Whether a complete box that says something is there."""
    return any(filled(content) for _, _, content in closed_boxes(text))


def boxed_in(text: str, tag: str) -> bool:
    """Whether a box lies between <tag> and the first </tag> after it."""
    opened = text.find(f"<{tag}>")
    closed = text.find(f"</{tag}>")
    if opened < 0 or closed < opened:
        return False
    return boxed(text[opened:closed])


def boxed_after(text: str, marker: str) -> bool:
    """Whether a box begins after the last occurrence of `marker`."""
    place = text.rfind(marker)
    return place >= 0 and boxed(text[place + len(marker) :])
