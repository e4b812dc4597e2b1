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


def _always(value: Any = None) -> Callable[..., Any]:
    """Return a function, or method, that ignores its arguments and returns `value`."""
    return lambda *_, **__: value


_nothing = _always()  # a function that has no effect on a CPU


# Functions of torch.cuda that verl calls and torch.cpu lacks or defines differently. Memory figures
# are bytes of the process (resident set) or of the machine.
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "current_device": lambda: "cpu",
    "device_count": lambda: 1,
    "get_device_name": lambda *_: "cpu",
    "get_rng_state": lambda *_: torch.get_rng_state(),
    "is_available": lambda: True,
    "mem_get_info": _memory,
    "set_rng_state": lambda state, *_: torch.set_rng_state(state),
    **dict.fromkeys(("manual_seed", "manual_seed_all"), torch.manual_seed),
    **dict.fromkeys(("max_memory_allocated", "max_memory_reserved"), _peak_resident),
    **dict.fromkeys(("memory_allocated", "memory_reserved"), _resident),
    **dict.fromkeys(("empty_cache", "ipc_collect", "reset_peak_memory_stats"), _nothing),
    **dict.fromkeys(("set_device", "set_per_process_memory_fraction", "synchronize"), _nothing),
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

    is_available = _always(True)
    is_platform_available = _always(False)  # only VERL_PLATFORM=cpu chooses it
    current_device = _always("cpu")  # `Module.to` would read an int as an accelerator's index
    device_count = _always(1)
    manual_seed = manual_seed_all = staticmethod(torch.manual_seed)
    set_device = synchronize = set_allocator_settings = empty_cache = _nothing
    profiler_start = profiler_stop = cudart = _nothing
    get_device_capability = _always((None, None))
    communication_backend_name = _always("gloo")
    # verl's vLLM server sets this variable; no library reads the name.
    visible_devices_envvar = _always("VERL_CPU_VISIBLE_DEVICES")
    ray_resource_name = _always("GPU")
    is_ipc_supported = _always(False)  # verl then sends weights through shared memory, not CUDA IPC

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def rollout_env_vars(self) -> dict[str, str]:
        threads = os.environ.get(environment.ENGINE_THREADS)
        return {"OMP_NUM_THREADS": threads} if threads else {}

    def ray_noset_envvars(self) -> list[str]:
        return []
