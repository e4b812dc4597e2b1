r"""Which of the accepted candidates become rephrasings, and in which order.

A question with N rephrasings has a group of (N + 1) G responses, which has a signal if its rewards
are mixed. With pass rates p_0 of the question and p_1 .. p_N of the rephrasings

    P(mixed) = 1 - prod_n E[p_n^G] - prod_n E[(1 - p_n)^G]

p_n is known from c_n right of k_n responses, and stands for Beta(c_n + 1, k_n - c_n + 1), so that
3 of 3 right is no certainty:

    E[p^G] = prod_{i < G} (c + 1 + i) / (k + 2 + i)

Texts without responses have c = k = 0. The candidates are ranked greedily, because training takes
the first N of the list: each next one is that with the largest P(mixed) together with those before
it, and among equals the one farthest from the nearest of them. Distance is 1 - 2 L / (m + n), L the
longest common subsequence of two lists of m and n tokens.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from prompt_aug.rephrase.verify.reading import read
from prompt_aug.rephrase.verify.wording import likeness, tokens

Rate = tuple[int, int]  # (right, responses)
UNKNOWN: Rate = (0, 0)
MOST_SUBSETS = 2000  # of which the average stands for a random choice
TIE = 1e-9


@dataclass(frozen=True, slots=True)
class Choice:
    """Places of the chosen among the candidates, by rank, and what they are expected to give.

    mixed:   P(mixed) of the question with these rephrasings, None without any pass rate
    random:  the mean of it over all choices of so many
    """

    ranked: tuple[int, ...]
    mixed: float | None = None
    random: float | None = None


def expected_power(right: int, responses: int, power: int) -> float:
    """E[p^power] for p ~ Beta(right + 1, responses - right + 1)."""
    return math.prod((right + 1 + i) / (responses + 2 + i) for i in range(power))


def mixed(rates: Sequence[Rate], per_rephrasing: int) -> float:
    """P(mixed) of `per_rephrasing` responses to each rephrasing with these (right, responses)."""
    right = math.prod(expected_power(c, k, per_rephrasing) for c, k in rates)
    wrong = math.prod(expected_power(k - c, k, per_rephrasing) for c, k in rates)
    return 1 - right - wrong


def distance(one: str, other: str) -> float:
    """In [0, 1]: how far two texts are in their tokens, in order."""
    return 1 - likeness(tokens(read(one)), tokens(read(other)))


def choose(
    question: str,
    candidates: Sequence[str],
    count: int,
    *,
    rates: Mapping[str, Rate] | None = None,
    per_rephrasing: int = 8,
) -> Choice:
    """The `count` best of the candidates, ranked; fewer where there are fewer.

    `rates`: text -> (right, responses) of the question and the candidates; None or without any of
    these texts: by distance alone.
    """
    known = {t: rates[t] for t in (question, *candidates) if rates and t in rates}
    chosen: list[int] = []
    while len(chosen) < min(count, len(candidates)):
        before = [question, *(candidates[i] for i in chosen)]

        def worth(place: int, before: list[str] = before) -> tuple[float, float]:
            texts = [*before, candidates[place]]
            signal = mixed([known.get(t, UNKNOWN) for t in texts], per_rephrasing) if known else 0.0
            return round(signal / TIE) * TIE, min(distance(candidates[place], t) for t in before)

        left = [i for i in range(len(candidates)) if i not in chosen]
        chosen.append(max(left, key=lambda i: (*worth(i), -i)))
    if not known or not chosen:
        return Choice(tuple(chosen))
    return Choice(
        tuple(chosen),
        _of(question, [candidates[i] for i in chosen], known, per_rephrasing),
        _at_random(question, candidates, len(chosen), known, per_rephrasing),
    )


def _of(
    question: str, texts: Sequence[str], known: Mapping[str, Rate], per_rephrasing: int
) -> float:
    return mixed([known.get(t, UNKNOWN) for t in (question, *texts)], per_rephrasing)


def _at_random(
    question: str,
    candidates: Sequence[str],
    count: int,
    known: Mapping[str, Rate],
    per_rephrasing: int,
) -> float:
    """The mean of P(mixed) over the choices of `count`, at most the first `MOST_SUBSETS`."""
    subsets = itertools.islice(itertools.combinations(candidates, count), MOST_SUBSETS)
    worths = [_of(question, subset, known, per_rephrasing) for subset in subsets]
    return sum(worths) / len(worths)
