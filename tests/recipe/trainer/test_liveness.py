"""The death of an actor ends the wait for its rollouts."""

import pytest

from recipe.errors import LostEngineError
from recipe.trainer.liveness import EVERY, Liveness


def test_a_dead_actor_is_named_and_a_new_one_is_accepted() -> None:
    answers = [{"queue", "worker_0"}, {"queue", "worker_0", "worker_1"}, {"queue", "worker_1"}]
    now = [0.0]
    alive = Liveness(named=lambda: answers.pop(0), clock=lambda: now[0])
    alive.require_all()
    now[0] = EVERY - 0.1
    alive.require_all()  # too early for the next query
    assert len(answers) == 2
    now[0] = EVERY
    alive.require_all()
    now[0] = 2 * EVERY
    with pytest.raises(LostEngineError, match=r"^worker_0 ended in the middle of a step"):
        alive.require_all()
