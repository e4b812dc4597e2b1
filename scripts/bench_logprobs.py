"""Log-probabilities without flash-attn: verl's loop over tokens and ours, in turns.

    python scripts/bench_logprobs.py [--tokens 4000] [--vocabulary 260] [--repeats 9]

Values and gradients of float32 logits, as an update of the actor computes them. Prints the median
milliseconds of both, their ratio, and the largest difference of values and of gradients. The toy
model has some 4000 tokens in a mini-batch and a vocabulary of about 260.
"""

import statistics
import time
from collections.abc import Callable

import torch
import verl.utils.torch_functional as functional

from prompt_aug.commands import make_parser
from recipe.patches.logprobs import logprobs

Function = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def stock() -> Function:
    """verl's own, whether or not this process has replaced it."""
    function = functional.logprobs_from_logits_v2
    return getattr(function, "__wrapped__", function)


def timed(function: Function, logits: torch.Tensor, labels: torch.Tensor) -> tuple[float, list]:
    """(milliseconds of a forward and a backward pass, [values, gradient])."""
    leaf = logits.clone().requires_grad_()
    began = time.perf_counter()
    values = function(leaf, labels)
    values.mean().backward()
    return (time.perf_counter() - began) * 1e3, [values.detach(), leaf.grad]


def main() -> None:
    parser = make_parser(
        "python scripts/bench_logprobs.py",
        __doc__,
        example="python scripts/bench_logprobs.py --tokens 4000 --vocabulary 260",
    )
    parser.add_argument("--tokens", type=int, default=4000, help="of a mini-batch")
    parser.add_argument("--vocabulary", type=int, default=260, help="logits of a token")
    parser.add_argument("--repeats", type=int, default=9, help="of both, in turns")
    given = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(given.tokens, given.vocabulary, generator=generator)
    labels = torch.randint(0, given.vocabulary, (given.tokens,), generator=generator)
    pairs = [
        (timed(stock(), logits, labels), timed(logprobs, logits, labels))
        for _ in range(given.repeats)
    ]
    theirs, ours = (statistics.median(pair[i][0] for pair in pairs) for i in (0, 1))
    apart = [
        float((a - b).abs().max()) for a, b in zip(pairs[0][0][1], pairs[0][1][1], strict=True)
    ]
    print(
        f"{given.tokens} tokens x {given.vocabulary} logits, {torch.get_num_threads()} threads: "
        f"verl {theirs:.1f} ms, ours {ours:.1f} ms, ratio {theirs / ours:.1f}; "
        f"largest difference of values {apart[0]:g}, of gradients {apart[1]:g}"
    )


if __name__ == "__main__":
    main()
