"""Speed of the sweep's engine against vLLM alone, idle and beside busy loops.

Both sample the same prompts at temperature 1, one after the other, each in a process of its own.
The start and a first round are not counted. The ratio is that of the medians.
"""

import multiprocessing
import statistics
import time
from argparse import ArgumentParser
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from eval.engine import CPU_SEQUENCES, Engine, Request, precision, prepare_environment
from eval.settings import Settings
from recipe.run import environment
from recipe.run.host import gpus_here

EXAMPLE = "--model models/smollm2 --busy 2"
MAX_MODEL_LEN = 512


def prompts(model: str, count: int) -> list[tuple[int, ...]]:
    from prompt_aug.base.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(model)
    texts = [f"What is {n} + {3 * n}? Explain each step." for n in range(count)]
    return [tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]


def ours(model: str, settings: Settings, inputs: Sequence[tuple[int, ...]]) -> list[float]:
    prepare_environment(model)
    requests = [
        Request(question=i, key=(str(i), "", 0), prompt_token_ids=ids)
        for i, ids in enumerate(inputs)
    ]
    with Engine(model, settings, MAX_MODEL_LEN) as engine:
        return rates(lambda: sum(out["tokens"] for _, out in engine.stream(requests)))


def vllm(model: str, settings: Settings, inputs: Sequence[tuple[int, ...]]) -> list[float]:
    environment.set_defaults(cpu=not gpus_here(), VLLM_PLUGINS="")  # without this project's sampler
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=model,
        dtype=precision(model, settings),
        max_model_len=MAX_MODEL_LEN,
        max_num_seqs=CPU_SEQUENCES,
        enforce_eager=True,
    )
    sampling = SamplingParams(temperature=1.0, top_p=1.0, max_tokens=settings.max_tokens)
    given: Any = [{"prompt_token_ids": list(ids)} for ids in inputs]
    return rates(
        lambda: sum(len(out.outputs[0].token_ids) for out in llm.generate(given, sampling))
    )


def rates(sample: Any, rounds: int = 3) -> list[float]:
    """Return tokens per second of some rounds, the first of which is not counted."""
    measured = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        tokens = sample()
        measured.append(tokens / (time.perf_counter() - began))
    return measured[1:]


def spin() -> None:
    while True:
        pass


def main(parser: ArgumentParser, arguments: Sequence[str]) -> None:
    parser.add_argument("--model", required=True, help="a folder")
    parser.add_argument("--prompts", type=int, default=64, help="at once")
    parser.add_argument("--tokens", type=int, default=64, help="of a response at most")
    parser.add_argument("--busy", type=int, default=0, help="loops beside both")
    given = parser.parse_args(arguments)
    settings = Settings(temperature=1.0, top_p=1.0, max_tokens=given.tokens)
    inputs = prompts(given.model, given.prompts)
    spawn = multiprocessing.get_context("spawn")
    loops = [spawn.Process(target=spin, daemon=True) for _ in range(given.busy)]
    for loop in loops:
        loop.start()
    speed = {}
    for engine in (ours, vllm):
        with ProcessPoolExecutor(1, mp_context=spawn) as pool:
            speed[engine.__name__] = pool.submit(engine, given.model, settings, inputs).result()
    for loop in loops:
        loop.terminate()
    medians = {name: statistics.median(values) for name, values in speed.items()}
    for name, values in speed.items():
        print(f"{name}: {', '.join(f'{v:,.0f}' for v in values)} tokens/s")
    print(f"ours / vllm: {medians['ours'] / medians['vllm']:.2f}")
