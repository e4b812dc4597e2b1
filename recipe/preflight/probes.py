"""The slow checks of the doctor: verl, vLLM, Ray and the launcher, each in a process of its own.

verl and vLLM swallow an exception of a plug-in; here each plug-in is loaded by itself, and what it
raises is shown.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO

from recipe.doctor.checks import ROOT, Check, install

MARK = "recipe.doctor answer: "

# TransferQueue installs files in recipe/ too, and other packages have one with an __init__.py.
_PACKAGE = """
import sys
sys.path[:] = filter(None, sys.path)  # without the working folder, which not all processes share
from recipe import __path__ as places
answer = {"folder": list(places)[0]}
"""
_VERL = """
import recipe.plugin  # by itself first: verl would swallow what it raises
import verl
from verl.plugin.platform import get_platform
from verl.plugin.platform.platform_manager import PlatformRegistry
answer = {
    "platform": get_platform().device_name,
    "cpu registered": "cpu" in PlatformRegistry.registered_names(),
}
"""
_VLLM = """
import importlib.metadata
for point in importlib.metadata.entry_points(group="vllm.general_plugins"):
    point.load()()  # vLLM would swallow what it raises
import vllm
from vllm.platforms import current_platform
from vllm.model_executor.layers import utils
answer = {
    "version": vllm.__version__,
    "platform": current_platform.device_type,
    "linear layers": utils.dispatch_cpu_unquantized_gemm.__module__,
}
"""
_RAY = """
import ray
answer = {"version": ray.__version__}
"""
_LAUNCHER = """
import recipe.train
answer = {"can be": "imported"}
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """A program that sets `answer`, and the part of the answer that a run needs."""

    name: str
    program: str
    wanted: dict[str, object]
    remedy: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """A probe at work."""

    probe: Probe
    process: subprocess.Popen[str]
    output: IO[str]
    errors: IO[str]


def probes(cpu: bool) -> list[Probe]:
    """What to import, and what it must answer, for a run on the CPU or on GPUs."""
    verl: dict[str, object] = {"platform": "cpu" if cpu else "cuda"}
    vllm: dict[str, object] = {"platform": "cpu" if cpu else "cuda"}
    if cpu:
        verl["cpu registered"] = True
        vllm["linear layers"] = "recipe.patches.cpu.vllm_plugin"
    programs: dict[str, tuple[str, dict[str, object]]] = {
        "the package recipe": (_PACKAGE, {"folder": str(ROOT / "recipe")}),
        "import verl and its plug-in": (_VERL, verl),
        "import vllm and its plug-in": (_VLLM, vllm),
        "import ray": (_RAY, {}),
        "the launcher recipe.train": (_LAUNCHER, {}),
    }
    return [
        Probe(name=name, program=program, wanted=wanted, remedy=_remedy(name, cpu))
        for name, (program, wanted) in programs.items()
    ]


def _remedy(name: str, cpu: bool) -> str:
    shadow = "uninstall another package recipe, take it out of PYTHONPATH, or "
    return (shadow if name == "the package recipe" else "") + install(cpu)


def start_one(probe: Probe, environment: Mapping[str, str]) -> Started:
    output = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
    errors = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
    program = f"{probe.program}\nimport json\nprint({MARK!r} + json.dumps(answer))"
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=errors,
        env=dict(environment),
        text=True,
    )
    return Started(probe=probe, process=process, output=output, errors=errors)


def start(environment: Mapping[str, str], cpu: bool) -> list[Started]:
    """Start every probe, side by side."""
    return [start_one(probe, environment) for probe in probes(cpu)]


def _read(file: IO[str]) -> str:
    with file:
        file.seek(0)
        return file.read()


def finish_one(started: Started, seconds: float = 180.0) -> Check:
    """The check of a probe; its own traceback where it failed."""
    probe, late = started.probe, False
    try:
        started.process.wait(seconds)
    except subprocess.TimeoutExpired:
        started.process.kill()
        started.process.wait()
        late = True
    output, errors = _read(started.output), _read(started.errors)
    if late:
        return Check.problem(probe.name, f"no answer in {seconds:.0f} s", probe.remedy)
    answers = [line for line in output.split("\n") if line.startswith(MARK)]
    if started.process.returncode or not answers:
        detail = f"exit code {started.process.returncode}\n{_traceback(errors)}"
        return Check.problem(probe.name, detail, probe.remedy)
    answer = json.loads(answers[-1].removeprefix(MARK))
    text = ", ".join(f"{key} {value}" for key, value in answer.items())
    odd = [f"{k} should be {v}" for k, v in probe.wanted.items() if answer.get(k) != v]
    if odd:
        return Check.problem(probe.name, f"{text}; {', '.join(odd)}", probe.remedy)
    return Check.fine(probe.name, text)


def finish(started: list[Started]) -> list[Check]:
    return [finish_one(one) for one in started]


def _traceback(errors: str, lines: int = 20) -> str:
    """The last traceback in what a process wrote, its end if it is long."""
    tail = errors[errors.rfind("Traceback (most recent call last)") :] if errors else ""
    return "\n".join(tail.rstrip().split("\n")[-lines:])
