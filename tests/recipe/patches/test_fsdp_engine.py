"""FSDP engines: the weights that are sent with LoRA, and seeds of adapters and value heads."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tiny_lora import ALPHA, RANK, logits, tuned
from tiny_model import untrained
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from transformers import AutoConfig, Qwen2ForTokenClassification
from verl.utils import model
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


def test_an_engine_with_them_is_the_actor(engine: Any) -> None:
    before = {name: t.full_tensor().clone() for name, t in engine.module.state_dict().items()}
    received = untrained()
    result = received.load_state_dict(dict(SENT(engine)))
    assert not result.missing_keys
    torch.testing.assert_close(logits(received), logits(tuned()), atol=1e-5, rtol=0)
    assert (logits(received) - logits(untrained())).abs().max() > 0.01
    after = engine.module.state_dict()  # the start model's weights are back, to the last bit
    assert all(torch.equal(after[name].full_tensor(), value) for name, value in before.items())


def test_verls_own_are_still_bfloat16(engine: Any) -> None:
    verls: Any = SENT.__wrapped__  # type: ignore[attr-defined]
    dtypes = {t.dtype for t in dict(verls(engine)).values()}
    assert dtypes == {torch.bfloat16}, "the gap is closed upstream: delete the patch"
    assert {t.dtype for t in dict(SENT(engine)).values()} == {torch.float32}


def drawn(seed: int, function: Callable[[Any, Any], Any]) -> dict[str, torch.Tensor]:
    """The adapter that verl's engine builds for `fsdp_config.seed`."""
    engine: Any = object.__new__(FSDPEngine)
    engine.engine_config = SimpleNamespace(seed=seed)
    layers = {"target_modules": "all-linear", "target_parameters": None, "exclude_modules": None}
    engine.model_config = SimpleNamespace(lora_rank=RANK, lora_alpha=ALPHA, **layers)
    adapted = function(engine, untrained())
    return {name: p.data for name, p in adapted.named_parameters() if "lora_A" in name}


def test_the_adapter_is_drawn_by_the_seed() -> None:
    ours: Any = FSDPEngine._build_lora_module
    first, again, third = (drawn(seed, ours) for seed in (1, 1, 2))
    assert first.keys() == third.keys() and len(first) == 2 * 7
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], third[name]) for name in first)


def test_verls_own_adapter_is_still_without_a_seed() -> None:
    verls: Any = FSDPEngine._build_lora_module.__wrapped__  # type: ignore[attr-defined]

    def after(draws: int) -> Callable[[Any, Any], Any]:
        def build(engine: Any, model: Any) -> Any:
            torch.rand(draws)  # what other parts of the process draw
            return verls(engine, model)

        return build

    first, second = drawn(1, after(1)), drawn(1, after(2))
    assert not any(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int, Any], Any]:
    """The head by (seed of the engine, draws before in the process, function that builds it)."""
    untrained().save_pretrained(tmp_path)

    def load(local_path: str, model_config: Any, **_: Any) -> Any:  # verl's wants flash-attn
        return Qwen2ForTokenClassification.from_pretrained(local_path, config=model_config)

    monkeypatch.setattr(model, "load_valuehead_model", load)

    def build(seed: int, draws: int, function: Any) -> torch.Tensor:
        engine: Any = object.__new__(FSDPEngine)  # without verl's __init__
        engine.engine_config = SimpleNamespace(seed=seed, model_dtype="fp32")
        engine.use_remove_padding, engine.ulysses_sequence_parallel_size = False, 1
        engine.device_mesh = SimpleNamespace(get_coordinate=lambda: (0,))
        engine.model_config = SimpleNamespace(
            hf_config=AutoConfig.from_pretrained(tmp_path),
            **{"model_type": "value_model", "local_path": tmp_path, "trust_remote_code": False},
            **{"use_liger": False, "use_fused_kernels": False, "fused_kernel_options": None},
            enable_gradient_checkpointing=False,
        )
        torch.rand(draws)  # what other parts of the process draw
        return function(engine).score.weight.data

    return build


def test_a_value_head_is_drawn_by_the_seed(head: Callable[[int, int, Any], Any]) -> None:
    ours: Any = FSDPEngine._build_module
    first, again, third = (head(seed, seed, ours) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, third)
    assert first.std() > 0


def test_verls_own_is_still_without_a_seed(head: Callable[[int, int, Any], Any]) -> None:
    verls: Any = FSDPEngine._build_module.__wrapped__  # type: ignore[attr-defined]
    first, second = head(1, 1, verls), head(1, 2, verls)
    assert not torch.equal(first, second), "the gap is closed upstream: delete the patch"
