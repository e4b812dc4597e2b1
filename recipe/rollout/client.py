"""Client of the rollout servers: one slot at the load balancer and one call per group."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

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
        self._waiting: list[tuple[dict[str, Any], asyncio.Future[Any]]] = []
        self._calls: set[asyncio.Task[list[Any]]] = set()  # the event loop keeps weak references

    def remote(self, **request: Any) -> asyncio.Future[Any]:
        loop = asyncio.get_running_loop()
        if not self._waiting:
            loop.call_soon(self._send)
        answer: asyncio.Future[Any] = loop.create_future()
        self._waiting.append((request, answer))
        return answer

    def _send(self) -> None:
        asked, self._waiting = self._waiting, []
        self._calls.add(call := asyncio.ensure_future(self._results([r for r, _ in asked])))
        # Callbacks run however the call ends, so every request gets an answer.
        call.add_done_callback(self._calls.discard)
        call.add_done_callback(partial(_deliver, [answer for _, answer in asked]))

    async def _results(self, requests: list[dict[str, Any]]) -> list[Any]:
        """A TokenOutput or an exception for each of `requests`."""
        try:
            results = await self.server.generate_group.remote(requests)
        except RayError:  # raised by one of the requests, or by the server
            calls = (self.server.generate.remote(**request) for request in requests)
            return await asyncio.gather(*calls, return_exceptions=True)
        if len(results) != len(requests):
            raise RuntimeError(
                f"a rollout server returned {len(results)} answers to {len(requests)} requests"
            )
        return list(results)


def _deliver(answers: list[asyncio.Future[Any]], call: asyncio.Task[list[Any]]) -> None:
    """Set the result or the exception of `call` on each of `answers`."""
    cancelled = RuntimeError("the call to the rollout server was cancelled")
    error = cancelled if call.cancelled() else call.exception()
    results = [error] * len(answers) if error else call.result()
    for answer, result in zip(answers, results, strict=True):
        if answer.done():  # cancelled
            continue
        if isinstance(result, BaseException):
            answer.set_exception(result)
        else:
            answer.set_result(result)


@dataclass(slots=True)
class GroupServer:
    """The server of a group, and the number of the group's running requests."""

    server: asyncio.Task[Any]  # of (server id, actor handle)
    requests: int = 0


class GroupedClient(LLMServerClient):
    """A client whose requests of one group share one slot at the load balancer, and one call.

    verl acquires and releases a server at the load balancer, a single actor, for every request,
    although all requests of a group get the same server. Here the first one acquires it and the
    last one releases it: 2 calls for a group instead of 2 (N + 1) G. If the server supports it
    (`recipe.rollout.server`), requests go through a `BatchingServer`.

    Overrides of verl:
      __init__          copies a client that verl's manager made
      _acquire_server   returns the server of the group, if it has one
      _release_server   releases it after the last of the group's open requests
    """

    def __init__(self, client: LLMServerClient) -> None:
        # verl's trainer creates the client; no key sets its class.
        self.__dict__.update(vars(client))
        self._held: dict[str, GroupServer] = {}

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        held = self._held.get(request_id)
        if held is None:
            asked = asyncio.ensure_future(self._ask(super()._acquire_server(request_id, **extra)))
            held = self._held[request_id] = GroupServer(asked)
        held.requests += 1
        try:
            # Shielded: cancelling one request must not cancel the server of the others.
            return cast(tuple[str, Any], await asyncio.shield(held.server))
        except BaseException:
            if self._drop(request_id, held):  # no request is left: release the server on arrival
                held.server.add_done_callback(partial(self._release_late, request_id))
            raise

    async def _ask(self, place: Awaitable[tuple[str, Any]]) -> tuple[str, Any]:
        name, server = await place
        return name, BatchingServer(server) if hasattr(server, "generate_group") else server

    def _release_late(self, request_id: str, server: asyncio.Task[Any]) -> None:
        if not server.cancelled() and server.exception() is None:
            super()._release_server(server.result()[0], request_id)

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        held = self._held[cast(str, request_id)]
        if self._drop(cast(str, request_id), held):
            super()._release_server(server_id, request_id)

    def _drop(self, request_id: str, held: GroupServer) -> bool:
        """Subtract one request; return True for the last one, which ends the group's hold."""
        held.requests -= 1
        if held.requests == 0:
            del self._held[request_id]
        return held.requests == 0
