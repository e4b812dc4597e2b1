"""What this machine has for a run: a folder that takes files, room in it, a port.

Standard library only: the doctor asks where everything else may be broken.
"""

import shutil
import socket
import tempfile
from pathlib import Path

PORT_REMEDY = "stop what holds the ports, or widen net.ipv4.ip_local_port_range"


def nearest(folder: Path) -> Path:
    """`folder`, or the nearest one above it that is there: where it would be made."""
    folder = folder.absolute()
    return next(place for place in (folder, *folder.parents) if place.exists())


def unwritable(folder: Path) -> str | None:
    """Why `folder`, or where it would be made, takes no file; None: it does.

    Tried with a file that has no name: permissions alone do not show a quota, nor, to root, a disk
    mounted to be read.
    """
    place = nearest(folder)
    if not place.is_dir():
        return f"{place} is a file"
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"x" * 4096)
    except PermissionError:
        return "no permission"
    except OSError as error:
        return error.strerror or str(error)
    return None


def free_gib(folder: Path) -> float:
    """GiB free on the disk on which `folder` is or would be made."""
    return shutil.disk_usage(nearest(folder)).free / 2**30


def free_port() -> int:
    """A TCP port of 127.0.0.1 that is free now; OSError where there is none."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
