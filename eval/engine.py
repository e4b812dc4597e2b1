"""Responses from a vLLM engine that streams them and can load another checkpoint's weights.

The only file of this package that imports vllm. Without a GPU the engine runs inside this process.
"""

import gc
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from eval.errors import EvaluationError
from eval.settings import Settings
from recipe.run import environment

# Quiet; and a forked worker cannot use CUDA once anything in this process has ("Cannot
# re-initialize CUDA in forked subprocess"). What any engine needs is in recipe.run.environment.
ENVIRONMENT = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
# Below this size a second thread gains nothing on an idle machine, and on a busy one its spinning
# costs a factor of 14 (0.3M parameters, 2 cores, another training beside: 10.2 s, with one 0.7 s).
ONE_THREAD_BYTES = 64 * 2**20
# Seen on 2 cores with a 0.3M-parameter model: 128 sequences at once give 16,000 tokens/s.
CPU_SEQUENCES = 128
CPU_BATCHED_TOKENS = 4096
# Requests handed to the engine at once: enough to keep it full, few enough to hold in memory.
IN_FLIGHT = 2048
TokenIds = tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """One sample wanted: its question's index, its number, and the exact prompt tokens."""

    question: int
    sample: int
    uid: str
    prompt_token_ids: TokenIds
    stop: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Completion:
    """What came back; `tokens` counts those generated, `finish_reason` is stop or length."""

    text: str
    tokens: int
    finish_reason: str


class Engine(Protocol):
    """What the sweep needs of an engine."""

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[Request, Completion]]:
        """Each request with its completion, in the order in which they are done."""
        ...

    def log_probabilities(self, prompts: Sequence[TokenIds]) -> list[list[float]]:
        """For each prompt the log-probability of its tokens 1, 2, ... given those before, nats."""
        ...

    def load(self, model: str) -> None:
        """Load the weights of another model of the same architecture and tokenizer."""
        ...

    def facts(self) -> dict[str, Any]:
        """Version, resolved dtype and hardware, recorded with every sample."""
        ...


def request_seed(seed: int, uid: str, sample: int) -> int:
    """A seed for one sample, a pure function of its arguments, in [0, 2^31).

    Sampling then does not depend on which samples are made together, so a continued evaluation
    gives what an uninterrupted one would.
    """
    digest = hashlib.sha256(f"{seed}\0{uid}\0{sample}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def check_hardware(settings: Settings) -> None:
    """Refuse an engine over more GPUs than there are: vLLM would wait for them without end."""
    if (
        settings.tensor_parallel > 1
        and (gpus := environment.gpu_count()) < settings.tensor_parallel
    ):
        raise EvaluationError(
            f"--tensor-parallel {settings.tensor_parallel} needs as many GPUs, this machine shows "
            f"{gpus}: leave it out, or look at CUDA_VISIBLE_DEVICES"
        )


def prepare_environment(model: str) -> None:
    """Set what only works before torch is first imported; a value set by the user wins."""
    size = sum(path.stat().st_size for path in Path(model).glob("*.safetensors"))
    if 0 < size < ONE_THREAD_BYTES:
        os.environ.setdefault("OMP_NUM_THREADS", "1")


class VllmEngine:
    """A context manager: the engine starts on entry and frees its memory on exit."""

    def __init__(self, model: str, settings: Settings, max_model_len: int) -> None:
        self._model, self._settings, self._max_model_len = model, settings, max_model_len
        self._llm: Any = None
        self._on_cpu = False
        self._requests = 0

    def __enter__(self) -> Self:
        self._on_cpu = not environment.has_gpu()
        environment.set_defaults(cpu=self._on_cpu, **ENVIRONMENT)
        # After the variables: vLLM sets up its logging when it is imported.
        from vllm import LLM

        options: dict[str, Any] = {"tensor_parallel_size": self._settings.tensor_parallel}
        if self._on_cpu:
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

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[Request, Completion]]:
        """Stop strings stay in the text: a closing tag belongs to the format.

        At most IN_FLIGHT requests are with the engine, which is refilled as they end: a long
        response delays no other. A caller that stops early leaves no request behind.
        """
        waiting, engine = iter(requests), self._llm.llm_engine
        asked: dict[str, Request] = {}
        try:
            while True:
                while len(asked) < IN_FLIGHT and (request := next(waiting, None)) is not None:
                    asked[self._add(request)] = request
                if not asked:
                    return
                for output in engine.step():
                    if output.finished:
                        answer = output.outputs[0]
                        yield (
                            asked.pop(output.request_id),
                            Completion(
                                text=answer.text,
                                tokens=len(answer.token_ids),
                                finish_reason=str(answer.finish_reason),
                            ),
                        )
        finally:
            if asked:
                engine.abort_request(list(asked))

    def _add(self, request: Request) -> str:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        parameters = SamplingParams(
            temperature=self._settings.temperature,
            top_p=self._settings.top_p,
            max_tokens=self._settings.max_tokens,
            seed=request_seed(self._settings.seed, request.uid, request.sample),
            stop=list(request.stop) or None,
            include_stop_str_in_output=True,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._requests += 1
        name, prompt = str(self._requests), {"prompt_token_ids": list(request.prompt_token_ids)}
        self._llm.llm_engine.add_request(name, prompt, parameters)
        return name

    def log_probabilities(self, prompts: Sequence[TokenIds]) -> list[list[float]]:
        """One prefill of each prompt."""
        from vllm import SamplingParams

        parameters = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        asked = [{"prompt_token_ids": list(ids)} for ids in prompts]
        outputs = self._llm.generate(asked, [parameters] * len(asked), use_tqdm=False)
        return [
            [e[token].logprob for e, token in zip(out.prompt_logprobs[1:], ids[1:], strict=True)]
            for out, ids in zip(outputs, prompts, strict=True)
        ]

    def load(self, model: str) -> None:
        """Reload the weights in place and forget what was computed with the old ones."""
        engine = self._llm.llm_engine
        engine.collective_rpc("reload_weights", kwargs={"weights_path": model})
        if self._on_cpu:
            engine.collective_rpc(_pack_head_again)
        # vLLM's prefix cache is keyed by tokens alone: it would serve values of the old weights.
        if not self._llm.reset_prefix_cache():
            raise EvaluationError("the engine did not give up its prefix cache: requests are open")
        self._model = model

    def facts(self) -> dict[str, Any]:
        """What a response may depend on beside the settings."""
        import torch
        import vllm
        from vllm.platforms import current_platform

        return {
            "vllm": vllm.__version__,
            "torch": torch.__version__,
            "dtype": str(self._llm.llm_engine.model_config.dtype).removeprefix("torch."),
            "device": str(current_platform.get_device_name()),  # by NVML: starts no CUDA here
            "tensor_parallel": self._settings.tensor_parallel,
        }

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        # LLM has no close: its engine's process would hold the GPU until the object is collected,
        # while the next engine measures how much memory is free.
        self._llm.llm_engine.engine_core.shutdown()
        self._llm = None
        cleanup_dist_env_and_memory()
        gc.collect()


def _pack_head_again(worker: Any) -> None:
    """Pack the output head of a CPU engine again from its weight, where weights are packed at all.

    (With `recipe.patches.cpu.vllm_plugin`, which VERL_PLATFORM=cpu wakes, they are not.)
    vLLM's reload packs each layer whose weights it has loaded. A head that is tied to the
    embedding has loaded none, so its packed copy stays that of the old weights: hidden states of
    one checkpoint would be read by the head of another.
    """
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    head = getattr(worker.get_model(), "lm_head", None)
    if head is not None and hasattr(head, "cpu_linear") and head.weight.numel():
        dispatch_cpu_unquantized_gemm(head, remove_weight=False)
