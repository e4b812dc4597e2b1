"""Processes of a sweep: its workers, one per engine, and the export of the next checkpoints."""

import argparse
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from prompt_aug.base.errors import UsageError
from prompt_aug.base.files import InUseError, lock
from recipe.machine.host import gpus_here
from recipe.run import processes
from recipe.run.folder import RunFolder

COMMAND = (sys.executable, "-m", "eval.sweep")


def start(options: argparse.Namespace, arguments: Sequence[str]) -> None:
    """Run --workers to their end, each with its own GPUs; the caller completes what they leave.

    Without --workers: as many as the GPUs of a SLURM job allow, else the caller alone.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus_here()))))
    gpus = [name for name in visible.split(",") if name.strip() not in ("", "-1")]
    gpus, each = gpus if gpus_here() else [], options.tensor_parallel or 1
    count = options.workers or max(1, len(gpus) // each if "SLURM_JOB_ID" in os.environ else 1)
    if count * each > len(gpus) and (gpus or each > 1):  # vLLM would wait for them forever
        raise UsageError(
            f"--workers={count} --tensor-parallel={each}: need {count * each} GPUs, this machine "
            f"shows {len(gpus)}. Use less, or check CUDA_VISIBLE_DEVICES."
        )
    if count == 1:
        return
    mark, running = f"eval.sweep {secrets.token_hex(8)}", []
    with processes.start_reaper(mark):  # ends them and their engines if this process is killed
        for number in range(count):
            own = ",".join(gpus[number * each :][:each])
            variables = {processes.MARK: mark} | ({"CUDA_VISIBLE_DEVICES": own} if own else {})
            command = [*COMMAND, *arguments, f"--worker={number}/{count}"]
            running.append(subprocess.Popen(command, env=os.environ | variables))
        failed = [code for worker in running if (code := worker.wait())]
    if failed:
        print(f"note: {len(failed)} of {count} workers failed (exit codes {failed}), see above")


def exports(run: Path, steps: Sequence[int] | None) -> Iterator[int | None]:
    """Run `recipe.export` in the background, in one worker of a run at a time, again and again.

    Yields None while it may write more checkpoints, and its exit code when it has ended.
    """
    chosen = ["--steps", *map(str, steps)] if steps else []
    command = [sys.executable, "-m", "recipe.export", str(run), *chosen]
    while True:
        code = None
        with suppress(InUseError), lock(RunFolder(run).export_locks):  # else another worker exports
            process = subprocess.Popen(command)
            try:
                while (code := process.poll()) is None:
                    yield None
            finally:
                if process.poll() is None:  # the sweep ends before it
                    process.terminate()
        yield code
