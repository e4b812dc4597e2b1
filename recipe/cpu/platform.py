"""verl's platform interface over a CPU: one device, gloo, weights through shared memory."""

import contextlib
import resource
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import psutil
import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry


def _device_module() -> ModuleType:
    """``torch.cpu`` with what verl calls on ``torch.cuda`` and ``torch.cpu`` does not have.

    Memory figures are those of the process (resident set, bytes) and of the machine.
    """
    module = ModuleType("recipe.cpu.torch_cpu")
    for name in dir(torch.cpu):
        if not name.startswith("__"):
            setattr(module, name, getattr(torch.cpu, name))

    def resident(*_: Any) -> int:
        return psutil.Process().memory_info().rss

    def peak_resident(*_: Any) -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def memory(*_: Any) -> tuple[int, int]:
        machine = psutil.virtual_memory()
        return machine.available, machine.total

    def nothing(*_: Any) -> None:
        return None

    functions = {
        "current_device": lambda: "cpu",
        "device_count": lambda: 1,
        "get_device_name": lambda *_: "cpu",
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": lambda state, *_: torch.set_rng_state(state),
        "is_available": lambda: True,
        "manual_seed": torch.manual_seed,
        "manual_seed_all": torch.manual_seed,
        "max_memory_allocated": peak_resident,
        "max_memory_reserved": peak_resident,
        "mem_get_info": memory,
        "memory_allocated": resident,
        "memory_reserved": resident,
    }
    unused = (
        "empty_cache ipc_collect reset_peak_memory_stats set_device "
        "set_per_process_memory_fraction synchronize"
    )
    for name in unused.split():
        functions[name] = nothing
    for name, function in functions.items():
        setattr(module, name, function)
    return module


@PlatformRegistry.register(platform="cpu")
class PlatformCPU(PlatformBase):
    """One logical device "cpu"; Ray books it as the resource ``GPU``, which verl's check knows."""

    device_name = "cpu"
    vendor_name = "generic"
    device_module = _device_module()

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False  # never chosen by detection, only by VERL_PLATFORM=cpu

    def current_device(self) -> str:
        # An int would be read by `Module.to` as the index of an accelerator.
        return "cpu"

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        return None

    def synchronize(self, device_index: int | None = None) -> None:
        return None

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        return None

    def empty_cache(self) -> None:
        return None

    def get_device_capability(self, device_index: int = 0) -> tuple[int | None, int | None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "VERL_CPU_VISIBLE_DEVICES"

    @contextlib.contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        return None

    def profiler_stop(self) -> None:
        return None

    def ray_resource_name(self) -> str:
        return "GPU"

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> Any:
        return None
