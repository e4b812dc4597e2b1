"""Worked answers by hand; demonstrations earn their reward and err at the rates of the world."""

import hashlib

import pytest

from prompt_aug.extraction import extraction
from prompt_aug.grading import grade
from prompt_aug.templates import load_bank
from recipe.toy.demonstrations import (
    Mistakes,
    demonstration,
    draw_demonstration,
    draw_mistakes,
    worked,
)
from recipe.toy.world import Problem, Slips, carries_due, load_world, problems

SUMS, BANK = load_world("sums"), load_bank()
BORROW = Problem(a=52, op="-", b=27, level=5)
CARRY = Problem(a=47, op="+", b=38, level=3)
FORGET = Mistakes(forget=frozenset({1}))
ALL = frozenset(range(6))


def test_sums_has_the_demonstrations_that_the_published_numbers_are_of() -> None:
    result = hashlib.sha256()
    for i, p in enumerate(problems(SUMS, "train", 300, 0)):
        for template in BANK.names:
            result.update(draw_demonstration(SUMS, p, template, 0, i, 3).encode())
    assert result.hexdigest()[:16] == "0674179853067c11"


def test_every_template_pays_its_demonstration_in_full() -> None:
    for name, template in BANK.items():
        text = demonstration(BORROW, name)
        assert template.format_reward(text) == 1.0, name
        tag = extraction("default", template)
        assert grade(text, "25", extraction=tag).correct, name
        for mistakes in (FORGET, Mistakes(copy=True), Mistakes(place=True)):
            wrong = demonstration(BORROW, name, mistakes)
            assert not grade(wrong, "25", extraction=tag).correct, name


def test_slips_come_at_their_rates() -> None:
    texts = [draw_demonstration(SUMS, CARRY, "deepseek-r1", i) for i in range(2000)]
    forgot = sum("4+3=7" in t for t in texts) / len(texts)
    plain = sum("<think>" not in t for t in texts) / len(texts)
    assert abs(forgot - 0.60) < 0.044  # four standard errors of a share of 2000
    assert abs(plain - 0.30) < 0.04
    assert texts[7] == draw_demonstration(SUMS, CARRY, "deepseek-r1", 7)


def test_mistakes_are_drawn_each_by_itself() -> None:
    """Two carries, one rate: both are forgotten at the product of the rates, and so are others."""
    slips = Slips(carry=0.5, fact=0.2, place=0.3, copy=0.4)
    world = load_world("staircase").model_copy(update={"slips": slips})
    problem, count = Problem(a=347, op="+", b=285, level=2), 4000
    drawn = [draw_mistakes(world, problem, i) for i in range(count)]

    def share(*of: bool) -> float:
        return sum(of) / count

    assert share(*(1 in m.forget for m in drawn)) == pytest.approx(0.5, abs=0.032)
    assert share(*({1, 2} <= m.forget for m in drawn)) == pytest.approx(0.25, abs=0.028)
    assert share(*(0 in m.fact for m in drawn)) == pytest.approx(0.2, abs=0.026)
    assert share(*(m.place and m.copy for m in drawn)) == pytest.approx(0.12, abs=0.021)
    assert share(*(2 in m.fact and 2 in m.forget for m in drawn)) == pytest.approx(0.1, abs=0.02)


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
