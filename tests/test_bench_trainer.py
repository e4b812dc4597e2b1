"""scripts/benchmarks/trainer.py: who does which step, and the figures of the pairs by hand."""

from types import ModuleType

import pytest
from load_script import load_script


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return load_script("benchmarks/trainer")


def test_whose_step_it_is(bench: ModuleType) -> None:
    assert not any(bench.is_ours(step) for step in range(1, 13))
    assert [bench.is_ours(step) for step in range(12, 20)] == [False, True, True, False] * 2


def test_the_figures_by_hand(bench: ModuleType) -> None:
    generating = [9.0, 9.0] + [2.0] * 8 + [7.0]  # two warm up, the last one also writes
    warm = [5.0, 9.0, 9.0, 5.0]
    pairs = [1.0, 1.1, 1.2, 1.0, 1.0, 1.3, 1.4, 1.0]  # verl ours, ours verl, ...
    text = bench.report([*generating, *warm, *pairs])
    assert text.splitlines() == [
        "4 pairs of replayed steps: verl 1.000 s, ours 1.250 s, ratio 1.250 (1.100 to 1.400)",
        "of a step that generates, 2.000 s: 0.250 s more, ratio 1.125 (1.050 to 1.200)",
    ]


def test_the_interval_of_a_median(bench: ModuleType) -> None:
    """P(at most 1 of 9 below the median) = 10/512 < 0.025, of 8 only 0: 1/256."""
    assert bench.interval([9.0, 1.0, 8.0, 2.0, 7.0, 3.0, 6.0, 4.0, 5.0]) == (2.0, 8.0)
    assert bench.interval([8.0, 1.0, 7.0, 2.0, 6.0, 3.0, 5.0, 4.0]) == (1.0, 8.0)
