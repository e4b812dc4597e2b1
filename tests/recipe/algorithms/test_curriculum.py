"""The prompt curriculum: running pass rates, and the questions nearest to the target."""

import json
import math
import random

import pytest

from recipe.algorithms.curriculum import PassRates


def rates_of(rates: dict[str, float], target: float = 0.5, decay: float = 0.5) -> PassRates:
    known = PassRates(target=target, decay=decay)
    known.load(rates)
    return known


def test_the_running_rate_by_hand() -> None:
    rates = PassRates(target=0.3, decay=0.25)
    assert rates.rate("new") == 0.3  # never drawn: at the target
    for accuracy, wanted in ((1.0, 1.0), (0.0, 0.75), (0.5, 0.6875)):  # the first group sets it
        rates.update("a", accuracy)
        assert rates.rate("a") == wanted
    rates.update("b", 0.0)
    assert rates.state() == {"a": 0.6875, "b": 0.0}
    newest = PassRates(target=0.5, decay=1.0)  # with decay 1 only the newest group counts
    for accuracy in (0.25, 1.0, 0.125):
        newest.update("a", accuracy)
        assert newest.rate("a") == accuracy


@pytest.mark.parametrize("decay", [0.1, 0.3, 0.9])
def test_equal_groups_keep_the_rate_exactly(decay: float) -> None:
    rates = PassRates(target=0.5, decay=decay)
    for _ in range(50):
        rates.update("a", 0.7)
    assert rates.rate("a") == 0.7


def test_a_rate_is_the_weighted_mean_of_its_groups() -> None:
    draw = random.Random(0)
    groups = [draw.random() for _ in range(40)]
    rates = PassRates(target=0.5, decay=0.3)
    for group in groups:
        rates.update("a", group)
    weights = [0.7**39] + [0.3 * 0.7 ** (39 - n) for n in range(1, 40)]
    expected = sum(w * v for w, v in zip(weights, groups, strict=True))
    assert rates.rate("a") == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize(
    ("count", "chosen"),
    [(0, []), (1, [4]), (2, [4, 5]), (3, [3, 4, 5]), (4, [1, 3, 4, 5]), (5, [0, 1, 3, 4, 5])],
)
def test_the_choice_by_hand(count: int, chosen: list[int]) -> None:
    """Two candidates have distance 0: the earlier one is taken first."""
    rates = rates_of({"easy": 1.0, "hard": 0.0, "middle": 0.5, "near": 0.625, "far": 0.875})
    assert rates.choose(["easy", "far", "hard", "near", "new", "middle"], count) == chosen
    assert rates_of({"a": 0.5, "b": 0.0}).choose(["b", "a", "a"], 2) == [1, 2]  # one comes again


@pytest.mark.parametrize(("target", "chosen"), [(1.0, 0), (0.5, 1), (0.0, 2)])
def test_the_target_decides(target: float, chosen: int) -> None:
    known = {"easy": 0.9, "middle": 0.5, "hard": 0.1}
    assert rates_of(known, target=target).choose(list(known), 1) == [chosen]


@pytest.mark.parametrize("uids", [["low", "high"], ["high", "low"]])
def test_equal_distances_on_both_sides_are_a_tie(uids: list[str]) -> None:
    """In floats 0.7 is nearer to 0.5 than 0.3 is; the earlier candidate must win all the same."""
    assert abs(0.7 - 0.5) < abs(0.3 - 0.5)  # the condition of this test
    assert rates_of({"low": 0.3, "high": 0.7}).choose(uids, 1) == [0]


def keeps_the_law(rates: PassRates, uids: list[str], chosen: list[int]) -> bool:
    """No chosen candidate is farther from the target than one that was not chosen."""
    distances = [abs(rates.rate(uid) - rates.target) for uid in uids]
    others = [d for n, d in enumerate(distances) if n not in chosen]
    worst = max((distances[n] for n in chosen), default=0.0)
    return worst <= min(others, default=math.inf) + 1e-12


@pytest.mark.parametrize("seed", range(20))
def test_laws_of_the_choice(seed: int) -> None:
    """The nearest, ascending, repeatable, growing with the count, without changing the rates."""
    draw = random.Random(seed)
    known = {f"q{n}": draw.randrange(9) / 8 for n in range(30)}
    uids = draw.sample([*known, *(f"new{n}" for n in range(4))], 24)
    rates = rates_of(known, target=draw.random())
    smaller: set[int] = set()
    for count in range(25):
        chosen = rates.choose(uids, count)
        assert len(set(chosen)) == count and chosen == sorted(chosen)
        assert chosen == rates.choose(uids, count)
        assert smaller <= set(chosen)
        assert keeps_the_law(rates, uids, chosen)
        smaller = set(chosen)
    assert rates.state() == known


@pytest.mark.parametrize("chosen", [[0, 1], [1, 2], [0, 3]])
def test_other_choices_break_the_law(chosen: list[int]) -> None:
    uids = ["a", "b", "c", "d"]
    rates = rates_of({"a": 0.0, "b": 0.75, "c": 0.5, "d": 0.625})
    assert rates.choose(uids, 2) == [2, 3] and keeps_the_law(rates, uids, [2, 3])
    assert not keeps_the_law(rates, uids, chosen)


def test_a_checkpoint_keeps_the_rates_to_the_last_bit() -> None:
    rates, resumed = PassRates(target=0.5, decay=0.3), PassRates(target=0.5, decay=0.3)
    for accuracy in (1 / 3, 0.1, 0.7):
        rates.update("a", accuracy)
    resumed.update("b", 1.0)  # replaced
    state = json.loads(json.dumps(rates.state()))
    resumed.load(state)
    assert resumed.state() == rates.state()
    for known in (rates, resumed):
        known.update("a", 0.2)
    assert resumed.rate("a") == rates.rate("a") != state["a"]  # nothing is shared


@pytest.mark.parametrize(
    ("target", "decay", "named"),
    [
        *((bad, 0.5, "target=") for bad in (-0.1, 1.1, math.nan)),
        *((0.5, bad, "decay=") for bad in (0.0, -1.0, 1.1, math.nan)),
    ],
)
def test_settings_out_of_range_are_rejected(target: float, decay: float, named: str) -> None:
    for low, high in ((0.0, 1.0), (1.0, 1e-6)):
        PassRates(target=low, decay=high)  # the ends of the ranges are allowed
    with pytest.raises(ValueError, match=named):
        PassRates(target=target, decay=decay)


@pytest.mark.parametrize("bad", [-0.1, 1.5, math.nan])
def test_an_accuracy_or_a_count_out_of_range_is_rejected(bad: float) -> None:
    rates = rates_of({"a": 0.25})
    with pytest.raises(ValueError, match="of question a"):
        rates.update("a", bad)
    assert rates.state() == {"a": 0.25}
    for count in (-1, 3):
        with pytest.raises(ValueError, match=f"{count} questions wanted of 2 candidates"):
            rates.choose(["a", "b"], count)
