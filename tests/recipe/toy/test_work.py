"""Worked answers by hand, and the mistakes that can be made in them."""

import pytest

from recipe.toy.work import Mistakes, carries_due, worked

ALL = frozenset(range(6))


@pytest.mark.parametrize(
    ("a", "op", "b", "work", "answer"),
    [
        (7, "+", 8, "7+8=15", "15"),
        (21, "+", 34, "21+34: 1+4=5, 2+3=5", "55"),
        (47, "+", 38, "47+38: 7+8=15, 4+3+1=8", "85"),
        (67, "+", 58, "67+58: 7+8=15, 6+5+1=12", "125"),
        (68, "-", 23, "68-23: 8-3=5, 6-2=4", "45"),
        (52, "-", 27, "52-27: 12-7=5, 5-2-1=2", "25"),
        (347, "+", 285, "347+285: 7+5=12, 4+8+1=13, 3+2+1=6", "632"),
        (500, "-", 123, "500-123: 10-3=7, 10-2-1=7, 5-1-1=3", "377"),
        (999, "+", 101, "999+101: 9+1=10, 9+0+1=10, 9+1+1=11", "1100"),
    ],
)
def test_worked_by_hand(a: int, op: str, b: int, work: str, answer: str) -> None:
    assert worked(a, op, b) == (work, answer)


@pytest.mark.parametrize(
    ("a", "op", "b", "mistakes", "work", "answer"),
    [
        (47, "+", 38, Mistakes(forget=ALL), "47+38: 7+8=15, 4+3=7", "75"),
        (52, "-", 27, Mistakes(forget=ALL), "52-27: 12-7=5, 5-2=3", "35"),
        # one of two carries forgotten, and the work goes on rightly from there
        (347, "+", 285, Mistakes(forget=frozenset({1})), "347+285: 7+5=12, 4+8=12, 3+2+1=6", "622"),
        (347, "+", 285, Mistakes(forget=frozenset({2})), "347+285: 7+5=12, 4+8+1=13, 3+2=5", "532"),
        # forgetting the first of a chain of nines takes the second away
        (195, "+", 305, Mistakes(forget=frozenset({1})), "195+305: 5+5=10, 9+0=9, 1+3=4", "490"),
        (47, "+", 38, Mistakes(fact=frozenset({0})), "47+38: 7+8=14, 4+3+1=8", "84"),
        (42, "+", 38, Mistakes(fact=frozenset({0})), "42+38: 2+8=11, 4+3+1=8", "81"),
        (47, "+", 38, Mistakes(place=True), "47+38: 7+8=15, 4+3+1=8", "58"),
        (347, "+", 285, Mistakes(place=True), "347+285: 7+5=12, 4+8+1=13, 3+2+1=6", "623"),
        (7, "+", 1, Mistakes(place=True), "7+1=8", "8"),  # one digit has no places
        (21, "+", 12, Mistakes(place=True), "21+12: 1+2=3, 2+1=3", "33"),  # two equal ones
        (21, "+", 34, Mistakes(forget=ALL), "21+34: 1+4=5, 2+3=5", "55"),  # no carry
        (47, "+", 38, Mistakes(copy=True), "47+38: 7+8=15, 4+3+1=8", "86"),
    ],
)
def test_mistakes_by_hand(
    a: int, op: str, b: int, mistakes: Mistakes, work: str, answer: str
) -> None:
    assert worked(a, op, b, mistakes) == (work, answer)


def test_right_answers_are_right_for_a_grid_of_operands() -> None:
    for a in range(0, 1000, 7):
        for b in range(0, a + 1, 11):
            assert worked(a, "+", b)[1] == str(a + b)
            assert worked(a, "-", b)[1] == str(a - b)
            # every column's fact off by one: each digit of the answer is another
            assert worked(a, "+", b, Mistakes(fact=ALL))[1] != str(a + b)


@pytest.mark.parametrize(
    ("a", "op", "b", "due"),
    [
        (47, "+", 38, 1),
        (21, "+", 34, 0),
        (67, "+", 58, 1),  # what the last column carries is written out: it cannot be forgotten
        (347, "+", 285, 2),
        (195, "+", 305, 2),  # the second is due only because of the first
        (52, "-", 27, 1),
        (500, "-", 123, 2),
        (7, "+", 8, 0),
    ],
)
def test_carries_due_by_hand(a: int, op: str, b: int, due: int) -> None:
    assert carries_due(a, op, b) == due
