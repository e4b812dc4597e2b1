"""Golden values by hand, laws, and estimators that must not pass."""

import math
from itertools import combinations

import numpy as np
import pytest

from eval import metrics


def test_accuracy_and_clustered_error_by_hand() -> None:
    # Two questions, two samples each: mean 1/2, cluster sums (+1, -1);
    # SE^2 = 2/1 * (1 + 1) / 4^2 = 1/4.
    value = metrics.accuracy([[1, 1], [0, 0]])
    assert value == metrics.Estimate(accuracy=0.5, standard_error=0.5, questions=2)


def test_one_sample_each_is_the_ordinary_standard_error() -> None:
    # std with n - 1 of (1, 0, 1, 0) is 1/sqrt(3), over sqrt(4).
    error = metrics.clustered_standard_error([[1], [0], [1], [0]])
    assert error == pytest.approx(1 / math.sqrt(12), abs=1e-12)


def test_repeating_every_sample_does_not_shrink_the_error() -> None:
    once = np.array([[1], [0], [1], [1], [0]])
    error = metrics.clustered_standard_error(once)
    assert metrics.clustered_standard_error(np.repeat(once, 16, axis=1)) == pytest.approx(error)
    # Negative control: an error over the 80 samples as if independent is four times too small.
    naive = np.repeat(once, 16, axis=1).std(ddof=1) / math.sqrt(80)
    assert naive < 0.3 * error


def test_one_question_has_no_error_and_says_so() -> None:
    assert metrics.accuracy([[1, 0, 1, 1]]) == metrics.Estimate(
        accuracy=0.75, standard_error=None, questions=1
    )


def test_pass_at_powers_ends_at_n_and_starts_at_the_accuracy() -> None:
    correct = np.array([[1, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 0]])
    values = metrics.pass_at_powers(correct)
    assert list(values) == [1, 2, 4, 6]
    assert values[1] == pytest.approx(correct.mean())
    assert values[6] == 0.5


def test_the_two_averages_by_hand() -> None:
    small, large = np.array([[1], [1]]), np.array([[0], [1], [0], [0]])
    over_questions = metrics.mean_over_questions([small, large])
    assert over_questions.accuracy == pytest.approx(3 / 6)
    assert over_questions.questions == 6
    over_benchmarks = metrics.mean_over_benchmarks([metrics.accuracy(b) for b in (small, large)])
    assert over_benchmarks.accuracy == pytest.approx((1 + 1 / 4) / 2)
    # Errors 0 and 1/4: sqrt(0 + 1/16) / 2.
    assert over_benchmarks.standard_error == pytest.approx(1 / 8)


def test_a_benchmark_without_error_leaves_the_average_without_one() -> None:
    parts = [metrics.accuracy([[1, 0]]), metrics.accuracy([[1], [0]])]
    assert metrics.mean_over_benchmarks(parts).standard_error is None


def test_published_averages_of_the_base_model_are_reproduced() -> None:
    # 16.7/43.4/61.8/15.1/28.4 over 30/83/500/272/675 questions is 33.1 | 37.4 (arXiv 2602.03190).
    right = {30: 5, 83: 36, 500: 309, 272: 41, 675: 192}
    parts = [np.array([[1]] * r + [[0]] * (n - r)) for n, r in right.items()]
    assert 100 * metrics.mean_over_questions(parts).accuracy == pytest.approx(37.4, abs=0.05)
    per_benchmark = metrics.mean_over_benchmarks([metrics.accuracy(part) for part in parts])
    assert 100 * per_benchmark.accuracy == pytest.approx(33.1, abs=0.05)


def test_paired_difference_by_hand_and_against_the_unpaired_error() -> None:
    before = {"a": 0.0, "b": 1.0, "c": 0.0, "d": 1.0}
    after = {"d": 1.0, "c": 1.0, "b": 1.0, "a": 0.0}
    # Differences (0, 0, 1, 0): mean 1/4, std with n - 1 is 1/2, over sqrt(4).
    gain = metrics.paired_difference(before, after)
    assert gain == metrics.Estimate(accuracy=0.25, standard_error=0.25, questions=4)
    unpaired = math.hypot(
        *(metrics.accuracy([[v] for v in side.values()]).standard_error or 0.0
          for side in (before, after))
    )  # fmt: skip
    assert gain.standard_error is not None
    assert gain.standard_error < unpaired


@pytest.mark.parametrize(
    "call",
    [
        lambda: metrics.accuracy([]),
        lambda: metrics.accuracy([1, 0]),
        lambda: metrics.accuracy([[2.0]]),
        lambda: metrics.accuracy([[float("nan")]]),
        lambda: metrics.paired_difference({"a": 1.0}, {"b": 1.0}),
        lambda: metrics.paired_difference({}, {}),
        lambda: metrics.mean_over_benchmarks([]),
    ],
)
def test_bad_input_is_refused(call) -> None:
    with pytest.raises(ValueError):
        call()


def test_pass_and_pass_all_at_powers_meet_at_one() -> None:
    correct = np.array([[1, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
    anyone, everyone = metrics.pass_at_powers(correct), metrics.all_at_powers(correct)
    assert list(everyone) == [1, 2, 4, 6]
    assert everyone[1] == pytest.approx(anyone[1]) == pytest.approx(correct.mean())
    assert everyone[6] == pytest.approx(1 / 3) and anyone[6] == pytest.approx(2 / 3)
    with pytest.raises(ValueError, match="0 or 1"):
        metrics.pass_at_powers([[0.5, 1.0]])


def test_no_signal_is_the_share_of_groups_whose_rewards_are_all_equal() -> None:
    correct = np.array([[1, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0], [1, 1, 1, 1]])
    # Pairs of c = 1 or 3 of 4: 3 of the 6 are equal. With c = 0 or 4: all.
    shares = metrics.no_signal_at_powers(correct)
    assert shares == {2: pytest.approx(3 / 4), 4: pytest.approx(1 / 2)}
    for row in correct:
        groups = list(combinations(row, 2))
        share = sum(len(set(group)) == 1 for group in groups) / len(groups)
        assert metrics.no_signal_at_powers([row])[2] == pytest.approx(share)
    assert metrics.no_signal_at_powers([[1], [0]]) == {}  # one response alone has no group
