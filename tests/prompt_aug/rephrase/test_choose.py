"""Which candidates become rephrasings: hand-computed probabilities, the order, the distance."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prompt_aug.rephrase.choose import choose, distance, mixed

QUESTION = "alpha beta gamma delta"


@pytest.mark.parametrize(
    ("rates", "per_rephrasing", "expected"),
    [
        ([(0, 0)], 1, 0.0),  # one response is never mixed
        ([(0, 0)], 2, 1 - 2 / 3),
        ([(0, 0), (0, 0)], 1, 0.5),
        ([(1, 1), (0, 0)], 1, 1 - 2 / 6 - 1 / 6),
        ([(1, 1), (0, 1)], 1, 1 - 2 / 9 - 2 / 9),
        ([(1, 4)], 3, 1 - (2 * 3 * 4) / (6 * 7 * 8) - (4 * 5 * 6) / (6 * 7 * 8)),
    ],
)
def test_the_probability_of_mixed_rewards(
    rates: list[tuple[int, int]], per_rephrasing: int, expected: float
) -> None:
    assert mixed(rates, per_rephrasing) == pytest.approx(expected, rel=1e-12)


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 8), st.integers(0, 8)).map(lambda t: (min(t), max(t))),
        min_size=1,
        max_size=4,
    ),
    st.integers(1, 8),
)
def test_one_more_text_never_lowers_it_and_right_and_wrong_are_symmetric(
    rates: list[tuple[int, int]], per_rephrasing: int
) -> None:
    turned = [(k - c, k) for c, k in rates]
    assert mixed(rates, per_rephrasing) == pytest.approx(mixed(turned, per_rephrasing), abs=1e-12)
    assert mixed([*rates, (1, 3)], per_rephrasing) >= mixed(rates, per_rephrasing) - 1e-12


def test_the_distance_is_that_of_the_longest_common_subsequence() -> None:
    assert distance("apple pear", "apple pear") == 0
    assert distance("apple pear plum fig", "apple melon plum grape") == 1 - 2 * 2 / 8


def test_without_pass_rates_the_farthest_comes_first() -> None:
    near, middle, far = "alpha beta gamma epsilon", "alpha beta zeta eta", "theta iota kappa mu"
    assert choose(QUESTION, [near, middle, far], 2, {}) == [2, 1]
    assert choose(QUESTION, [near], 3, {}) == [0]
    assert choose(QUESTION, [], 3, {}) == []


def test_with_pass_rates_the_likeliest_signal_comes_first_and_the_list_is_a_rank() -> None:
    """The question is always right: a candidate that is mostly wrong mixes best."""
    texts = ["always right one", "half right two", "always wrong three"]
    rates = {QUESTION: (8, 8), texts[0]: (8, 8), texts[1]: (4, 8), texts[2]: (0, 8)}
    assert choose(QUESTION, texts, 1, rates=rates) == [2]
    ranked = choose(QUESTION, texts, 2, rates=rates)
    pairs = {p: mixed([rates[QUESTION], *(rates[texts[i]] for i in p)]) for p in ((2, 0), (2, 1))}
    assert tuple(ranked) == max(pairs, key=pairs.__getitem__)
