"""Checks of folders and the hub. Standard library only, for the doctor on a broken installation."""

import tempfile
import threading
import urllib.error
import urllib.request
from pathlib import Path

HUB_SECONDS = 3.0  # without a response the hub counts as unreachable


def nearest(folder: Path) -> Path:
    """Return `folder`, or its nearest parent that exists, where it would be created."""
    folder = folder.absolute()
    return next(place for place in (folder, *folder.parents) if place.exists())


def unwritable(folder: Path) -> str | None:
    """Return why no file can be written to `folder` or its `nearest` parent; None if one can."""
    place = nearest(folder)
    if not place.is_dir():
        return f"{place} is a file"
    try:  # permissions alone do not tell: root has all of them, on a read-only disk, too
        tempfile.TemporaryFile(dir=place).close()
    except OSError as error:
        return f"{place}: {error.strerror}"
    return None


def hub_answers(endpoint: str) -> bool:
    """Return whether `endpoint` responds in time, through a proxy if one is set."""
    answered = threading.Event()

    def ask() -> None:
        request = urllib.request.Request(endpoint, method="HEAD")
        try:
            with urllib.request.urlopen(request, timeout=HUB_SECONDS):
                answered.set()
        except urllib.error.HTTPError:  # a response too, such as "not allowed"
            answered.set()
        except (OSError, ValueError):
            pass

    # In a thread, because a name lookup has no time limit.
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(HUB_SECONDS)
    return answered.is_set()
