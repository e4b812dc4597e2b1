"""The transport of weights to engines with GPUs of their own."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from composed import composed
from verl.checkpoint_engine import CheckpointEngineRegistry
from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync

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
