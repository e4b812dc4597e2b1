"""GPUs, disk space, Ray, and the path of the code of this machine.

Standard library only, because the doctor uses it.
"""

import functools
import os
import shutil
import socket
import subprocess
from pathlib import Path

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


@functools.cache
def compute_capability() -> float | None:
    """Return the lowest compute capability of this machine's GPUs (Hopper: 9.0), None without."""
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
        return min(map(float, done.stdout.split()), default=None)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


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
