"""Statistics of a question: HAPO's length reward (arXiv 2505.11225), the curriculum's choice."""

import math
import random
from collections.abc import Sequence

import pytest

from recipe.algorithms.curriculum import nearest
from recipe.algorithms.hapo import length_reward

H = 60  # tokens of the shortest correct response so far


@pytest.mark.parametrize(
    ("length", "right", "wrong"),
    [
        (0, 1.0, 0.0),
        (20, math.sqrt(3) / 2, 0.0),  # cos 30 degrees
        (30, math.sqrt(2) / 2, 0.0),  # cos 45 degrees
        (40, 0.5, 0.0),  # cos 60 degrees
        (80, -0.5, -0.5),  # cos 120 degrees
        (90, -0.7, -math.sqrt(2) / 2),  # cos 135 degrees is -0.7071, below the floor
        (100, -0.7, -math.sqrt(3) / 2),
        (120, -0.7, -1.0),  # cos 180 degrees
        (180, -0.7, -1.0),  # constant from here: cos 270 degrees would be 0 again, and 360 be 1
        (240, -0.7, -1.0),
    ],
)
def test_length_reward_by_hand(length: int, right: float, wrong: float) -> None:
    assert length_reward(length, H, True) == pytest.approx(right, abs=1e-15)
    assert length_reward(length, H, False) == pytest.approx(wrong, abs=1e-15)


def test_special_length_rewards_are_exact() -> None:
    assert math.cos(math.pi / 2) != 0.0  # the condition of this test
    for correct in (True, False):
        assert {length_reward(n, n, correct) for n in (1, 3, 7, 49, 3071, 10**6)} == {0.0}
        assert {length_reward(n, None, correct) for n in (0, 1, 5000)} == {0.0}
    for floor in (-0.25, 0.0, -1.0):  # the floor is for right answers only
        assert length_reward(120, H, True, floor=floor) == floor
        assert length_reward(120, H, False, floor=floor) == -1.0


def test_laws_of_the_length_reward() -> None:
    """Longer is never better, right never worse than wrong, only l / h counts, signs at h."""
    lengths = range(3 * H)
    right = [length_reward(length, H, True) for length in lengths]
    wrong = [length_reward(length, H, False) for length in lengths]
    assert right == sorted(right, reverse=True) and wrong == sorted(wrong, reverse=True)
    assert all(r >= w for r, w in zip(right, wrong, strict=True))
    assert right == [length_reward(7 * length, 7 * H, True) for length in lengths]
    assert all(r > 0 for r in right[:H]) and all(r < 0 for r in right[H + 1 :])
    assert all(w == 0 for w in wrong[: H + 1]) and all(w < 0 for w in wrong[H + 1 :])
    assert len(set(right)) > H  # a constant would pass the first line


@pytest.mark.parametrize(
    ("length", "shortest", "floor", "named"),
    [
        *((-1, h, -0.7, f"length=-1, shortest={h}") for h in (5, None)),
        *((5, h, -0.7, f"length=5, shortest={h}") for h in (0, -5)),
        *((5, 5, floor, f"floor={floor}") for floor in (0.1, -1.5, math.nan)),
    ],
)
def test_values_out_of_range_are_rejected(
    length: int, shortest: int | None, floor: float, named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        length_reward(length, shortest, True, floor)


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
