"""Attention without flash-attn on rows packed as verl packs them on a GPU."""

import pytest
import torch
from tiny_model import untrained


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
