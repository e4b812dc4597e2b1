"""verl's vLLM server with a method for all rollouts of a question in one call, without HTTP.

verl sends every rollout as a separate Ray call; (N + 1) G of them carry almost the same bytes.
`recipe.rollout.client` sends concurrent ones as a single call. The task runner calls `register`,
since verl looks up the class of its replicas in that process.
"""

import asyncio
from typing import Any

LOOPBACK = "127.0.0.1"
CLOSED = "recipe.rollout.server: this engine serves a training only.\n"


class Grouping:
    """Adds `generate_group` to a server with verl's `generate`."""

    generate: Any

    async def generate_group(self, requests: list[dict[str, Any]]) -> list[Any]:
        """Call verl's `generate` for each; when all have ended, return or raise the first error."""
        # Copies: verl's `generate` pops entries of sampling_params, a dict that may be shared.
        copies = (
            {k: dict(v) if isinstance(v, dict) else v for k, v in request.items()}
            for request in requests
        )
        calls = (self.generate(**request) for request in copies)
        results = await asyncio.gather(*calls, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results


class Closed:
    """Closes the HTTP API of verl's server: training does not use it, but other users could.

    Overrides of verl:
      run_server   listens on the loopback address and rejects requests
    """

    config: Any
    _server_address: str

    async def run_server(self, args: Any) -> None:
        address = self._server_address
        if not self.config.prometheus.enable:  # which reads /metrics, perhaps on another node
            self._server_address = LOOPBACK
        args.middleware = [*args.middleware, f"{Rejecting.__module__}.{Rejecting.__name__}"]
        await super().run_server(args)  # type: ignore[misc]
        self._server_address = address  # with the port, verl's name of the server in the cluster


class Rejecting:
    """ASGI middleware that answers 403 to everything but ``/metrics``."""

    def __init__(self, app: Any) -> None:
        self.app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        from starlette.responses import PlainTextResponse

        allowed = scope["type"] == "lifespan" or scope["path"] == "/metrics"
        await (self.app if allowed else PlainTextResponse(CLOSED, 403))(scope, receive, send)


def replicas() -> Any:
    """Return a factory of verl's vLLM replicas with `Grouping` and `Closed`; imports vLLM."""
    import ray
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

    # verl's class name, which Ray uses in log lines and process titles.
    server = ray.remote(type("vLLMHttpServer", (Grouping, Closed, vLLMHttpServer), {}))

    def replica(*args: Any, **kwargs: Any) -> Any:
        made = vLLMReplica(*args, **kwargs)
        made.server_class = server  # verl's __init__ sets its own class; servers are created later
        return made

    return replica


def register() -> None:
    """Register `replicas` with verl for ``actor_rollout_ref.rollout.name=vllm``."""
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register("vllm", replicas)
