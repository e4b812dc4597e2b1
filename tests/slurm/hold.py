"""Lock a folder and hold it, or print the reason: `hold.py FOLDER`."""

import sys
import time
from pathlib import Path

from prompt_aug.base import files


def main(folder: str) -> int:
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
