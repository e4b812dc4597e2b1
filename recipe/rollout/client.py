"""Client of the rollout servers: one slot at the load balancer and one call per group."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from ray.exceptions import RayError
from verl.workers.rollout.llm_server import LLMServerClient


class BatchingServer:
    """Handle of a server of `recipe.rollout.server` that sends concurrent requests as one call.

    Requests made in the same iteration of the event loop, such as the rollouts of a question, are
    one call; each gets its own answer. If the call fails, each request is sent once more in its own
    call, as in verl, so that only the failing ones fail.
    """

    def __init__(self, server: Any) -> None:
        self.server = server
        self.generate = self  # verl calls server.generate.remote(...)
        self._waiting: list[dict[str, Any]] = []
        self._call: asyncio.Task[list[Any]]

    async def remote(self, **request: Any) -> Any:
        if not self._waiting:  # the task begins in the next iteration
            self._call = asyncio.ensure_future(self._send())
        call, place = self._call, len(self._waiting)
        self._waiting.append(request)
        # Shielded: cancelling one request must not cancel those of the others.
        answer = (await asyncio.shield(call))[place]
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def _send(self) -> list[Any]:
        """A TokenOutput or an exception for each waiting request."""
        requests, self._waiting = self._waiting, []
        try:
            results = await self.server.generate_group.remote(requests)
        except asyncio.CancelledError as error:  # or each request would seem to be cancelled
            raise RuntimeError("the call to the rollout server was cancelled") from error
        except RayError:  # raised by one of the requests, or by the server
            calls = (self.server.generate.remote(**request) for request in requests)
            return await asyncio.gather(*calls, return_exceptions=True)
        if len(results) != len(requests):
            raise RuntimeError(
                f"a rollout server returned {len(results)} answers to {len(requests)} requests"
            )
        return results


Place = asyncio.Task[tuple[str, Any]]  # a server's id and its handle


class GroupedClient(LLMServerClient):
    """A client whose requests of one group share one slot at the load balancer, and one call.

    verl acquires and releases a server at the load balancer, a single actor, for every request,
    although all requests of a group get the same server. Inside `group` the first one acquires it
    for all: 2 calls for a group instead of 2 (N + 1) G. If the server supports it
    (`recipe.rollout.server`), requests go through a `BatchingServer`.

    Overrides of verl:
      __init__          copies a client that verl's manager made
      _acquire_server   returns the server of the group, if it has one
      _release_server   leaves the server of an open group to `group`
    """

    def __init__(self, client: LLMServerClient) -> None:
        # verl's trainer creates the client; no key sets its class.
        self.__dict__.update(vars(client))
        self._places: dict[str, Place | None] = {}  # of the open groups

    @contextmanager
    def group(self, request_id: str) -> Iterator[None]:
        """Context in which the requests of one id share a server; released at the end."""
        self._places[request_id] = None
        try:
            yield
        finally:
            if place := self._places.pop(request_id):
                place.add_done_callback(partial(self._release_group, request_id))

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        if request_id not in self._places:
            return await super()._acquire_server(request_id, **extra)
        place = self._places[request_id]
        if place is None or (place.done() and place.exception()):  # after an error: ask again
            place = asyncio.ensure_future(self._ask(request_id, extra))
            self._places[request_id] = place
        # Shielded: cancelling one request must not cancel the server of the others.
        return await asyncio.shield(place)

    async def _ask(self, request_id: str, extra: dict[str, Any]) -> tuple[str, Any]:
        name, server = await super()._acquire_server(request_id, **extra)
        return name, BatchingServer(server) if hasattr(server, "generate_group") else server

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        if request_id not in self._places:
            super()._release_server(server_id, request_id)

    def _release_group(self, request_id: str, place: Place) -> None:
        if not place.cancelled() and place.exception() is None:
            super()._release_server(place.result()[0], request_id)
