"""The attention "torch_varlen" of transformers: torch's flash attention, for packed rows.

verl packs the rows of a micro-batch into one (``use_remove_padding``), without a mask; position ids
show where each begins. sdpa then computes a dense mask of tokens x tokens and copies keys and
values to all heads. `torch.nn.attention.varlen.varlen_attn` reads the boundaries of the rows
instead: causal, grouped heads, sliding windows. It needs a GPU, but no package.
"""

import functools
import inspect
from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.utils.weak import WeakTensorKeyDictionary
from transformers import AttentionInterface, AttentionMaskInterface

NAME = "torch_varlen"
KINDS = {"full_attention", "sliding_attention"}  # of layers
# (boundaries, longest row) by the position ids of a forward pass. All layers share that tensor,
# also when gradient checkpointing computes them again.
_SEEN: MutableMapping[Tensor, tuple[Tensor, int]] = WeakTensorKeyDictionary()


def boundaries(position_ids: Tensor) -> tuple[Tensor, int]:
    """Return where packed rows begin, with the end (int32), and the tokens of the longest."""
    positions = position_ids.flatten()
    starts = (positions.diff() != 1).nonzero().flatten() + 1
    places = torch.cat([starts.new_zeros(1), starts, starts.new_tensor([len(positions)])])
    return places.to(torch.int32), int(places.diff().max())


@functools.cache
def grouped(op: Callable[..., Any]) -> dict[str, bool]:
    """Return the argument with which `op` takes fewer key heads; torch 2.11 has none."""
    return {"enable_gqa": True} if "enable_gqa" in inspect.signature(op).parameters else {}


def no_mask(config: Any, attention_mask: Tensor | None = None, **_: Any) -> None:
    """Return no mask. ValueError for padded rows, and for layers that are not causal or windows."""
    causal = getattr(config, "is_causal", True)
    kinds = set(getattr(config, "layer_types", None) or KINDS)
    if attention_mask is not None or not causal or not kinds <= KINDS:
        raise ValueError(f"{NAME} is for packed rows without a mask, and {sorted(KINDS)}")


def forward(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, **more: Any
) -> tuple[Tensor, None]:
    """Return the attention (1, T, H, D) of a (1, H, T, D) query; ValueError for other inputs."""
    rows, tokens, ids = query.shape[0], query.shape[2], more.get("position_ids")
    beyond = more.get("dropout") or any(more.get(x) is not None for x in ("softcap", "s_aux"))
    if rows != 1 or ids is None or ids.numel() != tokens or attention_mask is not None or beyond:
        raise ValueError(f"{NAME} is for packed rows without mask, dropout, soft-capping and sinks")
    if ids not in _SEEN:
        _SEEN[ids] = boundaries(ids)
    places, longest = _SEEN[ids]
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    # Keys up to `left` places before the query's; transformers counts the query's own as well.
    left = (more.get("sliding_window") or 0) - 1
    options = {"scale": more.get("scaling"), "window_size": (left, 0), **grouped(varlen_attn)}
    return varlen_attn(q, k, v, places, places, longest, longest, **options)[None], None


AttentionInterface.register(NAME, forward)
AttentionMaskInterface.register(NAME, no_mask)
