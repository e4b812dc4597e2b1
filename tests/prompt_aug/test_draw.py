"""Draws: goldens that pin the hash, weights and groups by hand, impossible arguments."""

from collections import Counter

from prompt_aug.draw import draw, rephrasing

NAMES = tuple(f"t{i}" for i in range(13))
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


def test_weights_are_met_and_zero_is_never_drawn() -> None:
    drawn = Counter(
        draw(seed=0, epoch=0, uid=f"{i:x}", names=("a", "b", "c"), weights=(3, 0, 1))
        for i in range(2000)
    )
    assert drawn["b"] == 0
    assert abs(drawn["a"] - 1500) < 6 * (2000 * 0.75 * 0.25) ** 0.5


def test_rephrasing_by_hand() -> None:
    # N = 3 rephrasings, G = 2: rollouts 0 1 | 2 3 | 4 5 | 6 7 answer q^0 | q^1 | q^2 | q^3
    # One rephrasing of three: q^0 and q^1 in turns, the group keeps its size.
    for available, expected in ((3, "00112233"), (1, "00110011"), (0, "00000000")):
        drawn = [rephrasing(rollout=i, per_rephrasing=2, available=available) for i in range(8)]
        assert "".join(map(str, drawn)) == expected
