"""The transport of weights to engines with GPUs of their own.

Two runs on one machine: an engine gets the weights of its own run, over verl's real sockets.
"""

import asyncio
import os
import tempfile
import threading
import time
import types
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fresh_process
import pytest
import torch
from composed import composed
from verl.checkpoint_engine import CheckpointEngineRegistry
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync

from recipe.patches.verl import RUN_ID, of_this_run
from recipe.rollout.weights import BACKEND, LARGE, GlooCheckpointEngine
from recipe.trainer.asynchronous import SeparateAsyncTrainer

WEIGHTS = {
    "matrix": torch.randn(5, 3).T,  # not contiguous
    "half": torch.randn(7).bfloat16(),
    "number": torch.tensor(2.5),
    "empty": torch.empty(0, 4),
    "integers": torch.arange(3),
    "large": torch.randn(LARGE),
    "large integers": torch.arange(LARGE),
}


@pytest.mark.parametrize(
    ("weights", "interface", "dtype"),
    [(WEIGHTS, "lo", "float32"), (WEIGHTS, "", "bf16"), ({}, "", "bfloat16")],
)
def test_all_engines_get_the_weights_of_the_first_rank(
    monkeypatch: pytest.MonkeyPatch, weights: dict[str, torch.Tensor], interface: str, dtype: str
) -> None:
    """Two ranks of an actor, then two engine workers, as verl's manager makes them."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", interface)
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "127.0.0.1")
    assert CheckpointEngineRegistry.get(BACKEND) is GlooCheckpointEngine
    engines = [GlooCheckpointEngine(2**20, i == 0, dtype=dtype) for i in range(4)]
    short = {"large"} if dtype == "bf16" else set()
    expected = {name: w.bfloat16() if name in short else w for name, w in weights.items()}
    left = []  # of the weights of each actor rank, which take part in gathering them

    def gathered(rank: int) -> Iterator[tuple[str, torch.Tensor]]:
        yield from ((name, w if rank == 0 else w * 0) for name, w in weights.items())
        left.append(rank)

    async def received(engine: GlooCheckpointEngine) -> list[tuple[str, torch.Tensor]]:
        return [pair async for pair in engine.receive_weights()]

    def work(number: int, arguments: dict) -> list[tuple[str, torch.Tensor]]:
        engine = engines[number]
        engine.init_process_group(**arguments)
        if number < 2:
            asyncio.run(engine.send_weights(gathered(number)))
            return []
        return asyncio.run(received(engine))

    for _ in range(2):  # each transfer has a group of its own
        metadata = [engine.prepare() for engine in engines]
        actor, rollout = GlooCheckpointEngine.build_topology(2, 2, metadata)
        rows = [
            {name: values[i] for name, values in part.items()}
            for part in (actor, rollout)
            for i in range(2)
        ]
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(work, range(4), rows, timeout=60))
        for pairs in results[2:]:
            assert [name for name, _ in pairs] == list(weights)
            for name, tensor in pairs:
                assert tensor.dtype == expected[name].dtype
                assert torch.equal(tensor, expected[name])
        for engine in engines:
            engine.finalize()
    assert sorted(left) == [0, 0, 1, 1]


@pytest.mark.config
@pytest.mark.parametrize(
    ("dtype", "sent"), [("bfloat16", torch.bfloat16), ("float32", torch.float32)]
)
def test_the_trainer_sends_in_the_dtype_of_the_engines(
    monkeypatch: pytest.MonkeyPatch, dtype: str, sent: torch.dtype
) -> None:
    mode, rollout = "trainer.v1.trainer_mode=recipe_separate_async", "actor_rollout_ref.rollout"
    keys = (mode, f"{rollout}.nnodes=1", f"{rollout}.dtype={dtype}")
    config = composed("prompt_aug_async", *keys).copy()
    monkeypatch.setattr(PPOTrainerSeparateAsync, "__init__", lambda trainer, config: None)
    SeparateAsyncTrainer(config)
    transport = config.actor_rollout_ref.rollout.checkpoint_engine
    own = transport.engine_kwargs[transport.backend]
    engine = CheckpointEngineRegistry.new(transport.backend, bucket_size=1, **own)
    assert isinstance(engine, GlooCheckpointEngine) and engine.dtype == sent


# ------------------------------------------------------------------------- sockets of two runs

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


def everything() -> dict[str, Any]:
    """Everything that needs verl and vLLM, whose import takes seconds."""
    seen: dict[str, Any] = {"address": verls_address()}
    for name, runs in (("two runs", ["first", "second"]), ("no ids", ["", ""])):
        with tempfile.TemporaryDirectory() as folder:  # tmp_path is too long for a socket's name
            seen[name] = exchange(runs, folder)
    return seen


@pytest.fixture(scope="module")
def seen() -> dict[str, Any]:
    """The result of `everything` in a process with this project's plugin."""
    code = (
        "import json, os, sys; sys.path[:0] = sys.argv[1:]; import test_weights\n"
        "print(json.dumps(test_weights.everything()), flush=True); os._exit(0)\n"
    )
    folders = Path(__file__).parent, Path(fresh_process.__file__).parent
    plugin = {"VERL_USE_EXTERNAL_MODULES": "recipe.plugin"}
    return fresh_process.look(code, *map(str, folders), **plugin)


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
