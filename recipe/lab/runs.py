"""Make the runs of an experiment (train, export, measure) and record them, a line per run.

A killed training is resumed, a killed simulation restarts. A run on record with the same digest is
skipped.
"""

import functools
import math
import multiprocessing
import multiprocessing.connection
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from prompt_aug.base.files import append_lines, read_json, read_lines, write_json
from recipe.config.compose import compose_config
from recipe.lab.experiment import Arm, Experiment, ExperimentError
from recipe.run.environment import set_defaults
from recipe.run.folder import RunFolder, read_metrics

Lines = Mapping[tuple[str, int], dict[str, Any]]  # of a record, by arm and seed
MODULES = {"train": "recipe.train", "export": "recipe.export", "measure": "recipe.lab.measure"}
BIN = 5  # steps per mean in the curves on record


def check_arm(experiment: Experiment, arm: Arm) -> None:
    """Raise ConfigError for settings that no seed of the arm could run with."""
    from recipe.preflight.checks import validate  # imports torch

    settings = [f"recipe.toy.world={arm.world}", *arm.set]
    validate(compose_config(f"laboratory/{experiment.name}", settings))


def command_of(stage: str) -> list[str]:
    """Return the command of a stage, without its arguments; tests replace it."""
    return [sys.executable, "-m", MODULES[stage]]


def read_record(path: Path, experiment: Experiment) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the lines that have the experiment's current digests, by arm and seed."""
    wanted = {arm.name: experiment.digest(arm) for arm in experiment.arms}
    return {
        (x["arm"], x["seed"]): x for x in read_lines(path) if wanted.get(x["arm"]) == x["digest"]
    }


def by_seed(arm: str, lines: Lines) -> dict[int, dict[str, Any]]:
    """Return the lines of an arm in the order of their seeds."""
    return {seed: line for (name, seed), line in sorted(lines.items()) if name == arm}


def run_arm(
    experiment: Experiment, arm: Arm, seed: int, folder: Path, threads: int
) -> dict[str, Any] | None:
    """Run the missing stages of a run and return its line; None if a stage failed."""
    run = str(folder.resolve())
    train = [
        f"laboratory/{experiment.name}",
        *(f"recipe.run_dir={run}", f"recipe.seed={seed}", f"recipe.toy.world={arm.world}"),
        f"recipe.toy.seed={experiment.world_seed(seed)}",
        *(f"trainer.total_training_steps={experiment.steps}", "recipe.save_rollouts_every=0"),
        *(f"trainer.save_freq={experiment.save_every}", *arm.set),
    ]
    stages = {"train": train, "export": [run], "measure": [run, experiment.name]}
    if experiment.simulates(arm):
        stages = {"simulate": [*train, "--measure", experiment.name]}
    for stage, arguments in stages.items():
        if stage in ("measure", "simulate") and RunFolder(folder).measured.is_file():
            continue
        if stage == "train" and len(read_metrics(folder)) >= experiment.steps:
            continue
        if stage == "simulate":
            shutil.rmtree(folder, ignore_errors=True)  # a killed simulation restarts
        if not _ends_well(stage, arguments, folder, threads):
            return None
    if len(read_metrics(folder)) < experiment.steps:
        return None
    return line_of(experiment, arm, seed, folder)


def _ends_well(stage: str, arguments: list[str], folder: Path, threads: int) -> bool:
    """Run a stage with its output in `log_of`; return True if its exit code is 0."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    start = _fork if stage == "simulate" else functools.partial(_spawn, stage)
    status = start(arguments, log_of(folder), threads)
    if folder.is_dir():
        path = RunFolder(folder).seconds
        spent = read_json(path) if path.exists() else {}
        spent[stage] = spent.get(stage, 0.0) + time.monotonic() - began
        write_json(path, spent)
    return status == 0


def log_of(folder: Path) -> Path:
    """Return the log of a run, beside its folder."""
    return folder.with_name(f"{folder.name}.log")


def _spawn(stage: str, arguments: list[str], log: Path, threads: int) -> int:
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    with log.open("a") as file:
        command = [*command_of(stage), *arguments]
        return subprocess.run(command, stdout=file, stderr=file, env=environment).returncode


def _fork(arguments: list[str], log: Path, threads: int) -> int | None:
    """Run `recipe.lab.simulate` in a fork of a server that has done its imports, of 8 s."""
    set_defaults(cpu=True, OMP_NUM_THREADS=str(threads))  # read by the imports
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["recipe.lab.simulator", "recipe.preflight.checks"])
    process = context.Process(target=_simulate, args=(arguments, log))
    process.start()
    process.join()
    return process.exitcode


def _simulate(arguments: list[str], log: Path) -> None:
    from recipe.lab.simulate import main

    end_with_parent()
    with log.open("a") as file:
        for stream in (1, 2):
            os.dup2(file.fileno(), stream)
    sys.orig_argv = [sys.executable, "-m", "recipe.lab.simulate", *arguments]  # on record
    sys.exit(main(arguments))


def end_with_parent() -> None:
    """Exit when the process that started this one ends; otherwise the fork server stays alive."""
    parent = multiprocessing.parent_process()

    def watch() -> None:
        if parent is not None:
            multiprocessing.connection.wait([parent.sentinel])
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def line_of(experiment: Experiment, arm: Arm, seed: int, folder: Path) -> dict[str, Any]:
    """Return the record line of a finished run."""
    metrics = read_metrics(folder)[: experiment.steps]
    run = RunFolder(folder)
    environment = read_json(run.environment)
    parts = [environment, *environment.get("resumed", [])]
    commits = dict.fromkeys(str(part["commit"])[:12] for part in parts)
    spent = read_json(run.seconds) if run.seconds.exists() else {}
    measured = read_json(run.measured)
    steps = measured.get("steps", {})
    if str(experiment.steps) not in steps:
        raise ExperimentError(
            f"{run.measured} has no step {experiment.steps}, the last one: delete it and run the "
            "command again, which measures again"
        )
    return {
        "arm": arm.name,
        "seed": seed,
        "digest": experiment.digest(arm),
        "commit": "+".join(commits),  # several if a run was resumed after an update
        "measured_at": str(measured["commit"])[:12],
        "uncommitted_changes": changed_code(),
        "seconds": round(sum(spent.values())),
        "measured": _rounded(steps),
        "curves": {key: _rounded(binned(metrics, key)) for key in experiment.curves},
    }


def changed_code() -> bool:
    """Return True if recipe/, prompt_aug/ or requirements/ differ from the commit."""
    command = ["git", "status", "--porcelain", "--", "recipe", "prompt_aug", "requirements"]
    root = Path(__file__).resolve().parents[2]
    try:
        found = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.SubprocessError):
        return True  # without git, assume changes
    return bool(found.stdout.strip())


def binned(metrics: list[dict[str, Any]], key: str) -> list[float | None]:
    """Return means over `BIN` steps of a key, None for an empty bin; [] for no value."""
    bins: dict[int, list[float]] = {}
    for line in metrics:
        if math.isfinite(value := line.get(key, math.nan)):
            bins.setdefault((line["step"] - 1) // BIN, []).append(value)
    means = {i: sum(values) / len(values) for i, values in bins.items()}
    last = (metrics[-1]["step"] - 1) // BIN if means else -1
    return [means.get(i) for i in range(last + 1)]


def _rounded(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    return round(value, 6) if isinstance(value, float) else value


def run_all(
    experiment: Experiment,
    wanted: Sequence[tuple[Arm, int]],
    *,
    record: Path,
    out: Path,
    jobs: int = 1,
) -> list[tuple[str, int]]:
    """Make the runs that `record` does not have, append their lines in order, return the failed.

    After a kill, runs that were finished but not recorded are recorded without running again.
    """
    done = read_record(record, experiment)
    missing = {(a.name, seed): (a, seed) for a, seed in wanted if (a.name, seed) not in done}
    first: dict[tuple[str, int], tuple[str, int]] = {}  # run of each start model
    for key, (arm, seed) in missing.items() if jobs > 1 else ():
        first.setdefault((arm.world, experiment.world_seed(seed)), key)
    # Two runs of one start model would both wait for the process that teaches it.
    todo = [missing[key] for key in dict.fromkeys([*first.values(), *missing])]
    if todo:
        print(f"{experiment.name}: {len(todo)} runs to make", flush=True)
    threads, failed = max(1, (os.cpu_count() or 1) // jobs), []
    with ThreadPoolExecutor(jobs) as pool:
        tasks = []
        for arm, seed in todo:
            folder = out / f"{arm.name}-{seed}-{experiment.digest(arm)[:6]}"
            task = pool.submit(run_arm, experiment, arm, seed, folder, threads)
            tasks.append((arm.name, seed, folder, task))
        for name, seed, folder, task in tasks:
            try:
                line, why = task.result(), _failure(log_of(folder))
            except ExperimentError as error:  # in one run: the others are still recorded
                line, why = None, str(error)
            except BaseException:  # Ctrl-C: cancel the runs that have not begun
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            print(f"{name} seed {seed}:", "done" if line else why, flush=True)
            if line is None:
                failed.append((name, seed))
                continue
            append_lines(record, [line])
    return failed


def _failure(log: Path) -> str:
    """Return the path of a failed run's log, and its last line that is not empty."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join([f"failed, see {log}", *lines[-1:]])
