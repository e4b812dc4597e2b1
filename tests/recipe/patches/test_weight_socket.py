"""Two runs on one machine: an engine gets the weights of its own run, over verl's real sockets."""

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
import time
import types
from pathlib import Path

import pytest

from recipe.patches.weight_socket import RUN_ID, of_this_run

# As verl names it (the last test): the Ray job is the first of its cluster, for every run.
ADDRESS = "ipc:///tmp/rl-colocate-zmq-01000000-replica-0-rank-0.sock"


def test_the_address_holds_the_runs_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_ID, "abc")
    assert of_this_run(ADDRESS) == ("ipc:///tmp/rl-colocate-zmq-abc-01000000-replica-0-rank-0.sock")
    assert of_this_run("tcp://10.0.0.1:5") == "tcp://10.0.0.1:5"
    monkeypatch.delenv(RUN_ID)
    assert of_this_run(ADDRESS) == ADDRESS


def exchange(runs: list[str], folder: str) -> list[float]:
    """Two actors hand over at the same moment, then the first engine asks: what it gets.

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

    for number in range(len(runs)):  # daemons: the one that nobody asks waits for ever
        threading.Thread(target=send, args=(number,), daemon=True).start()
        path, deadline = Path(senders[number].zmq_handle.removeprefix("ipc://")), time.time() + 60
        while not path.exists() and time.time() < deadline:
            time.sleep(0.01)
        time.sleep(0.5)  # it has bound the address, and now waits for an engine
    got: list[float] = []
    receiver.receive_weights(lambda weights, is_last: got.extend(w.item() for _, w in weights))
    return got


def verls_address() -> str:
    """What verl's own code names the engine's end, as the first job of a Ray cluster."""
    from ray import JobID
    from verl.workers.rollout.vllm_rollout.utils import vLLMColocateWorkerExtension

    os.environ["VERL_RAY_JOB_ID"] = JobID.from_int(1).hex()
    worker = types.SimpleNamespace(model_runner=None, local_rank=0)
    return vLLMColocateWorkerExtension._get_zmq_handle(worker)


def in_a_process(call: str, folder: str = "") -> str:
    """The value of `call`, a function of this file, in a process with this project's plugin."""
    code = (
        "import os, sys; sys.path.insert(0, sys.argv[1])\n"
        f"import test_weight_socket; print(test_weight_socket.{call}, flush=True); os._exit(0)\n"
    )
    environment = {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "recipe.plugin"}
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent), folder],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


@pytest.mark.config  # each imports verl and vLLM
@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["first", "second"], "[0.0]"),
        (["", ""], "[1.0]"),  # the gap: the first engine gets the second actor's weights
    ],
)
def test_an_engine_gets_the_weights_of_its_own_run(ids: list[str], expected: str) -> None:
    with tempfile.TemporaryDirectory() as folder:  # tmp_path is too long for a socket's name
        assert in_a_process(f"exchange({ids}, sys.argv[2])", folder) == expected


@pytest.mark.config
def test_verl_still_names_the_socket_so() -> None:
    """When it does not, the gap may be closed: then recipe/patches/weight_socket.py goes."""
    assert in_a_process("verls_address()") == ADDRESS
