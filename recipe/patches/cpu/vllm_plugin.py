"""vLLM's gaps on the CPU: discarded weights and a slow sampler (`recipe.patches.cpu.sampler`)."""

from typing import Any

from recipe.patches import cpu


def register() -> None:
    """Entry point of ``vllm.general_plugins``; does nothing unless ``VERL_PLATFORM=cpu``.

    On a CPU, vLLM packs each linear weight for oneDNN and discards the original, so a live
    weight update fails with "Parameter has no attribute weight_loader". With this patch
    every linear layer multiplies by its unpacked weight.
    """
    if not cpu.requested():
        return
    import torch
    from vllm.model_executor.layers import utils
    from vllm.v1.sample.ops import topk_topp_sampler

    from recipe.patches.cpu.sampler import adapt_sampler

    def keep_weight(layer: Any, remove_weight: bool) -> None:
        layer.cpu_linear = torch.nn.functional.linear

    # vLLM 0.28's layers import the function after they have loaded their weights.
    utils.dispatch_cpu_unquantized_gemm = keep_weight
    adapt_sampler(topk_topp_sampler)
