"""Where files can be written. Standard library only: the doctor runs where all else is broken."""

import tempfile
from pathlib import Path


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
