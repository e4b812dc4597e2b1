"""Measurements of scripts/gpu.sh. Each prints its result in a line that begins with "result: "."""

import importlib
import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from shutil import copyfile
from types import SimpleNamespace
from typing import Any

import torch
from bench import median_seconds  # scripts/bench.py
from torch import Tensor

from prompt_aug.base.commands import make_parser, run_command
from prompt_aug.base.errors import UserError
from prompt_aug.base.files import read_json
from recipe.machine.host import ROOT, gpus_here
from recipe.run.folder import read_metrics

START = ROOT / "examples/toy/start"
HEADS, KEY_HEADS, SIZE = 12, 2, 128  # of Qwen2.5-Math-1.5B
ON_GPU = bool(gpus_here())
EXACT = "eager in float32"


class Packed:
    """Attention of `tokens` tokens: packed sequences of 300 to 1,500 (on a CPU 30 to 150)."""

    def __init__(self, tokens: int) -> None:
        device, few = ("cuda", 300) if ON_GPU else ("cpu", 30)
        torch.manual_seed(tokens)
        cuts = torch.randint(few, 5 * few + 1, (tokens // few + 1,)).cumsum(0).tolist()
        ends = [0] + [cut for cut in cuts if cut < tokens] + [tokens]
        lengths = [b - a for a, b in pairwise(ends)]
        self.positions = torch.cat([torch.arange(n) for n in lengths])[None].to(device)
        rows = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths)).to(device)
        self.mask = (rows[:, None] == rows).tril()[None, None]
        heads = (HEADS, KEY_HEADS, KEY_HEADS, HEADS)  # the last: of the gradient
        self.inputs = [torch.randn(1, n, tokens, SIZE, device=device).bfloat16() for n in heads]

    def attention(self, name: str) -> Callable[[], tuple[Tensor, list[Tensor], Tensor]]:
        """Return a function that returns output, inputs and the output's gradient."""
        from transformers import AttentionInterface
        from transformers.models.qwen2.modeling_qwen2 import eager_attention_forward

        if name == "torch_varlen":
            importlib.import_module("recipe.actor.varlen")  # registers it
        dtype = torch.float32 if name == EXACT else torch.bfloat16
        *inputs, gradient = (x.to(dtype) for x in self.inputs)
        inputs = [x.requires_grad_() for x in inputs]
        if name in ("sdpa", "torch_varlen"):
            function, mask = AttentionInterface()[name], self.mask if name == "sdpa" else None
        else:
            function, mask = eager_attention_forward, self.mask.log().to(dtype)
        module = SimpleNamespace(num_key_value_groups=HEADS // KEY_HEADS, training=False)
        more = {"scaling": SIZE**-0.5, "position_ids": self.positions, "is_causal": None}

        def forward() -> tuple[Tensor, list[Tensor], Tensor]:
            return function(module, *inputs, mask, **more)[0], inputs, gradient.transpose(1, 2)

        return forward

    def values(self, name: str) -> list[Tensor]:
        """Return output and gradients in float32."""
        out, inputs, gradient = self.attention(name)()
        return [x.detach().float() for x in (out, *torch.autograd.grad(out, inputs, gradient))]

    def times(self, name: str) -> str:
        """Return the milliseconds of forward and backward."""
        forward = self.attention(name)
        try:
            out, inputs, gradient = forward()
            again = {"retain_graph": True}
            back = median_seconds(lambda: torch.autograd.grad(out, inputs, gradient, **again))
            return f"{name} {1e3 * median_seconds(forward):.2f} + {1e3 * back:.2f}"
        except torch.OutOfMemoryError:
            return f"{name} no memory"


def attention() -> None:
    """Compare attention with eager in float32, by the largest value; time forward + backward."""
    names = ["eager", "sdpa", "torch_varlen"] if ON_GPU else ["eager", "sdpa"]
    sizes = [2048, 8192, 16384] if ON_GPU else [64, 128]
    first = Packed(sizes[0])
    exact, parts = first.values(EXACT), []
    for name in names:
        pairs = zip(first.values(name), exact, strict=True)
        off = [float((x - y).abs().max() / y.abs().max()) for x, y in pairs]
        parts.append(f"{name} off by {off[0]:.1e}, gradients {max(off[1:]):.1e}")
    for tokens in sizes:
        made = Packed(tokens)
        parts.append(f"{tokens:,} tokens, ms: {', '.join(made.times(name) for name in names)}")
    print(f"result: {'; '.join(parts)}{'' if ON_GPU else '; torch_varlen skipped: no GPU'}")


def model(folder: str) -> None:
    """Make a model with the shape of Qwen2.5-Math-1.5B, random weights and the toy's tokenizer."""
    from transformers import AutoModelForCausalLM, Qwen2Config

    fields = read_json(ROOT / "recipe/machine/shapes.json")["Qwen/Qwen2.5-Math-1.5B"]
    ends = {
        name: read_json(START / "config.json")[name] for name in ("bos_token_id", "eos_token_id")
    }
    with torch.device("cuda" if ON_GPU else "cpu"):
        made = AutoModelForCausalLM.from_config(Qwen2Config(**fields, **ends), dtype=torch.bfloat16)
    made.save_pretrained(folder)
    for path in START.iterdir():
        if "token" in path.name or "chat" in path.name:
            copyfile(path, Path(folder, path.name))


def engine(folder: str, *numbers: str) -> None:
    """Measure sampling: sequences at once, requests, each with a seed, and tokens of each."""
    from recipe.machine import environment

    environment.set_defaults(cpu=not ON_GPU, VLLM_LOGGING_LEVEL="ERROR")
    from vllm import LLM, SamplingParams

    at_once, requests, tokens = map(int, numbers)
    options: dict[str, Any] = {"max_num_seqs": at_once, "max_model_len": tokens + 64}
    options |= {} if ON_GPU else {"enforce_eager": True, "enable_chunked_prefill": False}
    llm = LLM(model=folder, use_tqdm_on_load=False, **options)
    prompts = [{"prompt_token_ids": [5] * 60}] * requests
    same = {"max_tokens": tokens, "ignore_eos": True, "detokenize": False}
    seeded = [SamplingParams(seed=i, **same) for i in range(requests)]
    llm.generate(prompts[:8], seeded[:8], use_tqdm=False)
    began = time.perf_counter()
    llm.generate(prompts, seeded, use_tqdm=False)
    rate = requests * tokens / (time.perf_counter() - began)
    runner = {"0": "V1", "1": "V2"}[os.environ["VLLM_USE_V2_MODEL_RUNNER"]]
    asked = f"{requests:,} requests x {tokens} tokens, {at_once:,} at once"
    print(f"result: {rate:,.0f} tokens/s, runner {runner}, {asked}")


def step(folder: str) -> None:
    """Print the figures of a run's last step."""
    from recipe.trial import FIGURES

    line = read_metrics(Path(folder))[-1]
    figures = [f"{label} {line[key]:.4g}" for key, label in FIGURES.items() if key in line]
    tokens = line["response_length/mean"] * line["train/responses"]
    print(f"result: step {line['step']}, {tokens:,.0f} tokens sampled; {'; '.join(figures)}")


def learned(*folders: str) -> None:
    """Print accuracy and entropy of each run, means of the first and last quarter of its steps."""
    parts = []
    for folder in map(Path, folders):
        lines = read_metrics(folder)
        few = max(1, len(lines) // 4)
        means = [
            " to ".join(f"{statistics.mean(x[k] for x in part):.3f}" for part in ends)
            for ends in [(lines[:few], lines[-few:])]
            for k in ("train/accuracy", "train/entropy")
        ]
        pace = statistics.median(line["perf/time_per_step"] for line in lines)
        text = f"{len(lines)} steps, accuracy {means[0]}, entropy {means[1]}, {pace:.1f} s a step"
        parts.append(f"{folder.name}: {text}")
    print(f"result: {'; '.join(parts)}")


def scores(folder: str) -> None:
    """Print the accuracy of each evaluated checkpoint of a run."""
    from eval.show.data import choose_evaluation

    if not (scored := choose_evaluation(Path(folder), None, [])):
        raise UserError(f"{folder}: no scores. Run eval.sweep.")
    parts = [
        f"step {at} {name} {entry['accuracy']:.3f} +- {entry['standard_error']:.3f}"
        for at, made in sorted(scored.items())
        for name, entry in made.benchmarks.items()
    ]
    print(f"result: {', '.join(parts)}")


def main(arguments: Sequence[str] | None = None) -> int:
    called, listed = "python scripts/gpu.py", (attention, model, engine, step, learned, scores)
    functions: dict[str, Callable[..., None]] = {f.__name__: f for f in listed}
    parser = make_parser(called, __doc__, example=f"{called} learned runs/gpu/toy")
    parser.add_argument("name", choices=functions, help="of the measurement")
    parser.add_argument("arguments", nargs="*", help="folders of models or runs, numbers")
    given = parser.parse_args(arguments)
    measure = functions[given.name]
    return run_command("gpu", lambda: measure(*given.arguments), interrupted="nothing is kept")


if __name__ == "__main__":
    sys.exit(main())
