"""verl's vLLM server, asked for all rollouts of a question in one call.

verl sends every rollout as a Ray call of its own; (N + 1) G of them carry almost the same bytes.
`recipe.rollout.client` sends those that are asked for together as one. `register` is called by the
task runner, in whose process verl looks for the class of its replicas.
"""

import asyncio
import traceback
from typing import Any

from ray.exceptions import RayTaskError


class Grouping:
    """One method more for a server with verl's `generate`."""

    generate: Any

    async def generate_group(self, requests: list[dict[str, Any]]) -> list[Any]:
        """verl's `generate` for each of `requests`, its arguments by name, in their order.

        Comes back when the last of them has ended. In the place of one that failed is what Ray
        would have made of its exception, so that its neighbours' tokens are not lost.
        """
        return list(await asyncio.gather(*map(self._settled, requests)))

    async def _settled(self, request: dict[str, Any]) -> Any:
        try:
            return await self.generate(**request)
        except Exception as error:  # raised again by the client, in the rollout that it concerns
            return RayTaskError("generate", traceback.format_exc(), error)


def replicas() -> Any:
    """What makes verl's vLLM replicas, their servers with `Grouping`.

    vLLM is imported here and not above: this module is also read where there is none.
    """
    import ray
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

    server = ray.remote(type("GroupedServer", (Grouping, vLLMHttpServer), {}))

    def replica(*args: Any, **kwargs: Any) -> Any:
        made = vLLMReplica(*args, **kwargs)
        made.server_class = server  # verl's __init__ sets its own; servers are made later
        return made

    return replica


def register() -> None:
    """Make verl take `replicas` for ``actor_rollout_ref.rollout.name=vllm``."""
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register("vllm", replicas)
