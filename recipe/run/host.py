"""Free disk space and ports of this machine. Standard library only, because the doctor uses it."""

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
