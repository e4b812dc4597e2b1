"""Draws: goldens that pin the hash, laws, and implementations that must fail the laws."""

import random
from collections import Counter
from collections.abc import Callable

import pytest

from prompt_aug.draw import draw, rephrasing

NAMES = tuple(f"t{i}" for i in range(13))
UIDS = [f"{i:016x}" for i in range(2000)]
Draw = Callable[..., str]
GOLDEN_QUESTION = 0x5729E0EDEE3AB7D3
GOLDEN_ROLLOUT = 0x7F4C03F8C8A8B686


def by_hand(number: int, names: tuple[str, ...]) -> str:
    """Uniform draw from the 64-bit number of the docstring, written with fractions."""
    return next(n for k, n in enumerate(names) if number * len(names) < (k + 1) * 2**64)


def test_golden_hash() -> None:
    # BLAKE2b-64 of '["template", 7, 3, "00ff"]', from Python's hashlib on its own:
    # `python -c 'import hashlib;print(hashlib.blake2b(b"...", digest_size=8).hexdigest())'`
    assert draw(seed=7, epoch=3, uid="00ff", names=NAMES) == by_hand(GOLDEN_QUESTION, NAMES)
    got = draw(seed=7, epoch=3, uid="00ff", rollout=5, names=NAMES, mode="per_rollout")
    assert got == by_hand(GOLDEN_ROLLOUT, NAMES)


def test_weights_by_hand() -> None:
    # the point is GOLDEN_QUESTION / 2^64 of the weights' sum; thresholds on both sides of it
    x = GOLDEN_QUESTION / 2**64
    key = {"seed": 7, "epoch": 3, "uid": "00ff", "names": ("a", "b")}
    assert draw(**key, weights=(x * 1.001, 1 - x * 1.001)) == "a"
    assert draw(**key, weights=(x * 0.999, 1 - x * 0.999)) == "b"
    assert draw(**key, weights=(30 * x * 1.001, 30 * (1 - x * 1.001))) == "a"  # scale is free


def shares_one_template_per_group(function: Draw) -> bool:
    return all(
        len({function(seed=1, epoch=2, uid=uid, rollout=r, names=NAMES) for r in range(8)}) == 1
        for uid in UIDS[:100]
    )


def is_free_of_order(function: Draw) -> bool:
    forward = {uid: function(seed=1, epoch=2, uid=uid, names=NAMES) for uid in UIDS}
    backward = {uid: function(seed=1, epoch=2, uid=uid, names=NAMES) for uid in reversed(UIDS)}
    return forward == backward


def is_uniform(function: Draw) -> bool:
    """Chi-squared over 20 epochs: 60 is exceeded with probability 2e-8 at 12 degrees."""
    counts = Counter(
        function(seed=1, epoch=epoch, uid=uid, names=NAMES) for epoch in range(20) for uid in UIDS
    )
    expected = 20 * len(UIDS) / len(NAMES)
    return sum((counts[name] - expected) ** 2 / expected for name in NAMES) < 60


def varies_over_epochs(function: Draw) -> bool:
    """Two epochs agree on 1 question in 13 (154 of 2000, standard deviation 12)."""
    agree = sum(
        function(seed=1, epoch=0, uid=uid, names=NAMES)
        == function(seed=1, epoch=1, uid=uid, names=NAMES)
        for uid in UIDS
    )
    return 80 < agree < 230


LAWS = [shares_one_template_per_group, is_free_of_order, is_uniform, varies_over_epochs]


@pytest.mark.parametrize("law", LAWS)
def test_laws(law: Callable[[Draw], bool]) -> None:
    assert law(draw)


def stateful(**key: object) -> str:
    """The published way: a global random generator."""
    return random.choice(NAMES)


def same_every_epoch(**key: object) -> str:
    return draw(**{**key, "epoch": 0})


def biased(**key: object) -> str:
    return draw(**{**key, "names": (*NAMES, "extra")}).replace("extra", "t0")


@pytest.mark.parametrize(
    ("law", "broken"),
    [
        (shares_one_template_per_group, stateful),
        (is_free_of_order, stateful),
        (is_uniform, biased),
        (varies_over_epochs, same_every_epoch),
    ],
)
def test_broken_draws_fail_the_laws(law: Callable[[Draw], bool], broken: Draw) -> None:
    assert not law(broken)


def test_weights_are_met_and_zero_is_never_drawn() -> None:
    drawn = Counter(
        draw(seed=0, epoch=0, uid=uid, names=("a", "b", "c"), weights=(3, 0, 1)) for uid in UIDS
    )
    assert drawn["b"] == 0
    assert abs(drawn["a"] - 1500) < 6 * (2000 * 0.75 * 0.25) ** 0.5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"names": []}, "non-empty"),
        ({"names": "abel"}, "non-empty"),
        ({"names": ["a", "a"]}, "named twice"),
        ({"mode": "random"}, "unknown draw mode"),
        ({"mode": "fixed"}, "exactly one"),
        ({"weights": [1.0]}, "1 weights for 2"),
        ({"weights": [1.0, -1.0]}, "not negative"),
        ({"weights": [0.0, 0.0]}, "not all 0"),
        ({"weights": [1.0, float("nan")]}, "finite"),
    ],
)
def test_impossible_draws_are_refused(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        draw(**{"seed": 0, "epoch": 0, "uid": "q", "names": ["a", "b"], **change})


def test_rephrasing_by_hand() -> None:
    # N = 3 rephrasings, G = 2: rollouts 0 1 | 2 3 | 4 5 | 6 7 answer q^0 | q^1 | q^2 | q^3
    # One rephrasing of three: q^0 and q^1 in turns, the group keeps its size.
    for available, expected in ((3, "00112233"), (1, "00110011"), (0, "00000000")):
        drawn = [rephrasing(rollout=i, per_rephrasing=2, available=available) for i in range(8)]
        assert "".join(map(str, drawn)) == expected


@pytest.mark.parametrize(("per_rephrasing", "available"), [(1, 3), (8, 3), (4, 7), (2, 1)])
def test_every_rephrasing_gets_the_same_number_of_rollouts(
    per_rephrasing: int, available: int
) -> None:
    group = range(per_rephrasing * (available + 1))
    drawn = [
        rephrasing(rollout=i, per_rephrasing=per_rephrasing, available=available) for i in group
    ]
    assert sorted(drawn) == [n for n in range(available + 1) for _ in range(per_rephrasing)]


@pytest.mark.parametrize("bad", [{"rollout": -1}, {"per_rephrasing": 0}, {"available": -1}])
def test_impossible_phrasings_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="impossible"):
        rephrasing(**{"rollout": 0, "per_rephrasing": 1, "available": 0, **bad})
