"""The transport of weights to engines with GPUs of their own."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from verl.checkpoint_engine import CheckpointEngineRegistry

from recipe.rollout.weights import BACKEND, GlooCheckpointEngine

WEIGHTS = {
    "matrix": torch.randn(5, 3).T,  # not contiguous
    "half": torch.randn(7).bfloat16(),
    "number": torch.tensor(2.5),
    "empty": torch.empty(0, 4),
    "integers": torch.arange(3),
}


@pytest.fixture
def engines(monkeypatch: pytest.MonkeyPatch) -> list[GlooCheckpointEngine]:
    """Two ranks of an actor, then two engine workers, as verl's manager makes them."""
    monkeypatch.setattr("ray.util.get_node_ip_address", lambda: "127.0.0.1")
    assert CheckpointEngineRegistry.get(BACKEND) is GlooCheckpointEngine
    return [GlooCheckpointEngine(2**20, is_master=i == 0) for i in range(4)]


@pytest.mark.parametrize(("weights", "interface"), [(WEIGHTS, "lo"), (WEIGHTS, ""), ({}, "")])
def test_all_engines_get_the_weights_of_the_first_rank(
    engines: list[GlooCheckpointEngine],
    monkeypatch: pytest.MonkeyPatch,
    weights: dict[str, torch.Tensor],
    interface: str,
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", interface)
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
                assert tensor.dtype == weights[name].dtype
                assert torch.equal(tensor, weights[name])
        for engine in engines:
            engine.finalize()
    assert sorted(left) == [0, 0, 1, 1]
