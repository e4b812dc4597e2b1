"""verl's vLLM server, asked for all rollouts of a question in one call.

verl sends every rollout as a Ray call of its own; (N + 1) G of them carry almost the same bytes.
`recipe.rollout.client` sends those that are asked for together as one. `register` is called by the
task runner, in whose process verl looks for the class of its replicas.
"""

import asyncio
from typing import Any


class Grouping:
    """One method more for a server with verl's `generate`."""

    generate: Any

    async def generate_group(self, requests: list[dict[str, Any]]) -> list[Any]:
        """verl's `generate` for each of `requests`, its arguments by name, in their order.

        Comes back, or raises what the first of them raised, when the last of them has ended: none
        is left with the engine.
        """
        calls = (self.generate(**_own(request)) for request in requests)
        results = await asyncio.gather(*calls, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results


def _own(request: dict[str, Any]) -> dict[str, Any]:
    """A request with dicts of its own: verl's `generate` takes entries out of sampling_params.

    What was one object for several requests still is when they have come here in one call of Ray.
    """
    return {k: dict(v) if isinstance(v, dict) else v for k, v in request.items()}


def replicas() -> Any:
    """What makes verl's vLLM replicas, their servers with `Grouping`.

    vLLM is imported here and not above: this module is also read where there is none.
    """
    import ray
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

    # verl's name: Ray puts it before what a server prints, and into the title of its process.
    server = ray.remote(type("vLLMHttpServer", (Grouping, vLLMHttpServer), {}))

    def replica(*args: Any, **kwargs: Any) -> Any:
        made = vLLMReplica(*args, **kwargs)
        made.server_class = server  # verl's __init__ sets its own; servers are made later
        return made

    return replica


def register() -> None:
    """Make verl take `replicas` for ``actor_rollout_ref.rollout.name=vllm``."""
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register("vllm", replicas)
