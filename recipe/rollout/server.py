"""verl's vLLM server with a method for all rollouts of a question in one call.

verl sends every rollout as a separate Ray call; (N + 1) G of them carry almost the same bytes.
`recipe.rollout.client` sends concurrent ones as a single call. The task runner calls `register`,
since verl looks up the class of its replicas in that process.
"""

import asyncio
from typing import Any


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


def replicas() -> Any:
    """Return a factory of verl's vLLM replicas whose servers have `Grouping`; imports vLLM."""
    import ray
    from verl.workers.rollout.vllm_rollout.vllm_async_server import vLLMHttpServer, vLLMReplica

    # verl's class name, which Ray uses in log lines and process titles.
    server = ray.remote(type("vLLMHttpServer", (Grouping, vLLMHttpServer), {}))

    def replica(*args: Any, **kwargs: Any) -> Any:
        made = vLLMReplica(*args, **kwargs)
        made.server_class = server  # verl's __init__ sets its own class; servers are created later
        return made

    return replica


def register() -> None:
    """Register `replicas` with verl for ``actor_rollout_ref.rollout.name=vllm``."""
    from verl.workers.rollout.replica import RolloutReplicaRegistry

    RolloutReplicaRegistry.register("vllm", replicas)
