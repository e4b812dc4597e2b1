"""Checks of writable folders. Standard library only, for the doctor on a broken installation."""

import tempfile
from pathlib import Path


def nearest(folder: Path) -> Path:
    """Return `folder`, or its nearest parent that exists, where it would be created."""
    folder = folder.absolute()
    return next(place for place in (folder, *folder.parents) if place.exists())


def unwritable(folder: Path) -> str | None:
    """Return why no file can be written to `folder` or its `nearest` parent; None if one can.

    Writes an unnamed file, because permissions do not show a quota or, to root, a read-only disk.
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
