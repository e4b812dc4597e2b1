"""The model of a critic, loaded without flash-attn; packed rows as verl sends them on a GPU."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_model import untrained
from transformers import AutoConfig, AutoModelForTokenClassification
from verl.utils import model

import recipe.plugin  # noqa: F401  (the hook, as in every process of a run)

pytestmark = pytest.mark.config


def test_verl_still_fixes_the_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object, attn_implementation: str, **__: object) -> str:
        return attn_implementation

    monkeypatch.setattr(AutoModelForTokenClassification, "from_pretrained", load)
    config = SimpleNamespace(_attn_implementation="sdpa")
    asked: Any = {"local_path": "", "torch_dtype": None, "trust_remote_code": False}
    verls: Any = model.load_valuehead_model.__wrapped__
    closed = "the gap is closed upstream: delete the patch"
    assert verls(**asked, model_config=config) == "flash_attention_2", closed
    assert model.load_valuehead_model(**asked, model_config=config) == "sdpa"


def test_the_values_of_packed_rows_are_those_of_each_row(tmp_path: Path) -> None:
    untrained().save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path, attn_implementation="sdpa")
    config.num_labels = 1
    critic = model.load_valuehead_model(tmp_path, torch.float32, config, False)
    rows = [torch.arange(n) % config.vocab_size for n in (5, 9, 1)]
    ids, positions = torch.cat(rows), torch.cat([torch.arange(len(row)) for row in rows])
    with torch.no_grad():
        packed = critic(input_ids=ids[None], position_ids=positions[None], use_cache=False).logits
        single = [critic(input_ids=row[None], use_cache=False).logits for row in rows]
    torch.testing.assert_close(packed, torch.cat(single, 1), atol=1e-6, rtol=0)
    assert not torch.allclose(packed[0, 5:14], packed[0, :9])  # negative control
