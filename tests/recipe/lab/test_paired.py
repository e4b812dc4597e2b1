"""Paired differences by hand."""

import math

import pytest

from recipe.lab.paired import differences, half_width, holm, sign_flip_p


def test_only_shared_seeds_are_paired_in_their_order() -> None:
    # A set of 16 and 1 lists 16 first.
    assert differences({9: 100.0, 16: 3.0, 1: 1.0}, {1: 0.0, 8: -100.0, 16: 1.0}) == [1.0, 2.0]
    assert differences({1: 1.0}, {2: 1.0}) == []


def test_intervals_by_hand() -> None:
    # standard deviation 0.1, t with 2 degrees 4.30265
    assert half_width([0.1, 0.2, 0.3]) == pytest.approx(4.30265 * 0.1 / 3**0.5)
    # squared deviations 16, 36, 16, 16, 36 (1e-6): s = sqrt(120e-6 / 4), t = 2.77645
    five = [0.01, 0.02, 0.01, 0.01, 0.02]
    assert half_width(five) == pytest.approx(2.77645 * (30e-6) ** 0.5 / 5**0.5)
    assert half_width([1.0, 2.0]) == pytest.approx(12.7062 * 0.5)
    assert half_width([1.0]) == math.inf
    for function in (half_width, sign_flip_p):
        with pytest.raises(ValueError, match="21 seeds"):
            function([1.0, 2.0, 3.0] * 7)


@pytest.mark.parametrize(
    ("values", "p"),
    [
        ([1.0, 2.0], 0.5),  # of the sums 3, 1, -1, -3 two are as far from 0 as 3
        ([1.0, -1.0], 1.0),
        ([1.0, 2.0, -0.5], 0.5),  # 2.5: 3.5 and 2.5 of each sign, of eight
        ([0.1] * 5, 0.0625),
        ([0.0], 1.0),
        ([-0.333333] * 3 + [1.0, 2.0], 0.5625),  # thirds: 2.000001 and 1.999999 are a tie
    ],
)
def test_sign_flips_by_hand(values: list[float], p: float) -> None:
    assert sign_flip_p(values) == sign_flip_p([-value for value in values]) == p


def test_holm_by_hand() -> None:
    # 4 x .005; 3 x .01; 2 x .03; 1 x .04 is less than the one before
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0] and holm([]) == []
