"""Two runs on one machine: an engine gets the weights of its own run, over verl's real sockets."""

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import types
from pathlib import Path
from typing import Any

import pytest

from recipe.patches.verl import RUN_ID, of_this_run

# verl's name (see the last test): for every run the Ray job is the first of its cluster.
ADDRESS = "ipc:///tmp/rl-colocate-zmq-01000000-replica-0-rank-0.sock"


def test_the_address_holds_the_runs_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_ID, "abc")
    assert of_this_run(ADDRESS) == ("ipc:///tmp/rl-colocate-zmq-abc-01000000-replica-0-rank-0.sock")
    assert of_this_run("tcp://10.0.0.1:5") == "tcp://10.0.0.1:5"
    monkeypatch.delenv(RUN_ID)
    assert of_this_run(ADDRESS) == ADDRESS


def exchange(runs: list[str], folder: str) -> list[float]:
    """Two actors send at the same time, then the first engine receives: the received weights.

    `runs` are their ids. Actor k's weight is k; the first engine is of the first run.
    """
    import torch
    import verl.workers.rollout.vllm_rollout.bucketed_weight_transfer as transfer

    address = ADDRESS.replace("/tmp/", f"{folder}/")
    senders = []
    for run in runs:
        os.environ[RUN_ID] = run
        senders.append(transfer.BucketedWeightSender(address, bucket_size_mb=1, use_shm=True))
    os.environ[RUN_ID] = runs[0]
    receiver = transfer.BucketedWeightReceiver(address, torch.device("cpu"), use_shm=True)

    def send(number: int) -> None:
        weights = iter([("w", torch.tensor([float(number)]))])
        asyncio.run(senders[number].async_send_weights(weights))

    for number in range(len(runs)):  # daemons: one of them waits forever
        threading.Thread(target=send, args=(number,), daemon=True).start()
        path, deadline = Path(senders[number].zmq_handle.removeprefix("ipc://")), time.time() + 60
        while not path.exists() and time.time() < deadline:
            time.sleep(0.01)
        time.sleep(0.5)  # it has bound the address and waits for an engine
    got: list[float] = []
    receiver.receive_weights(lambda weights, is_last: got.extend(w.item() for _, w in weights))
    return got


def verls_address() -> str:
    """verl's address of the engine, as the first job of a Ray cluster."""
    from ray import JobID
    from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

    os.environ["VERL_RAY_JOB_ID"] = JobID.from_int(1).hex()
    worker = types.SimpleNamespace(model_runner=None, local_rank=0)
    return vLLMColocateWorkerExtension._get_zmq_handle(worker)


def look() -> dict[str, Any]:
    """Everything that needs verl and vLLM, whose import takes seconds."""
    seen: dict[str, Any] = {"address": verls_address()}
    for name, runs in (("two runs", ["first", "second"]), ("no ids", ["", ""])):
        with tempfile.TemporaryDirectory() as folder:  # tmp_path is too long for a socket's name
            seen[name] = exchange(runs, folder)
    return seen


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """The result of `look` in a process with this project's plugin."""
    code = (
        "import json, os, sys; sys.path.insert(0, sys.argv[1]); import test_weight_socket\n"
        "print(json.dumps(test_weight_socket.look()), flush=True); os._exit(0)\n"
    )
    environment = {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "recipe.plugin"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.config
@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ("two runs", [0.0]),
        ("no ids", [1.0]),  # the gap: the first engine gets the second actor's weights
    ],
)
def test_an_engine_gets_the_weights_of_its_own_run(
    seen: dict[str, Any], ids: str, expected: list[float]
) -> None:
    assert seen[ids] == expected


@pytest.mark.config
def test_verl_still_names_the_socket_so(seen: dict[str, Any]) -> None:
    """Fails when the gap may be closed. Then delete it in recipe/patches/verl.py."""
    assert seen["address"] == ADDRESS
