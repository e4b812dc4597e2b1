"""Responses from a vLLM engine: one engine per checkpoint, all prompts of a chunk in one call.

The only file of this package that imports vllm. On a machine without CUDA the engine runs inside
this process, so that several checkpoints share one import (25 s) and a restart costs a second.
"""

import gc
import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from eval.settings import Settings

# In-process, without a free core to bind to, and quiet; a value set by the user wins.
CPU_ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}
COMMON_ENVIRONMENT = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_NO_USAGE_STATS": "1"}
# Below this size a second thread gains nothing on an idle machine, and on a busy one its spinning
# costs a factor of 14 (0.3M parameters, 2 cores, another training beside: 10.2 s, with one 0.7 s).
ONE_THREAD_BYTES = 64 * 2**20
# Seen on 2 cores with a 0.3M-parameter model: 128 sequences at once give 16,000 tokens/s.
CPU_SEQUENCES = 128
CPU_BATCHED_TOKENS = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One sample wanted: its question's index, its number, and the exact prompt tokens."""

    question: int
    sample: int
    uid: str
    prompt_token_ids: tuple[int, ...]
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """What came back; `tokens` counts those generated, `finish_reason` is stop or length."""

    text: str
    tokens: int
    finish_reason: str


class Engine(Protocol):
    """What the sweep needs of an engine: completions in the order of the requests."""

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """Complete every request."""
        ...


def request_seed(seed: int, uid: str, sample: int) -> int:
    """A seed for one sample, a pure function of its arguments, in [0, 2^31).

    Sampling then does not depend on chunking, so a continued evaluation gives what an
    uninterrupted one would.
    """
    digest = hashlib.sha256(f"{seed}\0{uid}\0{sample}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def prepare_environment(model: str) -> None:
    """Set what only works before torch is first imported; a value set by the user wins."""
    size = sum(path.stat().st_size for path in Path(model).glob("*.safetensors"))
    if 0 < size < ONE_THREAD_BYTES:
        os.environ.setdefault("OMP_NUM_THREADS", "1")


class VllmEngine:
    """A context manager: the engine starts on entry and gives its memory back on exit."""

    def __init__(self, model: str, settings: Settings, max_model_len: int) -> None:
        self._model, self._settings, self._max_model_len = model, settings, max_model_len
        self._llm: Any = None

    def __enter__(self) -> Self:
        import torch

        on_cpu = not torch.cuda.is_available()
        wanted = COMMON_ENVIRONMENT | (CPU_ENVIRONMENT if on_cpu else {})
        for name, value in wanted.items():
            os.environ.setdefault(name, value)
        from vllm import LLM

        options: dict[str, Any] = {"tensor_parallel_size": self._settings.tensor_parallel}
        if on_cpu:
            # Whole prompts only: where a prompt is split, vLLM 0.28 winds the generator of a
            # seeded request back, which a CPU generator cannot ("does not use offset").
            options |= {
                "enforce_eager": True,
                "max_num_seqs": CPU_SEQUENCES,
                "enable_chunked_prefill": False,
                "max_num_batched_tokens": max(CPU_BATCHED_TOKENS, self._max_model_len),
            }
        else:
            options |= {"gpu_memory_utilization": self._settings.gpu_memory_utilization}
        self._llm = LLM(
            model=self._model,
            dtype=self._settings.dtype,
            max_model_len=self._max_model_len,
            seed=self._settings.seed,
            use_tqdm_on_load=False,
            **options,
        )
        return self

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        """One vLLM call. Stop strings stay in the text: a closing tag belongs to the format."""
        from vllm import SamplingParams

        parameters = [
            SamplingParams(
                temperature=self._settings.temperature,
                top_p=self._settings.top_p,
                max_tokens=self._settings.max_tokens,
                seed=request_seed(self._settings.seed, request.uid, request.sample),
                stop=list(request.stop) or None,
                include_stop_str_in_output=True,
            )
            for request in requests
        ]
        prompts = [{"prompt_token_ids": list(request.prompt_token_ids)} for request in requests]
        outputs = self._llm.generate(prompts, parameters, use_tqdm=False)
        return [
            Completion(
                text=output.outputs[0].text,
                tokens=len(output.outputs[0].token_ids),
                finish_reason=str(output.outputs[0].finish_reason),
            )
            for output in outputs
        ]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        self._llm.llm_engine.engine_core.shutdown()
        self._llm = None
        cleanup_dist_env_and_memory()
        gc.collect()
