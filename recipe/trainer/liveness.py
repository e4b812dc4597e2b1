"""Whether the actors of a run are alive, asked while the trainer waits for them.

verl's trainer sends questions off and then looks into TransferQueue. Where a rollout worker or a
storage unit of the queue has died, nothing arrives: the watchdog would notice after
``recipe.rollout.hang_seconds``, an hour. Ray knows within seconds, on any node.
"""

import time
from collections.abc import Callable

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors

from recipe.errors import LostEngineError

EVERY = 10.0  # seconds between two questions to Ray
QUEUE = "transfer_queue"  # the namespace of TransferQueue's controller


def named_actors() -> set[str]:
    """The names of this run's live actors: all but FSDP's workers, whose calls are waited for."""
    own = {ray.get_runtime_context().namespace, QUEUE}
    return {a["name"] for a in list_named_actors(all_namespaces=True) if a["namespace"] in own}


class Liveness:
    """Which named actors have ended.

    `named` gives the names of the live ones, `clock` seconds.
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
        """Those that have ended; Ray is asked every `EVERY` seconds, [] where it cannot answer."""
        if self.clock() >= self.next:
            self.next = self.clock() + EVERY
            try:
                self.alive = self.named()
            except RayError:  # its head is gone: the launching process ends the run
                return []
            self.known |= self.alive
        return sorted(self.known - self.alive)

    def look(self) -> None:
        """Raises LostEngineError where one has ended."""
        if gone := self.gone():
            raise LostEngineError(
                f"{', '.join(gone)} ended in the middle of a step: killed, perhaps for lack of "
                "memory, or crashed"
            )
