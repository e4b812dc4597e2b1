"""What this machine has for a run: room on its disk, a port.

Standard library only: the doctor asks where everything else may be broken.
"""

import shutil
import socket
from pathlib import Path

from prompt_aug.base.places import nearest

PORT_REMEDY = "stop what holds the ports, or widen net.ipv4.ip_local_port_range"


def free_gib(folder: Path) -> float:
    """GiB free on the disk on which `folder` is or would be made."""
    return shutil.disk_usage(nearest(folder)).free / 2**30


def free_port() -> int:
    """A TCP port of 127.0.0.1 that is free now; OSError where there is none."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
