"""GPUs, disk space and ports of this machine. Standard library only: the doctor uses it."""

import os
import shutil
import socket
from pathlib import Path

from prompt_aug.base.places import nearest

PORT_REMEDY = "stop what holds the ports, or widen net.ipv4.ip_local_port_range"


def free_gib(folder: Path) -> float:
    """Return the GiB free on the disk on which `folder` is or would be made."""
    return shutil.disk_usage(nearest(folder)).free / 2**30


def free_port() -> int:
    """Return a TCP port of 127.0.0.1 that is free now; raises OSError if there is none."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def gpus_here() -> int:
    """Return the number of NVIDIA GPUs that CUDA would show, without importing torch."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip() not in ("", "-1")])
    return len([path for path in Path("/dev").glob("nvidia*") if path.name[6:].isdigit()])
