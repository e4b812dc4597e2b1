"""Ray's handler of SIGTERM is replaced, and Ray reports the death of an actor of this run."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.e2e

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
    print("saved", flush=True)

config = OmegaConf.create({"recipe": {"run_dir": str(run)}})
launch.wait(launch.in_thread(task), config, ray.is_initialized, SignalHandler(run))
"""


def test_a_signal_after_ray_init_leaves_the_process_the_time_to_save(tmp_path: Path) -> None:
    command = [sys.executable, "-c", TRAINING, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while process.stdout.readline() != "ready\n":
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
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


def test_only_named_actors_of_this_run_are_watched() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ACTORS], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    output = [line for line in done.stdout.splitlines() if line.startswith("[")]  # beside Ray's
    assert output == ["[] {'worker'}", "[]", "['worker']"]
