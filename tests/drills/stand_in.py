#!/usr/bin/env python3
"""Stands for the environment's Python in slurm.py: a training of one step a second.

It keeps recipe.train's contract with the job script: SIGTERM saves and ends with 75, the same
command goes on from the tracker.
"""

import os
import signal
import sys
import time
from pathlib import Path

STEPS, SAVE_EVERY = 150, 50


def main() -> int:
    run = Path(next(a.split("=", 1)[1] for a in sys.argv if a.startswith("recipe.run_dir=")))
    tracker = run / "checkpoints" / "latest_checkpointed_iteration.txt"
    tracker.parent.mkdir(parents=True, exist_ok=True)
    step = int(tracker.read_text()) if tracker.exists() else 0
    signals = []
    signal.signal(signal.SIGTERM, lambda *_: signals.append(1))
    with (run / "steps.txt").open("a") as log:
        print(f"start at {step} until {os.environ.get('RECIPE_DEADLINE')}", file=log)
        while step < STEPS:
            log.flush()
            if signals:
                tracker.write_text(str(step))
                print(f"saved {step} at a signal", file=log)
                return 75
            time.sleep(1)
            step += 1
            print(step, file=log)
            if step % SAVE_EVERY == 0:
                tracker.write_text(str(step))
    return 0


def hold(folder: str) -> int:
    """Lock a folder and hold it, or print the reason."""
    from prompt_aug.base import files

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
    if sys.argv[1] == "hold":
        sys.exit(hold(sys.argv[2]))
    if "-c" in sys.argv or "recipe.train" not in sys.argv:
        sys.exit(0)
    sys.exit(main())
