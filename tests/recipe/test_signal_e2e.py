"""A SIGTERM during a run of Ray, whose own handler would end the process."""

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
