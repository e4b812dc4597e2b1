"""The environment of a run: variables that libraries read at import, and package versions.

Training, export and evaluation share the lists. Call `set_defaults` before the libraries are
imported; it keeps variables that the user has set. This module imports torch only in `gpu_count`.
"""

import functools
import os
import platform
import secrets
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

from prompt_aug.base.files import write_text
from recipe.machine import host

RUN_DIR = "RECIPE_RUN_DIR"  # marks every process of a run (recipe.run.processes)
DEADLINE = "RECIPE_DEADLINE"  # seconds since the epoch at which the job is killed
ENGINE_THREADS = "RECIPE_ENGINE_THREADS"  # of the engine on a CPU, in place of OMP_NUM_THREADS
RUN_ID = "RECIPE_RUN_ID"  # one per launch: keeps the weight sockets of two runs apart

COMMON = {
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_COLOR_PREFIX": "0",  # what workers print goes into a file
    "VLLM_NO_USAGE_STATS": "1",
    "HYDRA_FULL_ERROR": "1",
    # FlashInfer's sampler is compiled at its first use, with nvcc; a seed needs vLLM's own anyway.
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    # An import error of our plug-in stops a process here; verl swallows it in an entry point.
    "VERL_USE_EXTERNAL_MODULES": "recipe.plugin",
}
CPU = {
    "VERL_PLATFORM": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # Without this vLLM turns the executor "uni" (see config/machine/cpu.yaml) back into "mp".
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "GLOO_SOCKET_IFNAME": "lo",
    # vLLM compiles one comparison of its sampler: 30 s at the first start, with a C++ compiler.
    "TORCH_COMPILE_DISABLE": "1",
    # Waiting OpenMP threads spin for under a millisecond, then sleep. By default they spin for ever
    # and, on a busy machine, take the core from the thread that they wait for. With 0 each small
    # operation pays for a wake-up, which halves the engine's speed (examples/LOG.md).
    "GOMP_SPINCOUNT": "10000",
    # Ray starts its workers at niceness 15: beside other work they would get almost no CPU time.
    "RAY_worker_niceness": "0",
}
SOCKETS = 39  # bytes of TMPDIR: the names of Ray's sockets in it add 68, and the system takes 107
SHORT = {"RAY_TMPDIR": "/tmp", "VLLM_RPC_BASE_PATH": "/tmp"}
LOGGERS = ("TENSORBOARD_DIR", "WANDB_DIR", "WANDB_MODE", "WANDB_RUN_ID", "WANDB_RESUME")

# Packages that a result may depend on.
PACKAGES = (
    "verl", "vllm", "vllm-cpu", "torch", "ray", "transformers",
    "TransferQueue", "tensordict", "math-verify", "numpy",
)  # fmt: skip


def set_defaults(*, cpu: bool, **more: str) -> None:
    """Set the unset variables of `COMMON`, on a CPU machine `CPU`, and `more`; and PYTHONPATH."""
    os.environ["PYTHONPATH"] = host.python_path(os.environ.get("PYTHONPATH", ""))
    long = len(os.fsencode(os.environ.get("TMPDIR", ""))) > SOCKETS
    values = COMMON | (CPU if cpu else {}) | (SHORT if long else {}) | more
    for name, value in values.items():
        os.environ.setdefault(name, value)


def keep_wandb_run(path: Path) -> None:
    """Use one wandb run for all starts of a training; its id is in the file `path`.

    wandb skips steps that it has, so steps trained again after a resume keep their first values.
    """
    if not path.exists():
        write_text(path, secrets.token_hex(4))
    os.environ.setdefault("WANDB_RUN_ID", path.read_text(encoding="utf-8"))
    os.environ.setdefault("WANDB_RESUME", "allow")


def inherited() -> dict[str, str]:
    """Return the variables that actors on other nodes must be given."""
    names = (*COMMON, *CPU, *LOGGERS, "OMP_NUM_THREADS", ENGINE_THREADS, RUN_DIR, RUN_ID, DEADLINE)
    names += ("PYTHONPATH",)  # of a checkout that is not the installed one
    return {name: os.environ[name] for name in names if name in os.environ}


def gpu_count() -> int:
    """Return the number of CUDA devices; without initialization, so that children may fork."""
    import torch

    return torch.cuda.device_count()


@functools.cache  # each reads a file, and packages do not change while a process runs
def versions() -> dict[str, str]:
    """Return the versions of `PACKAGES` that are installed."""
    return {name: version for name in PACKAGES if (version := host.installed(name))}


def describe() -> dict[str, Any]:
    """Return command, versions, platform and commit, the content of environment.json."""
    state = _git("status", "--porcelain")
    return {
        "command": shlex.join(sys.orig_argv),
        "python": sys.version.split()[0],
        "system": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "verl_platform": os.environ.get("VERL_PLATFORM", "auto"),
        "commit": _git("rev-parse", "HEAD"),  # None outside a git checkout
        "uncommitted_changes": None if state is None else bool(state),
        "packages": versions(),
    }


@functools.cache  # the running code is that of its import
def _git(*arguments: str) -> str | None:
    if not (host.ROOT / ".git").exists():  # of a repository around it git would report that commit
        return None
    try:
        answer = subprocess.run(
            # In a container the checkout may be another user's.
            ["git", "-c", "safe.directory=*", *arguments],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return answer.stdout.strip()
