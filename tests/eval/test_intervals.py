"""Intervals against hand values, brute force and their own coverage."""

from itertools import product

import numpy as np
import pytest

from eval.intervals import accuracy_interval, majority, paired, resample


def test_nothing_right_of_thirty_is_not_known_to_be_nothing() -> None:
    low, high = accuracy_interval([[0] * 8] * 30)
    # z^2 / (n + z^2) = 3.8415 / 33.8415.
    assert (low, high) == pytest.approx((0.0, 0.11351), abs=1e-5)
    assert accuracy_interval([[1] * 8] * 30) == pytest.approx((1 - high, 1.0))


def test_resampling_counts_is_resampling_samples() -> None:
    """Mean and spread of the draws are those of drawing questions, then samples, one by one."""
    correct = np.array([[1, 1, 0, 1], [0, 0, 0, 1], [0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 1, 1]])
    rng = np.random.default_rng(1)
    slow = []
    for _ in range(20_000):
        drawn = correct[rng.integers(0, 5, 5)]
        slow.append(np.take_along_axis(drawn, rng.integers(0, 4, (5, 4)), axis=1).mean())
    rows = resample(correct, draws=20_000)
    assert np.all(rows.sum(axis=1) == 5)
    fast = rows @ np.arange(5) / 4 / 5
    assert fast.mean() == pytest.approx(np.mean(slow), abs=0.004)
    assert fast.std() == pytest.approx(np.std(slow), rel=0.03)
    # Negative control: resampling the samples as if independent is narrower by a third.
    flat = rng.choice(correct.ravel(), (20_000, 20)).mean(axis=1)
    assert flat.std() < 0.8 * fast.std()


def test_intervals_cover_where_the_normal_one_does_not() -> None:
    """5 questions x 8 samples, 400 experiments: p +- 1.96 SE covers too seldom, ours does not."""
    rng, truth, hits, normal = np.random.default_rng(0), 0.5, 0, 0
    for _ in range(400):
        correct = rng.random((5, 8)) < rng.beta(1, 1, (5, 1))
        low, high = accuracy_interval(correct)
        hits += low <= truth <= high
        means = correct.mean(axis=1)
        half = 1.96 * means.std(ddof=1) / np.sqrt(5)
        normal += abs(means.mean() - truth) <= half
    assert normal / 400 < 0.90
    assert hits / 400 > normal / 400


def test_the_same_seed_is_the_same_interval() -> None:
    correct = np.random.default_rng(3).random((20, 4)) < 0.4
    assert accuracy_interval(correct) == accuracy_interval(correct)
    assert accuracy_interval(correct) != accuracy_interval(correct, seed=1)


def test_the_paired_p_value_is_that_of_all_sign_flips() -> None:
    differences = [0.5, 0.25, -0.125, 0.75, 0.0, 0.5, 0.125]
    before = {str(i): 0.25 for i in range(7)}
    after = {str(i): 0.25 + d for i, d in enumerate(differences)}
    found = paired(before, after)
    mean = np.mean(differences)
    flips = [np.mean(np.multiply(s, differences)) for s in product((1, -1), repeat=7)]
    exact = np.mean(np.abs(flips) >= abs(mean) - 1e-12)
    assert found.mean == pytest.approx(mean)
    assert found.p_value == pytest.approx(exact, abs=0.01)
    # scipy 1.17.1: permutation_test(..., "samples") 0.09375, bootstrap(method="percentile")
    # [0.0714, 0.5] of 100,000 draws.
    assert exact == 0.09375
    assert (found.low, found.high) == pytest.approx((0.0714, 0.5), abs=0.03)
    back = paired(after, before)
    assert back.mean == -found.mean and back.p_value == pytest.approx(found.p_value, abs=0.01)


def test_no_difference_is_no_finding_and_a_clear_one_is() -> None:
    same = {str(i): i % 2 for i in range(50)}
    assert paired(same, same).p_value == 1.0
    better = dict.fromkeys(same, 1.0)
    found = paired(same, better)
    assert found.p_value < 0.001 and found.low > 0.3
    with pytest.raises(ValueError):
        paired(same, {"other": 1.0})


def test_a_majority_by_hand() -> None:
    # 2 of 3 say a (right); a tie of a (right) and b (wrong); nobody says anything; b b a.
    answers = [["a", "a", "b"], ["a", "b", None], [None, None, None], ["b", "b", "a"]]
    correct = [[1, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 1]]
    assert majority(answers, correct, 3) == pytest.approx((1 + 1 / 2 + 0 + 0) / 4)
    assert majority(answers, correct, 1) == pytest.approx(np.mean(correct))
    # Blocks of 2 of 3: the first two samples alone: a; tie; none; b.
    assert majority(answers, correct, 2) == pytest.approx((1 + 1 / 2 + 0 + 0) / 4)
    with pytest.raises(ValueError):
        majority(answers, correct, 4)


def test_right_answers_are_one_answer_however_they_are_spelled() -> None:
    # Two spellings of the right answer against two equal wrong ones: a tie, not a defeat.
    assert majority([["1/2", "0.5", "3", "3"]], [[1, 1, 0, 0]], 4) == 0.5
    assert majority([["1/2", "0.5", "3", "4"]], [[1, 1, 0, 0]], 4) == 1.0
    assert majority([["1/2", "3", "4", "4"]], [[1, 0, 0, 0]], 4) == 0.0


def test_a_tie_does_not_depend_on_the_order_of_the_samples() -> None:
    assert majority([["a", "b"]], [[1, 0]], 2) == majority([["b", "a"]], [[0, 1]], 2) == 0.5
