"""Draws: goldens that pin the hash, groups by hand."""

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


def test_rephrasing_by_hand() -> None:
    # N = 3 rephrasings, G = 2: rollouts 0 1 | 2 3 | 4 5 | 6 7 answer q^0 | q^1 | q^2 | q^3
    # One rephrasing of three: q^0 and q^1 in turns, the group keeps its size.
    for available, expected in ((3, "00112233"), (1, "00110011"), (0, "00000000")):
        drawn = [rephrasing(rollout=i, per_rephrasing=2, available=available) for i in range(8)]
        assert "".join(map(str, drawn)) == expected
