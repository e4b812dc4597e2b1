"""Attention without flash-attn on rows packed as verl packs them on a GPU."""

import pytest
import torch
from tiny_model import untrained
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from transformers import masking_utils
from transformers.integrations import flex_attention as in_transformers


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


def test_with_flex_attention_a_packed_sequence_sees_only_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The values alone: torch has no gradient of it on a CPU."""

    def plain(*args: object, training: bool = False, **kwargs: object) -> object:
        return flex_attention(*args, **kwargs)  # compiling takes half a minute

    def mask(**kwargs: object) -> object:
        return create_block_mask(**{**kwargs, "_compile": False})

    monkeypatch.setattr(in_transformers, "compile_friendly_flex_attention", plain)
    monkeypatch.setattr(masking_utils, "create_block_mask", mask)
    sdpa = untrained(hidden_size=64)
    flex = untrained(hidden_size=64, attn_implementation="flex_attention")
    parts = [torch.randint(0, 40, (1, n)) for n in (7, 1, 12)]
    positions = torch.cat([torch.arange(part.shape[1]) for part in parts])[None]
    with torch.no_grad():
        alone = torch.cat([sdpa(input_ids=p, use_cache=False).logits for p in parts], 1)
        row = torch.cat(parts, 1)
        packed = flex(input_ids=row, position_ids=positions, use_cache=False).logits
        mixed = flex(input_ids=row, use_cache=False).logits
    torch.testing.assert_close(packed, alone, atol=1e-5, rtol=0)
    assert (mixed - alone)[:, 7:].abs().max() > 1e-3
