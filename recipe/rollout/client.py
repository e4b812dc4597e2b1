"""Client of the rollout servers: one slot at the load balancer and one call per group.

In an asynchronous mode verl's client sends an aborted request again, with the tokens generated so
far as a part of its prompt. Such a continuation gets another seed, since the engine would repeat
the random numbers of the first part.
"""

import asyncio
import copy
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import SimpleNamespace
from typing import Any

from ray.exceptions import RayError
from verl.workers.rollout.llm_server import LLMServerClient
from verl.workers.rollout.replica import TokenOutput

from recipe.rollout.agent_loop import rollout_seed

Part = tuple[int, int]  # the version of the weights and the number of tokens that they generated
# The parts of the request of this task, in order; a part ends when the request is aborted.
PARTS: ContextVar[list[Part] | None] = ContextVar("PARTS", default=None)


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
        parts = PARTS.get()
        done = sum(tokens for _, tokens in parts or ())
        sampling = request.get("sampling_params") or {}
        if done and sampling.get("seed") is not None:
            seed = rollout_seed(sampling["seed"], "continued", done)
            request["sampling_params"] = {**sampling, "seed": seed}
        if not self._waiting:  # the task begins in the next iteration
            self._call = asyncio.ensure_future(self._send())
        call, place = self._call, len(self._waiting)
        self._waiting.append(request)
        # Shielded: cancelling one request must not cancel those of the others.
        answer = (await asyncio.shield(call))[place]
        if isinstance(answer, BaseException):
            raise answer
        if parts is not None:
            parts.append((answer.extra_fields["global_steps"], len(answer.token_ids)))
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


class GroupBalancer:
    """Handle of verl's load balancer that gives the requests of an open group one server.

    verl acquires and releases a server at the load balancer, a single actor, for every request,
    although all requests of a group get the same server. Inside `group` the first one acquires it
    for all: 2 calls for a group instead of 2 (N + 1) G. If the server supports it
    (`recipe.rollout.server`), requests go through a `BatchingServer`.
    """

    def __init__(self, balancer: Any) -> None:
        self.balancer = balancer
        self.acquire_server = SimpleNamespace(remote=self._acquire)
        self.release_server = SimpleNamespace(remote=self._release)
        self.require_acquire_fields = balancer.require_acquire_fields
        self.require_release_fields = SimpleNamespace(remote=self._release_fields)
        self._passed_on: list[str] = []  # fields that verl's balancer reads at a release
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

    async def _release_fields(self) -> list[str]:
        self._passed_on = list(await self.balancer.require_release_fields.remote())
        return [*self._passed_on, "request_id"]  # by which `_release` finds the group

    async def _acquire(self, *, request_id: str, **fields: Any) -> tuple[str, Any]:
        if request_id not in self._places:
            return await self.balancer.acquire_server.remote(request_id=request_id, **fields)
        place = self._places[request_id]
        if place is None or (place.done() and place.exception()):  # after an error: ask again
            place = asyncio.ensure_future(self._ask(request_id, fields))
            self._places[request_id] = place
        # Shielded: cancelling one request must not cancel the server of the others.
        return await asyncio.shield(place)

    async def _ask(self, request_id: str, fields: dict[str, Any]) -> tuple[str, Any]:
        acquired = self.balancer.acquire_server.remote(request_id=request_id, **fields)
        name, server = await acquired
        return name, BatchingServer(server) if hasattr(server, "generate_group") else server

    def _release(self, *, server_id: str, request_id: str) -> None:
        if request_id not in self._places:  # else at the end of the group
            fields = {"request_id": request_id} if "request_id" in self._passed_on else {}
            self.balancer.release_server.remote(server_id=server_id, **fields)

    def _release_group(self, request_id: str, place: Place) -> None:
        if not place.cancelled() and place.exception() is None:
            self._release(server_id=place.result()[0], request_id=request_id)


class GroupedClient:
    """verl's client behind a `GroupBalancer`, which records the weights of each token.

    All requests go to `client`, so that the asynchronous one continues those that were aborted.
    """

    def __init__(self, client: LLMServerClient) -> None:
        self.client: Any = copy.copy(client)  # of the same class; verl has no key for its balancer
        self.balancer = GroupBalancer(self.client._load_balancer)
        self.client._load_balancer = self.balancer
        self.group = self.balancer.group

    async def generate(self, request_id: str, **request: Any) -> TokenOutput:
        """Return verl's output with ``versions`` in its extra fields; see `Part`."""
        parts: list[Part] = []
        before = PARTS.set(parts)
        try:
            output: TokenOutput = await self.client.generate(request_id, **request)
        finally:
            PARTS.reset(before)
        fields = output.extra_fields
        if not parts:  # a server without `generate_group`
            parts = [(fields.get("global_steps"), len(output.token_ids))]
        fields["versions"] = merged(parts)
        if fields["versions"]:  # verl also counts a part that was aborted before its first token
            fields["min_global_steps"] = fields["versions"][0][0]
            fields["max_global_steps"] = fields["versions"][-1][0]
        return output


def merged(parts: list[Part]) -> list[Part]:
    """Return the parts without empty ones, neighbors of one version as one part."""
    result: list[Part] = []
    for version, tokens in parts:
        if result and result[-1][0] == version:
            tokens += result.pop()[1]
        if tokens:
            result.append((version, tokens))
    return result
