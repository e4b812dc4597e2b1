"""Update of the actor on one GPU: attention, tokens of a micro-batch, compiled entropy.

A bfloat16 model of random weights, with the shape of Qwen2.5-Math-1.5B, computes log-probabilities
(forward) and an update (forward and backward, gradient checkpointing) of packed sequences of 300 to
1,500 tokens (the last is cut). MFU is 8 operations per parameter and token, as a share of --peak.
Sharding, optimizer and verl's own work are not included. The second table times the first two calls
of verl's entropy, which is compiled for each number of tokens. A CPU runs a tiny model.
"""

import functools
import statistics
import time
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from transformers import AutoModelForCausalLM, Qwen2Config
from verl.utils.torch_functional import entropy_from_logits_with_chunking

import recipe.actor.varlen  # noqa: F401  (registers torch_varlen)
from prompt_aug.base.files import read_json
from recipe.patches.logprobs import logprobs
from recipe.run.host import ROOT

EXAMPLE = "--attention sdpa torch_varlen --tokens 4096 8192 16384"
TINY = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 128, "vocab_size": 1000}
TINY |= {"num_attention_heads": 4, "num_key_value_heads": 2}


def seconds(work: Callable[[], object]) -> float:
    """Return the seconds of one call, including the work that it starts on the device."""
    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    synchronize()
    began = time.perf_counter()
    work()
    synchronize()
    return time.perf_counter() - began


def packed(tokens: int, device: str) -> dict[str, torch.Tensor]:
    """Return one row of `tokens` tokens; each sequence has positions from 0."""
    draw = torch.Generator().manual_seed(tokens)
    cuts = torch.randint(300, 1501, (tokens // 300 + 1,), generator=draw).cumsum(0)
    ends = [0, *(int(cut) for cut in cuts if cut < tokens), tokens]
    positions = torch.cat([torch.arange(b - a) for a, b in pairwise(ends)])
    ids = torch.randint(0, 1000, (1, tokens), generator=draw)
    return {"input_ids": ids.to(device), "position_ids": positions[None].to(device)}


def model_of(attention: str, device: str) -> Any:
    fields = dict(TINY)
    if device == "cuda":
        fields = read_json(ROOT / "recipe/config/shapes.json")["Qwen/Qwen2.5-Math-1.5B"]
    config = Qwen2Config(**fields, attn_implementation=attention)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model.train()


def forward(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    logits = model(**batch, use_cache=False).logits[0, :-1]
    return logprobs(logits, batch["input_ids"][0, 1:])


def update(model: Any, batch: dict[str, torch.Tensor]) -> None:
    forward(model, batch).mean().backward()


def measured(
    model: Any, batch: dict[str, torch.Tensor], repeats: int
) -> tuple[float, float, float]:
    """Return median seconds of an update and of the log-probs, and the update's peak in GB."""
    peak, times, cuda = float("nan"), [], torch.cuda.is_available()
    for work in (update, forward):
        call = functools.partial(work, model, batch)
        if cuda:
            torch.cuda.reset_peak_memory_stats()
        with torch.set_grad_enabled(work is update):
            seconds(call)  # also compiles
            if cuda and work is update:
                peak = torch.cuda.max_memory_allocated() / 1e9
            times.append(statistics.median(seconds(call) for _ in range(repeats)))
    model.zero_grad(set_to_none=True)
    return times[0], times[1], peak


def main(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sizes = [4096, 8192, 16384] if device == "cuda" else [512, 1024]
    parser.add_argument("--attention", nargs="+", default=["sdpa"], help="implementations")
    parser.add_argument("--tokens", nargs="+", type=int, default=sizes, help="of a micro-batch")
    parser.add_argument("--repeats", type=int, default=3, help="calls; the median counts")
    parser.add_argument("--peak", type=float, default=989e12, help="FLOP/s in bfloat16")
    given = parser.parse_args(arguments)
    print("| attention | tokens | update, us a token | log-probs | MFU | peak GB |")
    print("|---|---|---|---|---|---|")
    for attention in given.attention:
        model = model_of(attention, device)
        for tokens in given.tokens:
            *times, peak = measured(model, packed(tokens, device), given.repeats)
            share = 8 * model.num_parameters() * tokens / times[0] / given.peak
            cells = " | ".join(f"{1e6 * t / tokens:.1f}" for t in times)
            print(f"| {attention} | {tokens:,} | {cells} | {share:.3f} | {peak:.1f} |", flush=True)
    print("\n| entropy | tokens | first call, s | second call, s |\n|---|---|---|---|")
    vocabulary = model.config.vocab_size
    del model
    plain = entropy_from_logits_with_chunking
    for name, entropy in (("plain", plain), ("compiled", torch.compile(plain, dynamic=True))):
        for tokens in (given.tokens[-1] - 1, given.tokens[-1] - 2):
            logits = torch.randn(tokens, vocabulary, device=device, dtype=torch.bfloat16)
            work = functools.partial(entropy, logits)
            with torch.no_grad():
                cells = " | ".join(f"{seconds(work):.3f}" for _ in range(2))
            print(f"| {name} | {tokens:,} | {cells} |", flush=True)
