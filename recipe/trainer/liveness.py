"""Detect that Ray actors of a run have ended.

verl's trainer submits questions and then polls TransferQueue. If a rollout worker or a storage unit
of the queue has died, nothing arrives, and the watchdog (`recipe.run.stop`) would notice only after
``recipe.rollout.hang_seconds``, an hour. Ray reports the death within seconds, on any node.
"""

from collections.abc import Callable

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors

QUEUE = "transfer_queue"  # the namespace of TransferQueue's controller


def named_actors() -> set[str]:
    """Return the names of this run's live named actors, FSDP workers included."""
    own = {ray.get_runtime_context().namespace, QUEUE}
    return {a["name"] for a in list_named_actors(all_namespaces=True) if a["namespace"] in own}


class Liveness:
    """Remembers the named actors; `named` returns the live ones."""

    def __init__(self, named: Callable[[], set[str]] = named_actors) -> None:
        self.named = named
        self.actors: set[str] = set()

    def gone(self) -> list[str]:
        """Return the actors that have ended; [] if the query to Ray fails."""
        try:
            alive = self.named()
        except RayError:  # Ray's head has died: the launching process ends the run
            return []
        self.actors |= alive
        return sorted(self.actors - alive)
