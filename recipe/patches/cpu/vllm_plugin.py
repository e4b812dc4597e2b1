"""vLLM's gaps on the CPU: discarded weights, and a sampler that draws for each vocabulary entry.

vLLM samples argmax_v p_v / e_v with exponential e_v. On a CPU they come from one thread: for a
vocabulary of 49,152 that takes 6 ms a token, twice with seeded requests, which is more than the
model of 135 M parameters needs. Here one uniform number per token is mapped through the inverse of
the cumulative distribution, which has the same distribution:

    token = min { v : p_0 + ... + p_v > u (p_0 + ... + p_{V-1}) },   u ~ Uniform[0, 1)
"""

from typing import Any

import torch
from torch import Tensor

from recipe.patches import cpu

BLOCK = 256  # entries of a block: sums of blocks first, then the entries of one block
# Below this size the vocabulary's exponentials cost under a millisecond, so vLLM's sampler is kept.
LARGE_VOCABULARY = 4096


def inverse_sample(probs: Tensor, uniform: Tensor) -> Tensor:
    """Return the tokens, int64 (R), of probabilities (R, V) and numbers (R) in [0, 1).

    Rows need not sum to 1.
    """
    rows = torch.arange(len(probs))
    missing = -probs.shape[-1] % BLOCK
    blocks = torch.nn.functional.pad(probs, (0, missing)).unflatten(-1, (-1, BLOCK))
    ends = blocks.sum(-1, dtype=torch.float64).cumsum(-1)
    target = uniform.double() * ends[:, -1]
    block = torch.searchsorted(ends, target[:, None], right=True)[:, 0]
    block = block.clamp(max=ends.shape[-1] - 1)
    before = torch.where(block > 0, ends[rows, block - 1], 0.0)
    inside = blocks[rows, block]
    rest = (target - before)[:, None]
    entry = torch.searchsorted(inside.double().cumsum(-1), rest, right=True)[:, 0]
    # The two sums are rounded differently, so the search may end behind the last possible token.
    possible = BLOCK - 1 - (inside > 0).flip(-1).byte().argmax(-1)
    return block * BLOCK + torch.minimum(entry, possible)


def adapt_sampler(module: Any) -> None:
    """Replace the CPU method of vLLM's ``topk_topp_sampler`` for large vocabularies."""
    original = module.TopKTopPSampler.forward_cpu

    def forward_cpu(
        self: Any, logits: Tensor, generators: dict[int, torch.Generator], k: Any, p: Any
    ) -> tuple[Tensor, Tensor | None]:
        if logits.shape[-1] < LARGE_VOCABULARY:
            return original(self, logits, generators, k, p)
        logits = module.apply_top_k_top_p(logits, k, p)
        logprobs = logits.log_softmax(-1, dtype=torch.float32)
        uniform = torch.rand(len(logits))
        for row, generator in generators.items():
            uniform[row] = torch.rand((), generator=generator)
        returned = {"processed_logits": logits, "processed_logprobs": logprobs}
        return inverse_sample(logprobs.exp(), uniform), returned.get(self.logprobs_mode)

    module.TopKTopPSampler.forward_cpu = forward_cpu


def register() -> None:
    """Entry point of ``vllm.general_plugins``: changes vLLM's engines on a CPU alone.

    All of them, in training and evaluation, sample by `inverse_sample`. With ``VERL_PLATFORM=cpu``
    every linear layer also multiplies by its unpacked weight: vLLM packs each weight for oneDNN and
    discards the original, so that a live weight update fails with "Parameter has no attribute
    weight_loader".
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.model_executor.layers import utils
    from vllm.v1.sample.ops import topk_topp_sampler

    adapt_sampler(topk_topp_sampler)
    if not cpu.requested():
        return

    def keep_weight(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    # vLLM 0.28's layers import the function after they have loaded their weights.
    utils.dispatch_cpu_unquantized_gemm = keep_weight
