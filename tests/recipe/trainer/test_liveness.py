"""Actors that have ended are named, and new ones are accepted."""

from ray.exceptions import RayError

from recipe.trainer.liveness import Liveness


def test_a_dead_actor_is_named_and_a_new_one_is_accepted() -> None:
    answers = [{"queue", "worker_0"}, {"queue", "worker_0", "worker_1"}, None, {"queue"}]

    def named() -> set[str]:
        if (answer := answers.pop(0)) is None:
            raise RayError("the head has died")
        return answer

    alive = Liveness(named)
    assert [alive.gone() for _ in range(4)] == [[], [], [], ["worker_0", "worker_1"]]
