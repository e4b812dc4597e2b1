"""Check whether a run could start on this machine: ``python -m recipe.doctor [--train]``.

Imports verl and vLLM with this project's plug-ins, and runs the launch checks of the example toy,
each in a process of its own. Exit code 1 if a run could not start. Imports only the standard
library, so it runs where everything else is broken. ``--train`` then makes the trial run of
recipe/trial.py.
"""

import os
import platform
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from prompt_aug.base.commands import make_parser, outlive_readers, run_command
from recipe.machine import host

INSTALL = {
    "cpu": "Make the environment with `bash scripts/setup.sh`: requirements/README.md.",
    "cuda": "Run `pip install --no-deps -r requirements/gpu.txt && pip install --no-deps -e .`",
}
# Programs that get the device and a run folder and print a result. verl and vLLM swallow errors of
# a plug-in, so it is loaded separately; without our entry points the assertions fail.
PROGRAMS = {
    "import verl and its plug-in": """
import importlib.metadata, sys
for point in importlib.metadata.entry_points(group="verl.plugins"):
    point.load()
import verl
from verl.plugin.platform import get_platform
found = get_platform().device_name
assert found == sys.argv[1], f"verl's platform is {found}, not {sys.argv[1]}"
print(f"version {verl.__version__}, platform {found}")
""",
    "import vllm and its plug-in": """
import importlib.metadata, sys
for point in importlib.metadata.entry_points(group="vllm.general_plugins"):
    point.load()()
import vllm
from vllm.platforms import current_platform
from vllm.model_executor.layers import utils
found = current_platform.device_type
assert found == sys.argv[1], f"vLLM's platform is {found}, not {sys.argv[1]}"
layers = utils.dispatch_cpu_unquantized_gemm.__module__
assert found != "cpu" or layers == "recipe.patches.cpu.vllm_plugin", f"linear layers: {layers}"
import torch
kernels = found != "cpu" or hasattr(torch.ops._C, "init_cpu_memory_env")
assert kernels, "vLLM's kernels do not load. Install libnuma1 (Fedora: numactl-libs)."
print(f"version {vllm.__version__}, platform {found}")
""",
    "launch checks of the example toy": """
import sys
from prompt_aug.base.errors import UserError
from recipe.config.compose import compose_config
from recipe.start.checks import check_run
from recipe.start.rules import Setup
from recipe.trial import toy
try:
    config = compose_config("toy", [*toy(), f"recipe.run_dir={sys.argv[2]}"])
    check_run(Setup(config))
except UserError as error:
    raise SystemExit(str(error)) from None
print(f"device {config.trainer.device}, devices {config.trainer.n_gpus_per_node}")
""",
}


def look(program: str, device: str, folder: Path, seconds: float = 180.0) -> tuple[bool, str]:
    """Run a program; return whether it succeeded, and its last line or its error."""
    variables = dict(os.environ) | ({"VERL_PLATFORM": "cpu"} if device == "cpu" else {})
    variables["PYTHONPATH"] = host.python_path(os.environ.get("PYTHONPATH", ""))
    try:
        done = subprocess.run(
            [sys.executable, "-c", program, device, str(folder)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            env=variables,
            text=True,
            errors="replace",
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return False, f"no answer in {seconds:.0f} s"
    if not done.returncode:
        return True, done.stdout.rstrip().rpartition("\n")[2]
    found = done.stderr.rfind("Traceback (most recent call last)")
    lines = done.stderr[max(0, found) :].rstrip().split("\n")[-20:]
    remedy = [INSTALL[device]] if found >= 0 else []
    return False, "\n".join([f"exit code {done.returncode}", *lines, *remedy])


def examine(runs: Path) -> list[str]:
    """Print the result of every program; return the names of those that failed."""
    chosen = os.environ.get("VERL_PLATFORM", "").strip().lower() or host.machine()
    device = "cpu" if chosen == "cpu" else "cuda"
    cards = [f"{card.name}, {card.memory / 2**30:.1f} GiB" for card in host.cards()]
    if cards and not host.gpus_here():
        cards.append("not used by this environment (environment.yml makes one that does)")
    system = f"Python {platform.python_version()}, {platform.platform()}, {os.cpu_count()} CPUs"
    print("system: " + "; ".join([system, *cards]), flush=True)
    pool, failed = ThreadPoolExecutor(), []
    running = {x: pool.submit(look, PROGRAMS[x], device, runs / "doctor") for x in PROGRAMS}
    for name, program in running.items():
        ok, text = program.result()
        failed += [] if ok else [name]
        line = f"{'ok  ' if ok else 'FAIL'} {name}: {text}"
        print(line.replace("\n", "\n         "), flush=True)
    return failed


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
    failed = examine(parsed.runs)
    verdict = f"a training run could NOT start: {', '.join(failed)}"
    print(f"recipe.doctor: {verdict if failed else 'a run could start'}", flush=True)
    if failed or parsed.train is None:
        return int(bool(failed))
    from recipe.trial import try_training  # imports more than the standard library

    return run_command(
        "recipe.doctor",
        lambda: try_training(parsed.runs, parsed.train),
        interrupted="the trial's folder stays",
        progress=False,
    )


if __name__ == "__main__":
    sys.exit(main())
