r"""Choose the candidates that become rephrasings, and their order.

A group of (N + 1) G responses to a question and its rephrasings has a signal if its rewards are
mixed. With pass rates p_0 of the question and p_1 .. p_N of the rephrasings

    P(mixed) = 1 - prod_n E[p_n^G] - prod_n E[(1 - p_n)^G]
    E[p^G] = prod_{i < G} (c + 1 + i) / (k + 2 + i)      p ~ Beta(c + 1, k - c + 1)

after c right of k responses (0 of 0 if there are none). The choice is greedy: the next candidate
maximizes P(mixed) together with those before it. Ties, and all choices without pass rates, are
decided by the distance to the nearest text before it, which is 1 - 2 L / (m + n), L the longest
common subsequence of the tokens.
"""

import math
from collections.abc import Mapping, Sequence

from prompt_aug.rephrase.verify.edit import likeness, tokens
from prompt_aug.rephrase.verify.text import read

Rate = tuple[int, int]  # (right, responses)
DIGITS = 9  # decimals of the compared probabilities
GROUP = 8  # G, the responses to each text


def mixed(rates: Sequence[Rate], group: int = GROUP) -> float:
    """Return P(mixed) of `group` responses to each text with these rates."""

    def all_right(right: int, responses: int) -> float:
        return math.prod((right + 1 + i) / (responses + 2 + i) for i in range(group))

    right = math.prod(all_right(c, k) for c, k in rates)
    return 1 - right - math.prod(all_right(k - c, k) for c, k in rates)


def distance(one: str, other: str) -> float:
    """Return 1 - `likeness` of the tokens of two texts, in [0, 1]."""
    return 1 - likeness(tokens(read(one)), tokens(read(other)))


def choose(
    question: str, candidates: Sequence[str], count: int, rates: Mapping[str, Rate]
) -> list[int]:
    """Return the places of the `count` best candidates, by rank."""

    def signal(texts: Sequence[str]) -> float:
        return mixed([rates.get(t, (0, 0)) for t in (question, *texts)])

    ranked: list[int] = []
    while len(ranked) < min(count, len(candidates)):
        before = [candidates[i] for i in ranked]
        worth = {
            place: (
                round(signal([*before, text]), DIGITS) if rates else 0.0,
                min(distance(text, other) for other in (question, *before)),
            )
            for place, text in enumerate(candidates)
            if place not in ranked
        }
        ranked.append(max(worth, key=worth.__getitem__))
    return ranked
