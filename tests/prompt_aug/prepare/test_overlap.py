"""Likeness of questions: by hand, against a slow exact search, and what must not match."""

from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prompt_aug.prepare.overlap import OverlapIndex, grams, near_duplicates, words


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


def test_overlap_by_hand() -> None:
    index = OverlapIndex({"other": ["nothing like it at all"], "bench": ["x", BENCH]})
    same = index.best(BENCH.upper() + "!")
    assert same is not None
    assert (same.of, same.index, same.score) == ("bench", 1, 1.0)
    longer = index.best("Here is a riddle for you, my friend. " + BENCH)  # contained: still 1
    assert longer is not None
    assert longer.score == 1.0
    # 15 words, 8 8-grams; a change of the last word leaves 7, of the middle word (8th) none
    changed = index.best(BENCH.replace("nine", "eight"))
    assert changed is not None
    assert changed.score == 7 / 8
    assert index.best(BENCH.replace("divisible", "a multiple")) is None
    assert index.best("Another question about triangles and their angles in a plane") is None


def test_boilerplate_alone_is_not_an_overlap() -> None:
    tail = "where m and n are relatively prime positive integers. Find m + n."
    a = "A fair coin is tossed ten times and the probability that heads come up an even number of "
    b = "Points P and Q lie on a circle of radius five so that the chord between them has length "
    match = OverlapIndex({"bench": [a + "times is m/n, " + tail]}).best(b + "m/n, " + tail)
    assert match is not None
    assert match.score < 0.5


def test_short_questions_match_whole_only() -> None:
    index = OverlapIndex({"bench": ["Compute 3 + 4."]})
    assert index.best("compute $3+4$") is not None
    assert index.best("Compute 3 + 5.") is None


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
