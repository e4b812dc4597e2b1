"""The numbers of a checkpoint, apart from the engine that samples for it."""

import pytest

from recipe.lab.measure import by_level


def test_pass_at_k_by_level_by_hand() -> None:
    # Level 1: 4 and 0 of 4 right. Level 2: 1 of 4, which one sample finds in a quarter of draws.
    found = by_level([1, 2, 1], [4, 1, 0], samples=4)
    assert found == {
        "level/1/pass@1": pytest.approx(0.5),
        "level/1/pass@4": pytest.approx(0.5),
        "level/2/pass@1": pytest.approx(0.25),
        "level/2/pass@4": pytest.approx(1.0),
    }
