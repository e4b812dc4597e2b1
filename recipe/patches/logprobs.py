"""Log-probabilities in float32, in chunks of tokens, where flash-attn is not installed.

With flash-attn, verl uses its cross-entropy kernel, which computes in float32 from bfloat16 logits.
Without it, verl 0.9.1 uses `logprobs_from_logits_v2`, a loop over single tokens. For bfloat16
logits it returns bfloat16: with 8 bits log p = -5.03 is off by up to 0.016, and so is every ratio,
covariance and KL. For float32 logits it is exact but slow: the graph has a node for every token,
which takes a quarter of an update of the toy model. This function returns float32 for both, as the
kernel does. For float32 logits values and gradients equal verl's to the last bit.
"""

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch
import wrapt

CHUNK = 1024  # tokens at a time: 1024 x 151,936 logits in float32 are 0.6 GB
ENTRIES = 2**22  # logits at a time on a CPU: 16 MB, which its cache holds


def part_size(logits: torch.Tensor) -> int:
    """Return the rows of (N, V) logits that are computed at a time."""
    fitting = ENTRIES // logits.shape[-1] if logits.device.type == "cpu" else CHUNK
    return max(1, min(CHUNK, fitting))


def parts(logits: torch.Tensor) -> Iterator[slice]:
    """Yield slices of these rows. With autograd each would have a gradient of (N, V)."""
    size = part_size(logits)
    yield from (slice(start, start + size) for start in range(0, max(1, len(logits)), size))


class _LogProbs(torch.autograd.Function):
    """log softmax(logits[node])[labels] of (N, V) logits, float32; the gradient has their dtype."""

    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, labels: torch.Tensor, node: torch.Tensor
    ) -> torch.Tensor:
        lse = torch.cat([logits[rows].float().logsumexp(-1) for rows in parts(logits)])
        ctx.save_for_backward(logits, labels, node, lse)
        return logits[node, labels].float() - lse[node]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        # d log p_y / d z_v = [v = y] - p_v, summed over the tokens of a node
        logits, labels, node, lse = ctx.saved_tensors
        (grad,) = grads
        share = grad.new_zeros(len(logits)).index_add_(0, node, grad)
        grad_logits = torch.empty_like(logits)
        for rows in parts(logits):
            part = torch.sub(logits[rows], lse[rows, None])  # float32, for any logits
            part.exp_().mul_(-share[rows, None])
            here = (node >= rows.start) & (node < rows.stop)
            part.index_put_((node[here] - rows.start, labels[here]), grad[here], accumulate=True)
            grad_logits[rows] = part.to(grad_logits.dtype)
        return grad_logits, None, None


def logprobs_of_nodes(
    logits_NV: torch.Tensor, labels: torch.Tensor, node: torch.Tensor
) -> torch.Tensor:
    """log softmax(logits[node])[labels], float32; several tokens may share the logits of a node."""
    return _LogProbs.apply(logits_NV, labels, node)


def logprobs(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Float32 log-probabilities of `labels` (...) under `logits` (..., V)."""
    flat = logits.reshape(-1, logits.shape[-1])
    node = torch.arange(len(flat), device=logits.device)
    return logprobs_of_nodes(flat, labels.reshape(-1), node).view(labels.shape)


@wrapt.when_imported("verl.utils.torch_functional")
def adapt(module: ModuleType) -> None:
    """Replace verl's function, except for 64-bit logits."""

    def replaced(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        def own(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            if logits.dtype == torch.float64:
                return wrapped(logits, labels)
            return logprobs(logits, labels)

        return own(*args, **kwargs)

    if not module.FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE:
        wrapt.wrap_function_wrapper(module, "logprobs_from_logits_v2", replaced)
