"""The weights that an engine gets from a LoRA actor, from verl's function and from ours."""

import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tiny_lora import ALPHA, RANK, logits, tuned
from tiny_model import untrained
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from verl.workers.engine.fsdp import transformer_impl
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

import recipe.plugin  # noqa: F401  (the hook, as in every process of a run)

pytestmark = pytest.mark.config
SENT = FSDPEngine._merged_lora_per_tensor_param


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The tuned model as verl's FSDP2 engine holds it."""
    monkeypatch.setattr(transformer_impl, "get_device_id", lambda: "cpu")
    monkeypatch.setattr(transformer_impl, "log_gpu_memory_usage", lambda *_, **__: None)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh, model = init_device_mesh("cpu", (1,), mesh_dim_names=("fsdp",)), tuned()
    for layer in model.base_model.model.model.layers:
        fully_shard(layer, mesh=mesh)
    engine: Any = object.__new__(FSDPEngine)  # without verl's __init__
    engine.module, engine._is_offload_param = fully_shard(model, mesh=mesh), False
    yield engine
    dist.destroy_process_group()


def sent(engine: Any, function: Callable[[Any], Iterator[tuple[str, Any]]]) -> dict[str, Any]:
    """Everything that is sent, in buffers that are read at the end, as by an engine."""
    return dict(list(function(engine)))


def test_an_engine_with_them_is_the_actor(engine: Any) -> None:
    before = {name: t.full_tensor().clone() for name, t in engine.module.state_dict().items()}
    model = untrained()
    found = model.load_state_dict(sent(engine, SENT))
    assert not found.missing_keys
    torch.testing.assert_close(logits(model), logits(tuned()), atol=1e-5, rtol=0)
    assert (logits(model) - logits(untrained())).abs().max() > 0.01
    after = engine.module.state_dict()  # the start model's weights are back, to the last bit
    assert all(torch.equal(after[name].full_tensor(), value) for name, value in before.items())


def test_verls_own_are_still_bfloat16(engine: Any) -> None:
    verls: Any = SENT.__wrapped__  # type: ignore[attr-defined]
    dtypes = {t.dtype for t in sent(engine, lambda e: verls(e)).values()}
    assert dtypes == {torch.bfloat16}, "the gap is closed upstream: delete the patch"
    assert {t.dtype for t in sent(engine, SENT).values()} == {torch.float32}


def drawn(seed: int, function: Callable[[Any, Any], Any]) -> dict[str, torch.Tensor]:
    """The adapter that verl's engine builds for `fsdp_config.seed`."""
    engine: Any = object.__new__(FSDPEngine)
    engine.engine_config = types.SimpleNamespace(seed=seed)
    layers = {"target_modules": "all-linear", "target_parameters": None, "exclude_modules": None}
    engine.model_config = types.SimpleNamespace(lora_rank=RANK, lora_alpha=ALPHA, **layers)
    model = function(engine, untrained())
    return {name: p.data for name, p in model.named_parameters() if "lora_A" in name}


def test_the_adapter_is_drawn_by_the_seed() -> None:
    ours: Any = FSDPEngine._build_lora_module
    first, again, other = (drawn(seed, ours) for seed in (1, 1, 2))
    assert first.keys() == other.keys() and len(first) == 2 * 7
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in first)


def test_verls_own_adapter_is_still_without_a_seed() -> None:
    verls: Any = FSDPEngine._build_lora_module.__wrapped__  # type: ignore[attr-defined]

    def after(draws: int) -> Callable[[Any, Any], Any]:
        def build(engine: Any, model: Any) -> Any:
            torch.rand(draws)  # what other parts of the process draw
            return verls(engine, model)

        return build

    first, second = drawn(1, after(1)), drawn(1, after(2))
    assert not any(torch.equal(first[name], second[name]) for name in first)
