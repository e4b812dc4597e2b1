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
    rates = PassRates(target=0.5, decay=0.25)
    rates.update("a", 1.0)
    assert rates.rate("a") == 1.0  # the first group sets it: no pull from the target
    rates.update("a", 0.0)
    assert rates.rate("a") == 0.75
    rates.update("a", 0.5)
    assert rates.rate("a") == 0.6875  # 3/4 * 3/4 + 1/4 * 1/2
    rates.update("b", 0.0)
    assert rates.rate("b") == 0.0 and rates.rate("a") == 0.6875


def test_a_question_never_drawn_is_at_the_target() -> None:
    assert PassRates(target=0.3, decay=0.5).rate("new") == 0.3


def test_with_decay_one_only_the_newest_visit_counts() -> None:
    rates = PassRates(target=0.5, decay=1.0)
    for accuracy in (0.25, 1.0, 0.125):
        rates.update("a", accuracy)
        assert rates.rate("a") == accuracy


@pytest.mark.parametrize("decay", [0.1, 0.3, 0.9])
def test_equal_groups_keep_the_rate_exactly(decay: float) -> None:
    rates = PassRates(target=0.5, decay=decay)
    for _ in range(50):
        rates.update("a", 0.7)
    assert rates.rate("a") == 0.7


def test_a_rate_stays_a_rate() -> None:
    """Between the smallest and the largest group, and equal to the mean written out."""
    draw = random.Random(0)
    groups = [draw.random() for _ in range(40)]
    rates = PassRates(target=0.5, decay=0.3)
    for group in groups:
        rates.update("a", group)
    weights = [0.7**39] + [0.3 * 0.7 ** (39 - n) for n in range(1, 40)]
    assert sum(weights) == pytest.approx(1.0, abs=1e-12)
    expected = sum(w * v for w, v in zip(weights, groups, strict=True))
    assert rates.rate("a") == pytest.approx(expected, abs=1e-12)
    assert min(groups) < rates.rate("a") < max(groups)


def test_the_choice_by_hand() -> None:
    rates = rates_of({"easy": 1.0, "hard": 0.0, "middle": 0.5, "near": 0.625, "far": 0.875})
    uids = ["easy", "far", "hard", "near", "new", "middle"]
    assert rates.choose(uids, 1) == [4]  # distance 0 twice: the earlier candidate
    assert rates.choose(uids, 2) == [4, 5]
    assert rates.choose(uids, 3) == [3, 4, 5]
    assert rates.choose(uids, 4) == [1, 3, 4, 5]
    assert rates.choose(uids, 5) == [0, 1, 3, 4, 5]
    assert rates.choose(uids, 0) == []


def test_the_target_moves_the_choice() -> None:
    """Negative control: another target, another choice; so the target is what decides."""
    known = {"easy": 0.9, "middle": 0.5, "hard": 0.1}
    uids = list(known)
    assert [rates_of(known, target=t).choose(uids, 1) for t in (1.0, 0.5, 0.0)] == [[0], [1], [2]]


@pytest.mark.parametrize("uids", [["low", "high"], ["high", "low"]])
def test_equal_distances_on_both_sides_are_a_tie(uids: list[str]) -> None:
    """In floats 0.7 is nearer to 0.5 than 0.3 is; the earlier candidate must win all the same."""
    assert abs(0.7 - 0.5) < abs(0.3 - 0.5)  # what makes the test one
    assert rates_of({"low": 0.3, "high": 0.7}).choose(uids, 1) == [0]


def keeps_the_law(rates: PassRates, uids: list[str], chosen: list[int]) -> bool:
    """No chosen candidate is farther from the target than one that was left out."""
    distances = [abs(rates.rate(uid) - rates.target) for uid in uids]
    left_out = [d for n, d in enumerate(distances) if n not in chosen]
    worst = max((distances[n] for n in chosen), default=0.0)
    return worst <= min(left_out, default=math.inf) + 1e-12


@pytest.mark.parametrize("seed", range(20))
def test_laws_of_the_choice(seed: int) -> None:
    """Chosen are never worse than left out, ascending, repeatable, and growing with the count."""
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
    assert rates.choose(uids, 24) == list(range(24))


@pytest.mark.parametrize("chosen", [[0, 1], [1, 2], [0, 3]])
def test_other_choices_break_the_law(chosen: list[int]) -> None:
    """Negative control: the check above sees a choice with a single wrong index."""
    uids = ["a", "b", "c", "d"]
    rates = rates_of({"a": 0.0, "b": 0.75, "c": 0.5, "d": 0.625})
    assert rates.choose(uids, 2) == [2, 3] and keeps_the_law(rates, uids, [2, 3])
    assert not keeps_the_law(rates, uids, chosen)


def test_a_candidate_may_come_twice() -> None:
    assert rates_of({"a": 0.5, "b": 0.0}).choose(["b", "a", "a"], 2) == [1, 2]


def test_choosing_changes_nothing() -> None:
    rates = rates_of({"a": 0.25})
    rates.choose(["a", "new"], 1)
    rates.rate("new")
    assert rates.state() == {"a": 0.25}


def test_the_state_survives_a_checkpoint_and_replaces_what_was_known() -> None:
    rates, resumed = PassRates(target=0.5, decay=0.3), PassRates(target=0.5, decay=0.3)
    for accuracy in (1 / 3, 0.1, 0.7):
        rates.update("a", accuracy)
    resumed.update("b", 1.0)
    state = json.loads(json.dumps(rates.state()))
    resumed.load(state)
    assert resumed.state() == rates.state()  # bit for bit, through JSON; "b" is gone
    for known in (rates, resumed):
        known.update("a", 0.2)
    assert resumed.rate("a") == rates.rate("a") != state["a"]  # goes on alike, nothing is shared
    rates.state()["a"] = 0.0
    assert rates.rate("a") == resumed.rate("a")


@pytest.mark.parametrize("target", [-0.1, 1.1, math.nan])
def test_a_target_that_is_no_rate_is_refused(target: float) -> None:
    with pytest.raises(ValueError, match="target="):
        PassRates(target=target, decay=0.5)


@pytest.mark.parametrize("decay", [0.0, -1.0, 1.1, math.nan])
def test_a_decay_that_makes_no_sense_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match="decay="):
        PassRates(target=0.5, decay=decay)


@pytest.mark.parametrize(("target", "decay"), [(0.0, 1.0), (1.0, 1e-6)])
def test_the_ends_of_the_ranges_are_allowed(target: float, decay: float) -> None:
    assert PassRates(target=target, decay=decay).rate("new") == target


@pytest.mark.parametrize("accuracy", [-0.1, 1.5, math.nan])
def test_an_accuracy_that_is_no_share_is_refused(accuracy: float) -> None:
    rates = rates_of({"a": 0.25})
    with pytest.raises(ValueError, match="of question a"):
        rates.update("a", accuracy)
    assert rates.state() == {"a": 0.25}


@pytest.mark.parametrize("count", [-1, 3])
def test_a_count_that_cannot_be_had_is_refused(count: int) -> None:
    with pytest.raises(ValueError, match=f"{count} questions wanted of 2 candidates"):
        rates_of({}).choose(["a", "b"], count)
