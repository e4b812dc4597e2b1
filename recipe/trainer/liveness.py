"""Check that the Ray actors of a run are alive while the trainer waits for them.

verl's trainer submits questions and then polls TransferQueue. If a rollout worker or a storage unit
of the queue has died, nothing arrives, and the watchdog would notice only after
``recipe.rollout.hang_seconds``, an hour. Ray reports the death within seconds, on any node.
"""

import time
from collections.abc import Callable

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors

from recipe.errors import LostEngineError

EVERY = 10.0  # seconds between two queries to Ray
QUEUE = "transfer_queue"  # the namespace of TransferQueue's controller


def named_actors() -> set[str]:
    """Return the names of this run's live named actors, FSDP workers included."""
    own = {ray.get_runtime_context().namespace, QUEUE}
    return {a["name"] for a in list_named_actors(all_namespaces=True) if a["namespace"] in own}


class Liveness:
    """Detects named actors that have ended.

    `named` returns the names of the live ones, `clock` seconds.
    """

    def __init__(
        self,
        named: Callable[[], set[str]] = named_actors,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.named, self.clock = named, clock
        self.known: set[str] = set()
        self.alive: set[str] = set()
        self.next = clock()

    def gone(self) -> list[str]:
        """Return the actors that have ended, by a query every `EVERY` seconds; [] if it fails."""
        if self.clock() >= self.next:
            self.next = self.clock() + EVERY
            try:
                self.alive = self.named()
            except RayError:  # Ray's head has died: the launching process ends the run
                return []
            self.known |= self.alive
        return sorted(self.known - self.alive)

    def require_all(self) -> None:
        """Raise LostEngineError if an actor has ended."""
        if gone := self.gone():
            raise LostEngineError(
                f"{', '.join(gone)} ended in the middle of a step: killed, perhaps for lack of "
                "memory, or crashed. See logs/train.log."
            )
