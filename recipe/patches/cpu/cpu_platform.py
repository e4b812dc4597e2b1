"""verl's platform interface over a CPU: one device, gloo, weights through shared memory."""

import contextlib
import os
import resource
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import psutil
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

from recipe.machine import environment


def _resident(*_: Any) -> int:
    return psutil.Process().memory_info().rss


def _peak_resident(*_: Any) -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _memory(*_: Any) -> tuple[int, int]:
    machine = psutil.virtual_memory()
    return machine.available, machine.total


def _nothing(*_: Any, **__: Any) -> None:
    """Stand in for a function that has no effect on a CPU."""


# Functions of torch.cuda that verl calls and torch.cpu lacks or defines differently. Memory figures
# are bytes of the process (resident set) or of the machine.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "current_device": lambda: "cpu",
    "device_count": lambda: 1,
    "empty_cache": _nothing,
    "get_device_name": lambda *_: "cpu",
    "get_rng_state": lambda *_: torch.get_rng_state(),
    "ipc_collect": _nothing,
    "is_available": lambda: True,
    "manual_seed": torch.manual_seed,
    "manual_seed_all": torch.manual_seed,
    "max_memory_allocated": _peak_resident,
    "max_memory_reserved": _peak_resident,
    "mem_get_info": _memory,
    "memory_allocated": _resident,
    "memory_reserved": _resident,
    "reset_peak_memory_stats": _nothing,
    "set_device": _nothing,
    "set_per_process_memory_fraction": _nothing,
    "set_rng_state": lambda state, *_: torch.set_rng_state(state),
    "synchronize": _nothing,
}


def _device_module() -> ModuleType:
    """``torch.cpu`` with the functions above, which verl uses as the torch module of its device."""
    module = ModuleType("recipe.patches.cpu.torch_cpu")
    own = {name: value for name, value in vars(torch.cpu).items() if not name.startswith("__")}
    vars(module).update(own | _FUNCTIONS)
    return module


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """One logical device "cpu"; in Ray it is the resource ``GPU``, which verl's check accepts.

    All but two of the methods implement verl's interface. Overrides of verl:
      is_platform_available   False: detection must not choose the CPU
      rollout_env_vars        the threads of the rollout server and its engine
    """

    device_name = "cpu"
    vendor_name = "generic"
    device_module = _device_module()

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False  # only VERL_PLATFORM=cpu chooses it

    def current_device(self) -> str:
        # An int would be read by `Module.to` as the index of an accelerator.
        return "cpu"

    def device_count(self) -> int:
        return 1

    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)
    set_device = synchronize = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = cudart = _nothing

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        # verl's vLLM server sets this variable; no library reads the name.
        return "VERL_CPU_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def ray_resource_name(self) -> str:
        return "GPU"

    def rollout_env_vars(self) -> dict[str, str]:
        threads = os.environ.get(environment.ENGINE_THREADS)
        return {"OMP_NUM_THREADS": threads} if threads else {}

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False  # verl then sends weights through shared memory, not CUDA IPC
