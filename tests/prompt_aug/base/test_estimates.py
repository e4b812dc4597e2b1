"""Hand values, scipy's numbers, all subsets, and estimators that must not pass."""

from collections.abc import Callable
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prompt_aug.base.estimates import all_table, no_signal_table, pass_table, wilson


@pytest.mark.parametrize(
    ("rate", "trials", "low", "high"),
    [
        (0.0, 30, 0.0, 0.11351339317396875),
        (1.0, 30, 0.8864866068260312, 1.0),
        (0.3, 10, 0.10779126740630102, 0.6032218525388546),
        (0.5, 500, 0.4563412653024843, 0.5436587346975157),
    ],
)
def test_wilson_is_scipys(rate: float, trials: int, low: float, high: float) -> None:
    # scipy 1.17.1, binomtest(...).proportion_ci(method="wilson")
    assert wilson(rate, trials) == pytest.approx((low, high), abs=1e-12)


@settings(deadline=None)
@given(st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_each_is_a_share_of_all_subsets(case: tuple[int, int]) -> None:
    n, c = case
    samples = [True] * c + [False] * (n - c)
    for k in range(1, n + 1):
        subsets = list(combinations(samples, k))
        anyone, everyone = (sum(map(f, subsets)) / len(subsets) for f in (any, all))
        equal = sum(len(set(s)) == 1 for s in subsets) / len(subsets)
        assert pass_table(n, [k])[c, 0] == pytest.approx(anyone, abs=1e-12)
        assert all_table(n, [k])[c, 0] == pytest.approx(everyone, abs=1e-12)
        assert no_signal_table(n, [k])[c, 0] == pytest.approx(equal, abs=1e-12)


@pytest.mark.parametrize(
    "call",
    [
        lambda: pass_table(4, [5]),
        lambda: no_signal_table(4, [5]),
        lambda: pass_table(4, [0]),
        lambda: wilson(0.0, 0),
        lambda: wilson(1.5, 10),
    ],
)
def test_bad_counts_are_refused(call: Callable[[], object]) -> None:
    with pytest.raises(ValueError):
        call()
