"""Transfer of weights to engines with GPUs of their own, by gloo; verl's transports need a GPU."""

import json
import os
from collections.abc import AsyncIterator, Iterable
from datetime import timedelta
from typing import Any

import ray
import torch
from torch.distributed import ProcessGroupGloo, TCPStore
from verl.checkpoint_engine import CheckpointEngine, CheckpointEngineRegistry
from verl.utils.torch_dtypes import PrecisionType

BACKEND = "gloo"
LARGE = 2**20  # elements; a smaller tensor, as the gate of a mixture, may be float32 in the engine
TIMEOUT = timedelta(minutes=10)


@CheckpointEngineRegistry.register(BACKEND)
class GlooCheckpointEngine(CheckpointEngine):
    """Broadcasts each tensor from the actor's first rank (group rank 0) to all engine workers.

    Works on any device: tensors pass through the memory of the CPU, one at a time. Their names,
    shapes and dtypes are in the store of the group, which lives for one transfer. The other ranks
    of the actor only take part in gathering the sharded weights; their group rank is -1. Large
    tensors are rounded to the engine's `dtype` here, which halves the bytes, not in the engine.
    """

    def __init__(self, bucket_size: int, is_master: bool = False, dtype: str = "float32") -> None:
        self.is_master = is_master
        self.dtype: torch.dtype = PrecisionType.to_dtype(dtype)
        self.store: TCPStore
        self.group: ProcessGroupGloo | None = None
        self.rank = -1

    def prepare(self) -> dict[str, Any]:
        """Return the address of a new store, which the first rank serves; {} elsewhere."""
        if not self.is_master:
            return {}
        host = ray.util.get_node_ip_address()
        self.store = TCPStore(host, 0, is_master=True, wait_for_workers=False, timeout=TIMEOUT)
        return {"host": host, "port": self.store.port}

    @classmethod
    def build_topology(
        cls, actor_wg_world_size: int, rollout_world_size: int, metadata: list[dict]
    ) -> tuple[dict[str, list[Any]], dict[str, list[Any]]]:
        def arguments(ranks: list[int]) -> dict[str, list[Any]]:
            count = len(ranks)
            return {
                "rank": ranks,
                "world_size": [1 + rollout_world_size] * count,
                "address": [metadata[0]] * count,
            }

        senders = [0] + [-1] * (actor_wg_world_size - 1)
        return arguments(senders), arguments(list(range(1, 1 + rollout_world_size)))

    def init_process_group(self, rank: int, world_size: int, address: dict[str, Any]) -> None:
        self.rank = rank
        if rank < 0:
            return
        if rank:
            self.store = TCPStore(address["host"], address["port"], timeout=TIMEOUT)
        if os.environ.get("GLOO_SOCKET_IFNAME"):
            self.group = ProcessGroupGloo(self.store, rank, world_size, TIMEOUT)
            return
        # Ray's address of this node. Gloo's default is the host name, perhaps the loopback's.
        device = ProcessGroupGloo.create_device(hostname=ray.util.get_node_ip_address())
        options = ProcessGroupGloo._Options()
        options._timeout, options._devices = TIMEOUT, [device]
        self.group = ProcessGroupGloo(self.store, rank, world_size, options)

    def finalize(self) -> None:
        self.group = None
        self.__dict__.pop("store", None)

    async def send_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], global_steps: int | None = None
    ) -> None:
        count = 0
        for count, (name, tensor) in enumerate(weights, start=1):
            if self.group:
                large = tensor.numel() >= LARGE and tensor.is_floating_point()
                shorter = large and tensor.itemsize > self.dtype.itemsize
                sent = tensor.detach().to(self.dtype if shorter else tensor.dtype)
                meta = [name, list(sent.shape), str(sent.dtype).removeprefix("torch.")]
                self.store.set(str(count), json.dumps(meta))
                self._broadcast(sent.cpu().contiguous())
        if self.group:
            self.store.set(str(count + 1), json.dumps(None))
            # The store ends with this process's group: wait until every receiver has read the end.
            self.group.barrier().wait()

    async def receive_weights(
        self, global_steps: int | None = None
    ) -> AsyncIterator[tuple[str, torch.Tensor]]:
        assert self.group
        count = 1
        while meta := json.loads(self.store.get(str(count))):
            name, shape, dtype = meta
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            self._broadcast(tensor)
            yield name, tensor
            count += 1
        self.group.barrier().wait()

    def _broadcast(self, tensor: torch.Tensor) -> None:
        """Broadcast its bytes, since gloo lacks bfloat16 and float8."""
        assert self.group
        if tensor.numel():
            self.group.broadcast(tensor.view(-1).view(torch.uint8), 0).wait()
