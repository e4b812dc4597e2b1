"""One line per training step on the console, read from metrics.jsonl by the launching process."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import DictConfig
from tqdm import tqdm

from recipe.run import folder as run_folder


def describe(m: dict[str, Any]) -> str:
    """The line of one step."""
    parts = [
        f"reward {m.get('critic/score/mean', float('nan')):.3f}",
        f"accuracy {m.get('train/accuracy', float('nan')):.3f}",
        f"entropy {m.get('train/entropy', float('nan')):.3f}",
        f"length {m.get('response_length/mean', float('nan')):.0f}",
        f"no signal {m.get('train/no_signal_groups', float('nan')):.2f}",
        f"{m.get('timing_s/step', float('nan')):.1f} s",
    ]
    validation = [f"{k} {v:.3f}" for k, v in m.items() if k.startswith("val/") and "accuracy" in k]
    return f"step {m['step']}: " + ", ".join(parts + validation)


@contextlib.contextmanager
def follow(config: DictConfig) -> Iterator[None]:
    """Show the steps of the run while the body works, in a thread of this process."""
    run_dir, total = Path(config.recipe.run_dir), int(config.trainer.total_training_steps)
    stop = threading.Event()

    def show() -> None:
        shown = max((m["step"] for m in run_folder.read_metrics(run_dir)), default=0)
        with tqdm(total=total, initial=shown, desc="training", unit="step") as bar:
            bar.write("starting Ray, the actor and the engine ...")
            last = False
            while not last:
                last = stop.wait(1.0)
                for line in run_folder.read_metrics(run_dir):
                    if line["step"] == shown + 1:
                        shown += 1
                        bar.write(describe(line))
                        bar.update(1)

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
