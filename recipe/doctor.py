"""Check whether a run could start on this machine: ``python -m recipe.doctor [--train]``.

Prints versions, devices and plug-ins, and a remedy for each problem. Exit code 1 if a run could not
start. Imports only the standard library, so it runs where everything else is broken.
verl, vLLM and the launcher are imported in separate processes in parallel, and a failure is
shown with its traceback. ``--train`` then makes the trial run of recipe/trial.py.
"""

import contextlib
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from prompt_aug.base.commands import make_parser, outlive_readers, run
from recipe.run import host

DRIVER = 580  # of the CUDA 13.0 that torch was built with
GPU_INSTALL = "pip install --no-deps -r requirements/gpu.txt && pip install --no-deps -e ."


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of a check: a problem if it has a remedy; `needed`: a run cannot start with it."""

    name: str
    detail: str
    remedy: str = ""
    needed: bool = True

    @property
    def ok(self) -> bool:
        return not self.remedy

    def __str__(self) -> str:
        """Return the line of the check, and under a problem its remedy, indented."""
        mark = "ok  " if self.ok else ("FAIL" if self.needed else "note")
        remedy = "" if self.ok else f"\n     -> {self.remedy}"
        return f"{mark} {self.name}: {self.detail}".replace("\n", "\n         ") + remedy


def install(cpu: bool) -> str:
    """Return how to make the environment of a run on the CPU, or on GPUs."""
    how = "make the environment with `bash scripts/setup.sh`" if cpu else f"run `{GPU_INSTALL}`"
    return f"{how}, see requirements/README.md"


def installed(name: str) -> str | None:
    """Return the version of a package, None if it is not installed."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(name)
    return None


# ------------------------------------------------------------------------- quick checks


def gpu_names() -> list[str] | None:
    """Return the GPUs that the driver lists, with its version; None where there is no driver."""
    query = "--query-gpu=name,memory.total,driver_version"
    command = ["nvidia-smi", query, "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.split("\n")[:-1]


def takes_cpu(chosen: str, gpus: list[str] | None) -> bool:
    """Return True if a run here would use the CPU, by VERL_PLATFORM, the GPUs and the engine.

    A login node has no GPU, but shares the environment of the nodes that do.
    """
    return chosen == "cpu" if chosen else not gpus and installed("vllm") is None


def devices(gpus: list[str] | None, cpu: bool) -> Finding:
    """Report the GPUs; a problem where the environment is for GPUs and there is none."""
    drivers = re.findall(r", (\d+)\.[\d.]+$", "\n".join(gpus or ()), re.MULTILINE)
    if not cpu and any(int(driver) < DRIVER for driver in drivers):
        remedy = f"CUDA 13.0 needs driver {DRIVER} or newer, or NVIDIA's package cuda-compat-13-0"
        return Finding("devices", "; ".join(gpus or ()), remedy, needed=False)
    if gpus or cpu:
        return Finding("devices", "; ".join(gpus or ()) or "no GPU: a run takes the CPU")
    remedy = "expected on a login node: start the doctor on a node with a GPU"
    return Finding("devices", "no GPU here, and vllm (for GPUs) is installed", remedy)


def pins(path: Path, cpu: bool) -> Finding:
    """Compare installed versions with those pinned in `path`; another verl stops a run."""
    lines = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", path.read_text(encoding="utf-8"), re.M)
    different = []
    for name, pinned in lines:
        version = installed(name)
        if version is None or version.split("+")[0] != pinned.split("+")[0]:
            different.append(f"{name} {version or 'missing'} (pinned {pinned})")
    if not different:
        return Finding("pins", f"all {len(lines)} packages as in {path.name}")
    different.sort(key=lambda text: not text.startswith("verl "))
    names = ", ".join(different[:8])
    detail = f"{len(different)} of {len(lines)} differ from {path.name}: {names}"
    return Finding("pins", detail, install(cpu), needed=names.startswith("verl "))


def shared_memory(folder: Path = Path("/dev/shm"), least_gib: float = 0.25) -> Finding:
    """Check the room for new weights on their way to the engine."""
    free = host.free_gib(folder)
    remedy = "in a container: start it with --shm-size=2g or --ipc=host"
    detail = f"{free:.1f} GiB free in {folder}"
    return Finding("shared memory", detail, remedy if free < least_gib else "", needed=False)


# ------------------------------------------------------------------------- slow checks

ANSWER_MARK = "recipe.doctor answer: "
# Programs that set `answer`. verl and vLLM swallow errors of a plug-in, so it is loaded separately;
# without the project's entry points the answers are not as `expected`.
PROGRAMS = {
    "import verl and its plug-in": """
import importlib.metadata
for point in importlib.metadata.entry_points(group="verl.plugins"):
    point.load()
import verl
from verl.plugin.platform import get_platform
from verl.plugin.platform.platform_manager import PlatformRegistry
answer = {
    "platform": get_platform().device_name,
    "cpu registered": "cpu" in PlatformRegistry.registered_names(),
}
""",
    "import vllm and its plug-in": """
import contextlib
import importlib.metadata
for point in importlib.metadata.entry_points(group="vllm.general_plugins"):
    point.load()()
import vllm
from vllm.platforms import current_platform
from vllm.model_executor.layers import utils
answer = {
    "version": vllm.__version__,
    "platform": current_platform.device_type,
    "linear layers": utils.dispatch_cpu_unquantized_gemm.__module__,
}
""",
    "the launcher recipe.train": """
import recipe.train
from recipe.config.compose import compose_config
from recipe.preflight.checks import SETTINGS, validate
validate(compose_config("toy", []))
answer = {"can be": "imported", "rules that the toy passes": sum(map(len, SETTINGS.values()))}
""",
}


def expected(cpu: bool) -> dict[str, object]:
    """Return the answers that a run on the CPU, or on GPUs, needs."""
    on_cpu = {"cpu registered": True, "linear layers": "recipe.patches.cpu.vllm_plugin"}
    return {"platform": "cpu", **on_cpu} if cpu else {"platform": "cuda"}


def program_finding(
    name: str, program: str, environment: Mapping[str, str], cpu: bool, seconds: float = 180.0
) -> Finding:
    """Run a program and return its finding, with its traceback if it failed."""
    program = f"{program}\nimport json\nprint({ANSWER_MARK!r} + json.dumps(answer))"
    try:
        done = subprocess.run(
            [sys.executable, "-c", program],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=dict(environment),
            text=True,
            errors="replace",
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return Finding(name, f"no answer in {seconds:.0f} s", install(cpu))
    answers = [line for line in done.stdout.split("\n") if line.startswith(ANSWER_MARK)]
    if done.returncode or not answers:
        errors = done.stderr
        traceback = errors[max(0, errors.rfind("Traceback (most recent call last)")) :].rstrip()
        end = "\n".join(traceback.split("\n")[-20:])
        return Finding(name, f"exit code {done.returncode}\n{end}", install(cpu))
    answer = json.loads(answers[-1].removeprefix(ANSWER_MARK))
    text = ", ".join(f"{key} {value}" for key, value in answer.items())
    wrong = [f"{k} should be {v}" for k, v in expected(cpu).items() if answer.get(k, v) != v]
    return Finding(name, "; ".join([text, *wrong]), install(cpu) if wrong else "")


# ------------------------------------------------------------------------- the command


def examine(environment: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the finding of every check; the slow imports run while the quick checks are made."""
    gpus, chosen = gpu_names(), environment.get("VERL_PLATFORM", "").strip().lower()
    cpu = takes_cpu(chosen, gpus)
    variables = {**environment, **({"VERL_PLATFORM": "cpu"} if cpu else {})}
    variables["PYTHONPATH"] = host.python_path(environment.get("PYTHONPATH", ""))
    pool = ThreadPoolExecutor(len(PROGRAMS))
    imports = [pool.submit(program_finding, *item, variables, cpu) for item in PROGRAMS.items()]
    system = f"Python {platform.python_version()}, {platform.platform()}, {os.cpu_count()} CPUs"
    yield Finding("system", system)
    yield devices(gpus, cpu)
    yield pins(host.ROOT / "requirements" / ("cpu.txt" if cpu else "gpu.txt"), cpu)
    yield shared_memory()
    for running in imports:
        yield running.result()


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser("python -m recipe.doctor", __doc__, example="python -m recipe.doctor")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the trial runs")
    parser.add_argument(
        "--train",
        nargs="*",
        metavar=("EXAMPLE", "KEY=VALUE"),
        help="then train two steps, export and evaluate; default: smollm2 if its model exists, "
        "else toy",
    )
    parsed = parser.parse_args(arguments)
    outlive_readers()
    errors = []
    for finding in examine(os.environ):
        print(finding, flush=True)
        errors += [finding.name] if finding.needed and not finding.ok else []
    verdict = (
        f"a training run could NOT start: {', '.join(errors)}" if errors else "a run could start"
    )
    print(f"recipe.doctor: {verdict}", flush=True)
    if errors or parsed.train is None:
        return int(bool(errors))
    from recipe.trial import trial  # imports more than the standard library

    return run(
        "recipe.doctor",
        lambda: trial(parsed.runs, parsed.train),
        interrupted="the trial's folder stays",
        progress=False,
    )


if __name__ == "__main__":
    sys.exit(main())
