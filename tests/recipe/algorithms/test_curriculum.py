"""The prompt curriculum's choice: the questions nearest to the target."""

import math
import random
from collections.abc import Sequence

import pytest

from recipe.algorithms.curriculum import nearest


@pytest.mark.parametrize(
    ("count", "chosen"),
    [(0, []), (1, [4]), (2, [4, 5]), (3, [3, 4, 5]), (4, [1, 3, 4, 5]), (5, [0, 1, 3, 4, 5])],
)
def test_the_choice_by_hand(count: int, chosen: list[int]) -> None:
    """Two candidates have distance 0: the earlier one is taken first."""
    assert nearest([1.0, 0.875, 0.0, 0.625, 0.5, 0.5], 0.5, count) == chosen


@pytest.mark.parametrize("rates", [[0.3, 0.7], [0.7, 0.3]])
def test_equal_distances_on_both_sides_are_a_tie(rates: list[float]) -> None:
    """In floats 0.7 is nearer to 0.5 than 0.3 is; the earlier candidate must win all the same."""
    assert abs(0.7 - 0.5) < abs(0.3 - 0.5)  # the condition of this test
    assert nearest(rates, 0.5, 1) == [0]


def keeps_the_law(rates: Sequence[float], target: float, chosen: list[int]) -> bool:
    """No chosen candidate is farther from the target than one that was not chosen."""
    distances = [abs(rate - target) for rate in rates]
    others = [d for n, d in enumerate(distances) if n not in chosen]
    worst = max((distances[n] for n in chosen), default=0.0)
    return worst <= min(others, default=math.inf) + 1e-12


@pytest.mark.parametrize("seed", range(20))
def test_laws_of_the_choice(seed: int) -> None:
    """The nearest, ascending, growing with the count."""
    draw = random.Random(seed)
    rates, target = [draw.randrange(9) / 8 for _ in range(24)], draw.random()
    smaller: set[int] = set()
    for count in range(25):
        chosen = nearest(rates, target, count)
        assert len(set(chosen)) == count and chosen == sorted(chosen)
        assert smaller <= set(chosen)
        assert keeps_the_law(rates, target, chosen)
        smaller = set(chosen)


@pytest.mark.parametrize("chosen", [[0, 1], [1, 2], [0, 3]])
def test_other_choices_break_the_law(chosen: list[int]) -> None:
    rates = [0.0, 0.75, 0.5, 0.625]
    assert nearest(rates, 0.5, 2) == [2, 3] and keeps_the_law(rates, 0.5, [2, 3])
    assert not keeps_the_law(rates, 0.5, chosen)


@pytest.mark.parametrize("count", [-1, 3])
def test_a_count_out_of_range_is_rejected(count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} questions wanted of 2 candidates"):
        nearest([0.1, 0.2], 0.5, count)
