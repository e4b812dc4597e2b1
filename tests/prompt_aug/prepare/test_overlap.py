"""Likeness of questions: by hand, against a slow exact search, and what must not match."""

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prompt_aug.prepare.filters import OverlapIndex, grams, near_duplicates, words


def test_words_by_hand() -> None:
    assert words("Find $\\dfrac{1}{2} + x^2$.") == ["find", "frac", "1", "2", "+", "x", "^", "2"]
    assert words("find \\frac12+x^{2}") == ["find", "frac", "12", "+", "x", "^", "2"]
    assert words("See [asy] draw(A--B); [/asy] it.") == ["see", "it"]
    assert words("\\left( \\text{if } 3.5 \\right)") == ["if", "3.5"]
    assert words("$$ {} ...") == []


def test_grams_by_hand() -> None:
    assert grams("a b c d", 3) == {("a", "b", "c"), ("b", "c", "d")}
    assert grams("a b", 3) == {("a", "b")}
    assert grams("...", 3) == frozenset()


BENCH = "Find the smallest positive integer that is divisible by seven and has digit sum nine"


TAIL = "where m and n are relatively prime positive integers. Find m + n."
COIN = "A fair coin is tossed ten times and the probability that heads come up an even number of "
CHORD = "Points P and Q lie on a circle of radius five so that the chord between them has length "
COINS = f"{COIN}times is m/n, {TAIL}"


@pytest.mark.parametrize(
    ("text", "place", "score"),
    [
        (BENCH.upper() + "!", 1, 1.0),
        ("Here is a riddle for you, my friend. " + BENCH, 1, 1.0),  # contained
        # 15 words, 8 8-grams; a change of the last word leaves 7, of the 8th none
        (BENCH.replace("nine", "eight"), 1, 7 / 8),
        (BENCH.replace("divisible", "a multiple"), None, 0.0),
        ("Another question about triangles and their angles in a plane", None, 0.0),
        ("compute $3+4$", 3, 1.0),
        ("Compute 3 + 5.", None, 0.0),  # short ones match as a whole
        (f"{CHORD}m/n, {TAIL}", 2, pytest.approx(0.25, abs=0.25)),  # boilerplate, below the limit
    ],
)
def test_overlap_by_hand(text: str, place: int | None, score: Any) -> None:
    benchmarks = ["x", BENCH, COINS, "Compute 3 + 4."]
    match = OverlapIndex({"other": ["nothing like it at all"], "bench": benchmarks}).best(text)
    if place is None:
        assert match is None
    else:
        assert match is not None
        assert (match.of, match.index, match.score) == ("bench", place, score)


@pytest.mark.parametrize("limit", [0.3, 0.5, 0.8, 1.0])
@settings(deadline=None)
@given(texts=st.lists(st.lists(st.sampled_from("abc"), max_size=7).map(" ".join), max_size=9))
def test_near_duplicates_are_all_found(texts: list[str], limit: float) -> None:
    slow = set()
    for i, j in combinations(range(len(texts)), 2):
        a, b = grams(texts[i], 2), grams(texts[j], 2)
        if a and b and len(a & b) / len(a | b) >= limit:
            slow.add((i, j))
    assert {(i, j) for i, j, _ in near_duplicates(texts, limit, 2)} == slow
