"""The guard's verdicts on metrics written by hand; actors that have ended are named."""

import math
from typing import Any

import pytest
from ray.exceptions import RayError

from recipe.run.folder import metrics_line
from recipe.trainer.guard import remedy, verdict
from recipe.trainer.liveness import Liveness

SETTINGS = {"window": 2, "factor": 4.0, "accuracy_drop": 0.1}
VAL, LENGTH, NORM = "val/math/accuracy", "response_length/mean", "actor/grad_norm"


def lines(key: str, values: list[float | None]) -> list[dict[str, Any]]:
    return [{"step": n} | ({} if v is None else {key: v}) for n, v in enumerate(values, start=1)]


@pytest.mark.parametrize(
    ("key", "values", "breach"),
    [
        (VAL, [0.5, 0.8, 0.6, 0.6], True),
        (VAL, [0.5, None, 0.8, None, 0.6, None, 0.6], True),  # not every step is validated
        (VAL, [0.5, 0.8, 0.6], False),  # once
        (VAL, [0.5, 0.8, 0.6, 0.75], False),
        (VAL, [0.5, 0.8, 0.6, 0.6, None], False),  # a breach is a validation's
        (NORM, [1, 1, 4, 4], False),
        (NORM, [1, 1, 5, 5], True),
        (NORM, [1, 1, 5], False),  # too short
        (NORM, [2, 2, 1, 1, 5, 5], False),  # it was higher before
        (NORM, [5, 5, 1, 1], False),
        (LENGTH, [5, 5, 1, 1], True),
        ("train/entropy", [5, 5, 0.1, 0.1], False),
        ("train/entropy", [0.1, 0.1, 0.9, 0.9], True),
        ("train/accuracy", [0.3, 0.3, 0, 0], True),
        ("train/accuracy", [0, 0, 0.3, 0.3, 0, 0], False),  # it was 0 before
        ("train/accuracy", [0.1, 0.1, 0.9, 0.9], False),  # a rise is wanted
        (NORM, [1, math.nan], True),
        (NORM, [0, 0, 0.02, 0.02], False),  # groups without a signal have no gradient
        (NORM, [], False),
    ],
)
def test_verdicts(key: str, values: list[float | None], breach: bool) -> None:
    result = verdict(lines(key, values), SETTINGS)
    assert bool(result) is breach and (key in (result or key))


def test_a_value_that_is_not_finite_is_null_on_record() -> None:
    line = metrics_line(2, {NORM: math.nan})
    assert NORM in (verdict([{"step": 1, NORM: 1.0}, line], SETTINGS) or "")


def test_a_single_step_is_no_breach() -> None:
    history = lines(NORM, [1, 1, 1, 1, 500, 1])
    assert verdict(history, {**SETTINGS, "window": 3}) is None
    assert verdict(history[:5], {**SETTINGS, "window": 1})


def test_the_remedy_forks_from_the_best_saved_step() -> None:
    history = lines(VAL, [0.5, 0.8, 0.6, 0.8])
    assert "--step 2 " in remedy("runs/a", history, [1, 2, 3, 4], 1e-4)
    assert (
        "lr=5e-05 " in (output := remedy("runs/a", history, [1, 3], 1e-4)) and "--step 3 " in output
    )
    assert "trainer.save_freq" in remedy("runs/a", history, [], 1e-4)


def test_a_dead_actor_is_named_and_a_new_one_is_accepted() -> None:
    answers = [{"queue", "worker_0"}, {"queue", "worker_0", "worker_1"}, None, {"queue"}]

    def named() -> set[str]:
        if (answer := answers.pop(0)) is None:
            raise RayError("the head has died")
        return answer

    alive = Liveness(named)
    assert [alive.gone() for _ in range(4)] == [[], [], [], ["worker_0", "worker_1"]]
