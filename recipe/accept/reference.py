"""Loss and gradient of the device against float32 on the CPU.

    python -m recipe.accept.reference MODEL OUT

A small batch of random tokens, packed as in a run; on the device in bfloat16 with verl's function
for log-probabilities, on the CPU in float32 with torch's log softmax. Without a GPU the device is
the CPU too, in bfloat16.
"""

import sys
from pathlib import Path
from typing import Any

LENGTHS = (17, 1, 30)


def gradient(model: Any, ids: Any, positions: Any, logprobs: Any) -> tuple[Any, Any]:
    """(log-probs, gradient of their mean, one vector, float32), both on the CPU."""
    import torch

    logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits[0, :-1]
    values = logprobs(logits, ids[0, 1:])
    values.float().mean().backward()
    grads = [p.grad.float().cpu().flatten() for p in model.parameters() if p.grad is not None]
    return values.detach().float().cpu(), torch.cat(grads)


def main(path: str, out: Path) -> int:
    import torch
    from transformers import AutoModelForCausalLM
    from verl.utils.torch_functional import logprobs_from_logits

    import recipe.plugin  # noqa: F401  (as in every process of a run)
    from prompt_aug.base.files import write_json

    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    exact = AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="sdpa"
    )
    ids = torch.randint(0, exact.config.vocab_size, (1, sum(LENGTHS)))
    positions = torch.cat([torch.arange(n) for n in LENGTHS])[None]

    def plain(logits: Any, labels: Any) -> Any:
        return logits.log_softmax(-1).gather(-1, labels[:, None])[:, 0]

    wanted = gradient(exact, ids, positions, plain)
    model = exact.to(torch.bfloat16).to(device)
    model.zero_grad()
    got = gradient(model, ids.to(device), positions.to(device), logprobs_from_logits)
    write_json(
        out,
        {
            "largest log-prob error, nats": float((got[0] - wanted[0]).abs().max()),
            "cosine of the gradients": float(
                torch.nn.functional.cosine_similarity(got[1], wanted[1], dim=0)
            ),
        },
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
