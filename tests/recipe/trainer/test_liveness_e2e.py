"""Ray reports the death of an actor of this run, and only of this run."""

import subprocess
import sys

import pytest

PROGRAM = """
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
print(alive.gone(), alive.known)
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
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    output = [line for line in done.stdout.splitlines() if line.startswith("[")]  # beside Ray's
    assert output == ["[] {'worker'}", "[]", "['worker']"]
