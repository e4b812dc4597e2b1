"""Ray's handler of SIGTERM is replaced, and Ray reports the death of an actor of this run.

TransferQueue installs files in a recipe/ too: every process must find this project's.
"""

import importlib.metadata
import os
import signal
import subprocess
import sys
import venv
from pathlib import Path

import pytest

TRAINING = """
import sys, time
from pathlib import Path
import ray
from omegaconf import OmegaConf
from recipe.run import progress
from recipe.run.stop import SignalHandler, StopRequest
from recipe.trainer import launch
run = Path(sys.argv[1])

def task():
    ray.init(address="local", num_cpus=1, include_dashboard=False)
    ray.get(ray.remote(lambda: None).remote())
    time.sleep(3)
    progress.reached(run, progress.TRAINING, step=0)
    print("ready", flush=True)
    while not StopRequest.read(run):
        time.sleep(0.1)
    time.sleep(5)
    ray.get(ray.remote(lambda: None).remote(), timeout=60)
    print("saved", flush=True)

config = OmegaConf.create({"recipe": {"run_dir": str(run)}})
launch.wait(launch.in_thread(task), config, ray.is_initialized, SignalHandler(run))
"""


@pytest.mark.e2e
def test_a_signal_after_ray_init_leaves_the_process_the_time_to_save(tmp_path: Path) -> None:
    """To its process group, as `timeout` and a shell's `kill %1` send it: Ray is in another."""
    command = [sys.executable, "-c", TRAINING, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, process_group=0)
    assert process.stdout is not None
    while process.stdout.readline() != "ready\n":
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGTERM)
    assert "saved" in process.stdout.read() and process.wait(60) == 0


ACTORS = """
import os, signal, time
import ray
from recipe.trainer.liveness import Liveness

@ray.remote(num_cpus=0)
class Actor:
    def pid(self):
        return os.getpid()

ray.init(address="local", num_cpus=1, include_dashboard=False, namespace="run")
mine = Actor.options(name="worker").remote()
others = Actor.options(name="other", namespace="elsewhere").remote()
nameless = Actor.remote()
pids = ray.get([mine.pid.remote(), others.pid.remote(), nameless.pid.remote()])
alive = Liveness()
print(alive.gone(), alive.actors)
for pid in pids[1:]:
    os.kill(pid, signal.SIGKILL)
time.sleep(3)
print(alive.gone())
os.kill(pids[0], signal.SIGKILL)
end = time.monotonic() + 60
while time.monotonic() < end and not alive.gone():
    time.sleep(0.2)
print(alive.gone())
"""


@pytest.mark.e2e
def test_only_named_actors_of_this_run_are_watched() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ACTORS], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    output = [line for line in done.stdout.splitlines() if line.startswith("[")]  # beside Ray's
    assert output == ["[] {'worker'}", "[]", "['worker']"]


# ------------------------------------------------------------------------- imports

ROOT = Path(__file__).resolve().parents[2]
# Run by name from a folder that is not the repository; prints where each process found `recipe`.
PROGRAM = """
import multiprocessing, os, subprocess, sys
import recipe

def found(*_):
    import recipe
    return recipe.__file__

if __name__ == "__main__":
    print("driver", recipe.__file__)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print("spawned", pool.map(found, [0])[0])
    command = [sys.executable, "-c", "import recipe; print(recipe.__file__)"]
    print("command", subprocess.check_output(command, text=True, cwd="/").strip())
    import ray
    ray.init(address="local", num_cpus=1, include_dashboard=False)
    print("Ray worker", ray.get(ray.remote(found).remote()))
"""


def environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The interpreter of an environment that has this one's packages, and the project by pip -e."""
    folder = tmp_path / "environment"
    venv.create(folder, with_pip=False)
    packages = next(folder.glob("lib/python*/site-packages"))
    theirs = next(p for p in sys.path if (Path(p) / "verl").is_dir())
    (packages / "base.pth").write_text(theirs)
    python = folder / "bin" / "python"
    how = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation", "-e", str(ROOT))
    subprocess.run([python, "-m", "pip", "install", *how], check=True, env=environment())
    return python


@pytest.mark.e2e
def test_the_project_is_found_first_in_every_process(installed: Path, tmp_path: Path) -> None:
    """The working folder has a recipe/ as well."""
    (tmp_path / "recipe" / "simple_use_case").mkdir(parents=True)
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [installed, "program.py"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True
    )
    lines = [line.rpartition(" ") for line in done.stdout.splitlines()]
    found = {name: Path(path) for name, _, path in lines}
    for name in ("driver", "spawned", "command", "Ray worker"):
        assert found[name] == ROOT / "recipe" / "__init__.py"


def test_transfer_queue_still_installs_a_recipe() -> None:
    """Once it does not, the setting `package-dir` of pyproject.toml has no purpose."""
    files = importlib.metadata.distribution("TransferQueue").files
    assert any(file.parts[0] == "recipe" for file in files or ())
