"""The value head that verl's engine adds to a start model, from verl's function and from ours."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_model import untrained
from transformers import AutoConfig, Qwen2ForTokenClassification
from verl.utils import model
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

import recipe.plugin  # noqa: F401  (the hook, as in every process of a run)

pytestmark = pytest.mark.config


@pytest.fixture
def drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int, Any], Any]:
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


def test_it_is_drawn_by_the_seed(drawn: Callable[[int, int, Any], Any]) -> None:
    ours: Any = FSDPEngine._build_module
    first, again, other = (drawn(seed, seed, ours) for seed in (1, 1, 2))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert first.std() > 0


def test_verls_own_is_still_without_a_seed(drawn: Callable[[int, int, Any], Any]) -> None:
    verls: Any = FSDPEngine._build_module.__wrapped__  # type: ignore[attr-defined]
    first, second = drawn(1, 1, verls), drawn(1, 2, verls)
    assert not torch.equal(first, second), "the gap is closed upstream: delete the patch"
