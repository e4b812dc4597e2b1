"""Takes the lock of a folder and holds it, or says why not: `hold.py FOLDER yes|no` (flock)."""

import errno
import fcntl
import sys
import time
from pathlib import Path

from prompt_aug.base import files


def unsupported(*_: object) -> None:
    raise OSError(errno.ENOSYS, "not implemented")


def main(folder: str, flock: str) -> int:
    if flock == "no":
        fcntl.flock = unsupported  # type: ignore[assignment]
    try:
        held = files.lock(Path(folder))
    except files.InUseError as error:
        print(error, flush=True)
        return 1
    print("held", flush=True)
    time.sleep(240)
    held.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
