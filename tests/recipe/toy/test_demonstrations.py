"""Demonstrations earn their reward, and their mistakes come at the rates of the world."""

import hashlib

import pytest

from prompt_aug.extraction import extraction
from prompt_aug.grading import grade
from prompt_aug.templates import load_bank
from recipe.toy.demonstrations import demonstration, draw_demonstration, draw_mistakes
from recipe.toy.problems import Problem, problems
from recipe.toy.work import Mistakes
from recipe.toy.world import Slips, load_world

SUMS, BANK = load_world("sums"), load_bank()
BORROW = Problem(a=52, op="-", b=27, level=5)
CARRY = Problem(a=47, op="+", b=38, level=3)
FORGET = Mistakes(forget=frozenset({1}))


def test_sums_has_the_demonstrations_that_the_published_numbers_are_of() -> None:
    found = hashlib.sha256()
    for i, p in enumerate(problems(SUMS, "train", 300, 0)):
        for template in BANK.names:
            found.update(draw_demonstration(SUMS, p, template, 0, i, 3).encode())
    assert found.hexdigest()[:16] == "0674179853067c11"


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
