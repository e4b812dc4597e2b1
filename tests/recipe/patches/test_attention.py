"""Attention without flash-attn: rows packed as verl packs them on a GPU, of actor and critic."""

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


@pytest.mark.parametrize("checkpointing", [False, True])
def test_with_sdpa_a_packed_sequence_sees_only_itself(checkpointing: bool) -> None:
    """machine: gpu has use_remove_padding, which leaves the mask to the position ids."""
    actor = untrained().train()
    if checkpointing:  # as in a run: recomputation in the backward pass
        actor.gradient_checkpointing_enable()
    lengths = [7, 1, 12]
    parts = [torch.randint(0, 40, (1, n)) for n in lengths]
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    packed = actor(input_ids=torch.cat(parts, 1), position_ids=positions, use_cache=False).logits
    alone = torch.cat([actor(input_ids=p, use_cache=False).logits for p in parts], 1)
    torch.testing.assert_close(packed, alone, atol=1e-5, rtol=0)
    grads = []
    for logits in (packed, alone):
        actor.zero_grad()
        logits.logsumexp(-1).sum().backward()
        grads.append(torch.cat([p.grad.flatten() for p in actor.parameters()]))
    torch.testing.assert_close(grads[0], grads[1], atol=1e-4, rtol=1e-4)
    # Negative control: without their own positions they attend to earlier sequences.
    mixed = actor(input_ids=torch.cat(parts, 1), use_cache=False).logits
    assert (mixed - alone)[:, 7:].abs().max() > 1e-3


def test_verl_still_fixes_the_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object, attn_implementation: str, **__: object) -> str:
        return attn_implementation

    monkeypatch.setattr(AutoModelForTokenClassification, "from_pretrained", load)
    config = SimpleNamespace(_attn_implementation="sdpa")
    given: Any = {"local_path": "", "torch_dtype": None, "trust_remote_code": False}
    verls: Any = model.load_valuehead_model.__wrapped__
    closed = "the gap is closed upstream: delete the patch"
    assert verls(**given, model_config=config) == "flash_attention_2", closed
    assert model.load_valuehead_model(**given, model_config=config) == "sdpa"


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
