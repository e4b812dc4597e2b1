"""Numbers within a relative error of a decimal gold."""

import pytest

from eval.tolerance import is_close


@pytest.mark.parametrize(
    ("answer", "gold", "close"),
    [
        ("4.49e33", "4.5e33", True),
        (r"4.49 \times 10^{33} \text{ erg/s}", "4.5e33", True),
        ("1.01", "1.00", True),  # exactly the tolerance
        ("1.0101", "1.00", False),
        ("-2.5", "2.5", False),
        ("9.05", "9", False),  # a whole number is exact
        ("0.33", "1/3", False),
        (r"3.21\ \mathrm{cm}", r"3.2 \text{ cm}", True),
        ("3.21 m", "3.2 cm", False),
        (r"1e-7", r"1.004 \times 10^{-7}", True),
        ("x", "2.5", False),
        (r"2\sqrt3", "3.46", True),
        ("e^2", "7.39", True),
        ("2+3i", "2.0", False),
        ("2.5 or 3", "2.5", False),
        ("0.1", "0.0", False),
        (None, "2.5", False),
    ],
)
def test_only_numbers_near_a_measurement(answer: str | None, gold: str, close: bool) -> None:
    assert is_close(answer, [gold], 0.01) is close
    assert is_close(answer, ["77.5", gold], 0.01) is close
