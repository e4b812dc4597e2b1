"""Paired differences by hand."""

import pytest

from recipe.lab.paired import Difference, holm, paired_difference, sign_flip_p


def test_by_hand() -> None:
    # differences 0.1, 0.2, 0.3: mean 0.2, standard deviation 0.1, t with 2 degrees 4.30265
    one = {1: 0.5, 2: 0.7, 3: 0.4}
    other = {1: 0.4, 2: 0.5, 3: 0.1}
    found = paired_difference(one, other)
    assert found is not None
    assert found.mean == pytest.approx(0.2)
    assert found.half_width == pytest.approx(4.30265 * 0.1 / 3**0.5)  # 0.2484
    assert found.seeds == 3
    assert not found.counts  # 0.2 < 0.2484


def test_pairing_is_what_tells_the_difference() -> None:
    """The arms spread by 0.1 each, their differences by 0.01: unpaired, nothing could be said."""
    one = {1: 0.31, 2: 0.42, 3: 0.50, 4: 0.61, 5: 0.71}
    other = {1: 0.30, 2: 0.40, 3: 0.49, 4: 0.60, 5: 0.69}
    found = paired_difference(one, other)
    assert found is not None
    assert found.mean == pytest.approx(0.014)
    # squared deviations 16, 36, 16, 16, 36 (1e-6): s = sqrt(120e-6 / 4), t = 2.77645
    assert found.half_width == pytest.approx(2.77645 * (30e-6) ** 0.5 / 5**0.5)
    assert found.counts
    crossed = paired_difference(one, {1: 0.69, 2: 0.60, 3: 0.49, 4: 0.40, 5: 0.30})
    assert crossed is not None
    assert crossed.mean == pytest.approx(0.014)
    assert not crossed.counts


def test_only_shared_seeds_are_paired() -> None:
    found = paired_difference({1: 1.0, 2: 3.0, 9: 100.0}, {1: 0.0, 2: 1.0, 8: -100.0})
    assert found == Difference(mean=1.5, half_width=pytest.approx(12.7062 * 0.5), seeds=2)
    assert paired_difference({1: 1.0}, {2: 1.0}) is None


def test_one_seed_has_no_interval_and_never_counts() -> None:
    found = paired_difference({1: 1.0}, {1: 0.0})
    assert found == Difference(mean=1.0, half_width=None, seeds=1)
    assert not found.counts


def test_more_seeds_than_the_table_are_refused() -> None:
    values = {seed: float(seed) for seed in range(21)}
    with pytest.raises(ValueError, match="21 seeds"):
        paired_difference(values, values)


@pytest.mark.parametrize(
    ("differences", "p"),
    [
        ([1.0, 2.0], 0.5),  # of the sums 3, 1, -1, -3 two are as far from 0 as 3
        ([1.0, -1.0], 1.0),
        ([1.0, 2.0, -0.5], 0.5),  # 2.5: 3.5 and 2.5 of each sign, of eight
        ([0.1] * 5, 0.0625),
        ([0.0], 1.0),
        ([-0.333333] * 3 + [1.0, 2.0], 0.5625),  # thirds: 2.000001 and 1.999999 are a tie
    ],
)
def test_sign_flips_by_hand(differences: list[float], p: float) -> None:
    one = dict(enumerate(differences))
    assert sign_flip_p(one, dict.fromkeys(one, 0.0)) == p
    assert sign_flip_p(dict.fromkeys(one, 0.0), one) == p


def test_holm_by_hand() -> None:
    # 4 x .005; 3 x .01; 2 x .03; 1 x .04 is less than the one before
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0] and holm([]) == []
