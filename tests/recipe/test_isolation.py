"""Two runs on one machine: an engine gets the weights of its own run, over verl's real sockets."""

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from recipe.isolation import RUN_ID, of_this_run

# As verl names it: the Ray job is the first of its cluster, for every run.
ADDRESS = "ipc:///tmp/rl-colocate-zmq-01000000-replica-0-rank-0.sock"


def test_the_address_holds_the_runs_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(RUN_ID, "abc")
    assert of_this_run(ADDRESS) == ("ipc:///tmp/rl-colocate-zmq-abc-01000000-replica-0-rank-0.sock")
    assert of_this_run("tcp://10.0.0.1:5") == "tcp://10.0.0.1:5"
    monkeypatch.delenv(RUN_ID)
    assert of_this_run(ADDRESS) == ADDRESS


def exchange(runs: list[str], folder: Path) -> list[float]:
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


@pytest.mark.e2e  # two imports of verl and vLLM
@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["first", "second"], "[0.0]"),
        # The gap: under one address the first engine gets the second actor's weights. When verl
        # closes it, recipe/isolation.py goes.
        (["", ""], "[1.0]"),
    ],
)
def test_an_engine_gets_the_weights_of_its_own_run(ids: list[str], expected: str) -> None:
    code = (
        "import os, sys; from pathlib import Path; sys.path.insert(0, sys.argv[1])\n"
        "from test_isolation import exchange\n"
        "print(exchange(sys.argv[3:], Path(sys.argv[2])), flush=True); os._exit(0)\n"
    )
    environment = {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "recipe.plugin"}
    with tempfile.TemporaryDirectory() as folder:  # tmp_path is too long for a socket's name
        done = subprocess.run(
            [sys.executable, "-c", code, str(Path(__file__).parent), folder, *ids],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == expected
