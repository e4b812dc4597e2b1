"""Ray reports the death of an actor of this run, and only of this run."""

import subprocess
import sys

import pytest

PROGRAM = """
import os, signal, time
import ray
from recipe.errors import LostEngineError
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
now = [0.0]
alive = Liveness(clock=lambda: now[0])
alive.require_all()
print(alive.known)
for pid in pids[1:]:
    os.kill(pid, signal.SIGKILL)
time.sleep(3)
now[0] += 100
alive.require_all()
os.kill(pids[0], signal.SIGKILL)
end = time.monotonic() + 60
try:
    while time.monotonic() < end:
        now[0] += 100
        alive.require_all()
        time.sleep(0.2)
except LostEngineError as error:
    print(error)
"""


@pytest.mark.e2e
def test_only_named_actors_of_this_run_are_watched() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = done.stdout.splitlines()  # among what Ray prints
    assert "{'worker'}" in said
    told = [line for line in said if " ended in the middle of a step" in line]
    assert [line.split()[0] for line in told] == ["worker"]
