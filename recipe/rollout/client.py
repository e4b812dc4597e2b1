"""verl's client of the rollout servers: one place at the load balancer and one call for a group."""

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from ray.exceptions import RayError
from verl.workers.rollout.llm_server import LLMServerClient


class Together:
    """The handle of a server of `recipe.rollout.server` as verl's client uses it.

    Requests that are made in one turn of the event loop, as the rollouts of a question are, go to
    the server in one call. Each has its own answer. Where the call fails each is made once more by
    itself, as verl makes it, so that its failure is its own.
    """

    def __init__(self, server: Any) -> None:
        self.server = server
        self.generate = self  # verl calls server.generate.remote(...)
        self._waiting: list[tuple[dict[str, Any], asyncio.Future[Any]]] = []
        self._calls: set[asyncio.Task[list[Any]]] = set()  # the event loop keeps no task alive

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
        # Callbacks come however the call ends: nobody is left waiting.
        call.add_done_callback(self._calls.discard)
        call.add_done_callback(partial(_deliver, [answer for _, answer in asked]))

    async def _results(self, requests: list[dict[str, Any]]) -> list[Any]:
        """A TokenOutput or an exception for each of `requests`."""
        try:
            results = await self.server.generate_group.remote(requests)
        except RayError:  # of one of them, or of the server
            calls = (self.server.generate.remote(**request) for request in requests)
            return await asyncio.gather(*calls, return_exceptions=True)
        if len(results) != len(requests):
            raise RuntimeError(f"a rollout server gave {len(results)} answers to {len(requests)}")
        return list(results)


def _deliver(answers: list[asyncio.Future[Any]], call: asyncio.Task[list[Any]]) -> None:
    """Give what `call` has ended with to those who wait for `answers`."""
    given_up = RuntimeError("the call to the rollout server was given up")
    error = given_up if call.cancelled() else call.exception()
    results = [error] * len(answers) if error else call.result()
    for answer, result in zip(answers, results, strict=True):
        if answer.done():  # cancelled
            continue
        if isinstance(result, BaseException):
            answer.set_exception(result)
        else:
            answer.set_result(result)


@dataclass(slots=True)
class Held:
    """The server of a group, and how many of the group's requests use it now."""

    server: asyncio.Task[Any]  # of (server id, actor handle)
    requests: int = 0


class GroupedClient(LLMServerClient):
    """A client whose requests of one group share one place at the load balancer, and one call.

    verl asks its load balancer, one actor for all servers, for a server before every request and
    tells it of every end. The requests of a group get the same server anyway, by their common id:
    here the first one asks and the last one tells, 2 calls for a group in place of 2 (N + 1) G. The
    balancer then counts open groups instead of open requests; groups are of one size. Where the
    server can take them (`recipe.rollout.server`) the requests go to it `Together`.

    Overrides of verl:
      __init__          takes over a client as verl's manager has made it
      _acquire_server   the server that the group holds, if it holds one
      _release_server   after the last of the group's open requests
    """

    def __init__(self, client: LLMServerClient) -> None:
        # verl's trainer asks for a client without naming a class, and no key names one.
        self.__dict__.update(vars(client))
        self._held: dict[str, Held] = {}

    async def _acquire_server(self, request_id: str, **extra: Any) -> tuple[str, Any]:
        held = self._held.get(request_id)
        if held is None:
            asked = asyncio.ensure_future(self._ask(super()._acquire_server(request_id, **extra)))
            held = self._held[request_id] = Held(asked)
        held.requests += 1
        try:
            # Shielded: a request that is cancelled must not take the server from the others.
            return cast(tuple[str, Any], await asyncio.shield(held.server))
        except BaseException:
            if self._drop(request_id, held):  # nobody waits any more: an answer is given back
                held.server.add_done_callback(partial(self._give_back, request_id))
            raise

    async def _ask(self, place: Awaitable[tuple[str, Any]]) -> tuple[str, Any]:
        name, server = await place
        return name, Together(server) if hasattr(server, "generate_group") else server

    def _give_back(self, request_id: str, server: asyncio.Task[Any]) -> None:
        if not server.cancelled() and server.exception() is None:
            super()._release_server(server.result()[0], request_id)

    def _release_server(self, server_id: str, request_id: str | None = None) -> None:
        held = self._held[cast(str, request_id)]
        if self._drop(cast(str, request_id), held):
            super()._release_server(server_id, request_id)

    def _drop(self, request_id: str, held: Held) -> bool:
        """One request less; whether that was the last one, after which the group asks again."""
        held.requests -= 1
        if held.requests == 0:
            del self._held[request_id]
        return held.requests == 0
