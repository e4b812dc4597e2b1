"""pass@k and groups without signal by hand, and against an enumeration of all subsets."""

import random
from itertools import combinations

import pytest

from recipe.toy.measure import no_signal, pass_at_k


def test_by_hand() -> None:
    # Four samples of two questions, 1 and 3 of them right; pairs: 6. All wrong: 3 pairs and 0.
    assert pass_at_k([1, 3], 4, 2) == pytest.approx((3 / 6 + 6 / 6) / 2)
    assert pass_at_k([1, 3], 4, 1) == pytest.approx(0.5)
    # equal pairs: of (1 right, 3 wrong) 3 of 6, of (3 right, 1 wrong) 3 of 6
    assert no_signal([1, 3], 4, 2) == pytest.approx(0.5)
    assert no_signal([0, 4], 4, 4) == 1.0
    assert no_signal([2], 4, 4) == 0.0
    assert no_signal([2], 4, 1) == 1.0  # one response alone has nothing to differ from


def test_against_all_subsets() -> None:
    rng, n, size = random.Random(0), 7, 3
    for _ in range(20):
        samples = [rng.random() < 0.4 for _ in range(n)]
        subsets = list(combinations(samples, size))
        hit = sum(any(s) for s in subsets) / len(subsets)
        equal = sum(len(set(s)) == 1 for s in subsets) / len(subsets)
        assert pass_at_k([sum(samples)], n, size) == pytest.approx(hit)
        assert no_signal([sum(samples)], n, size) == pytest.approx(equal)


def test_more_than_there_are_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="pass@5 wants at least 5"):
        pass_at_k([1], 4, 5)
    with pytest.raises(ValueError, match="groups of 5"):
        no_signal([1], 4, 5)
