r"""Notation that is not TeX: money, magnitudes, words, other brackets, systems; and units."""

import pytest

from prompt_aug.grading import grade_answer
from prompt_aug.grading.units import units_contradict


@pytest.mark.parametrize(
    ("one", "other", "contradict"),
    [
        ("dollar", "cent", True),
        ("dollar", "dollar/h", False),
        ("dollar/h", "dollar/day", True),
        ("/h", "dollar/h", False),
        ("/h", "h", True),
        ("km", "km/h", True),
        ("min|ft", "min", False),
        ("min|ft", "degree", True),
        ("cm^2", "cm", False),
        ("cm^2", "cm^3", True),
        ("", "cm", False),
    ],
)
def test_units_that_contradict(one: str, other: str, contradict: bool) -> None:
    assert units_contradict(one, other) == contradict == units_contradict(other, one)


@pytest.mark.parametrize(
    ("gold", "status"), [(r"\frac{\pi^2}{6}", "correct"), (r"\frac{\pi^2}{5}", "wrong")]
)
def test_an_infinite_sum_is_a_verdict(gold: str, status: str) -> None:
    assert grade_answer(r"\sum_{n=1}^\infty 1/n^2", gold).status == status


def test_a_logarithm_without_a_base_is_asked_about_in_both_readings() -> None:
    assert grade_answer(r"\log x+\log y", r"\log y+\log x").correct
    assert not grade_answer(r"\log x", r"\ln x").correct
    assert not grade_answer(r"\log x", r"\log_{10} x").correct
    assert grade_answer(r"\frac{\log x}{\log 2}", r"\frac{\ln x}{\ln 2}").correct
