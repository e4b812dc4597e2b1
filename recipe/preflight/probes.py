"""Slow checks of the doctor: verl, vLLM, Ray and the launcher, each in a process of its own."""

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO

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


def install(cpu: bool) -> str:
    """Return how to make the environment of a run on the CPU, or on GPUs."""
    how = "make the environment with `bash scripts/setup.sh`" if cpu else f"run `{GPU_INSTALL}`"
    return f"{how}, see requirements/README.md"


EVERY = 15.0  # seconds without a line, at most
ANSWER_MARK = "recipe.doctor answer: "
# Programs that set `answer`. verl and vLLM swallow errors of a plug-in, so it is loaded separately.
IMPORT_VERL = """
import recipe.plugin
import verl
from verl.plugin.platform import get_platform
from verl.plugin.platform.platform_manager import PlatformRegistry
answer = {
    "platform": get_platform().device_name,
    "cpu registered": "cpu" in PlatformRegistry.registered_names(),
}
"""
IMPORT_VLLM = """
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
"""
IMPORT_RAY = """
import ray
answer = {"version": ray.__version__}
"""
LAUNCHER = """
import recipe.train
from recipe.config.compose import compose_config
from recipe.preflight.checks import SETTINGS, validate
validate(compose_config("toy", []))
answer = {"can be": "imported", "rules that the toy passes": sum(map(len, SETTINGS.values()))}
"""


@dataclass(frozen=True, slots=True)
class Probe:
    """A program that sets `answer`, and the part of the answer that a run needs."""

    name: str
    program: str
    wanted: Mapping[str, object]
    remedy: str = "correct the program"


def probes(cpu: bool) -> list[Probe]:
    """Return what to import, and the answers needed, for a run on the CPU or on GPUs."""
    device = {"platform": "cpu" if cpu else "cuda"}
    layers = {"linear layers": "recipe.patches.cpu.vllm_plugin"} if cpu else {}
    registered = {"cpu registered": True} if cpu else {}
    return [
        Probe("import verl and its plug-in", IMPORT_VERL, {**device, **registered}, install(cpu)),
        Probe("import vllm and its plug-in", IMPORT_VLLM, {**device, **layers}, install(cpu)),
        Probe("import ray", IMPORT_RAY, {}, install(cpu)),
        Probe("the launcher recipe.train", LAUNCHER, {}, install(cpu)),
    ]


Started = tuple[Probe, subprocess.Popen[str], IO[str], IO[str]]  # with its output and its errors


def start(probe: Probe, environment: Mapping[str, str]) -> Started:
    output, errors = (tempfile.TemporaryFile("w+", errors="replace") for _ in range(2))  # noqa: SIM115
    program = f"{probe.program}\nimport json\nprint({ANSWER_MARK!r} + json.dumps(answer))"
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        env=dict(environment),
        text=True,
    )
    return probe, process, output, errors


def finish(started: Started, seconds: float = 180.0) -> Finding:
    """Return the finding of a probe, with its traceback if it failed."""
    probe, process, *files = started
    deadline = time.monotonic() + seconds
    while process.poll() is None:
        if (left := deadline - time.monotonic()) <= 0:
            process.kill()
            process.wait()
            return Finding(probe.name, f"no answer in {seconds:.0f} s", probe.remedy)
        try:
            process.wait(min(left, EVERY))
        except subprocess.TimeoutExpired:
            print(f"     {probe.name}: {seconds - left + EVERY:.0f} s so far", file=sys.stderr)
    for file in files:
        file.seek(0)
    output, errors = (file.read() for file in files)
    answers = [line for line in output.split("\n") if line.startswith(ANSWER_MARK)]
    if process.returncode or not answers:
        traceback = errors[max(0, errors.rfind("Traceback (most recent call last)")) :].rstrip()
        end = "\n".join(traceback.split("\n")[-20:])
        return Finding(probe.name, f"exit code {process.returncode}\n{end}", probe.remedy)
    answer = json.loads(answers[-1].removeprefix(ANSWER_MARK))
    text = ", ".join(f"{key} {value}" for key, value in answer.items())
    odd = [f"{k} should be {v}" for k, v in probe.wanted.items() if answer.get(k) != v]
    return Finding(probe.name, "; ".join([text, *odd]), probe.remedy if odd else "")
