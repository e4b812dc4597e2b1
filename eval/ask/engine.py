"""vLLM engine that streams responses and can load the weights of another checkpoint.

The only module of `eval` that imports vllm. Without a GPU the engine runs inside this process.
"""

import gc
import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from eval.ask.settings import Settings
from prompt_aug.base.errors import UserError
from prompt_aug.base.tokenizers import load_tokenizer, model_json
from prompt_aug.turns import end_of_turn
from recipe.config.evaluation import SAMPLING
from recipe.machine import environment
from recipe.machine.host import cores, gpus_here, multiplies_bfloat16
from recipe.machine.model_files import unsupported_head

# A forked worker cannot use CUDA if this process has used it ("Cannot re-initialize CUDA in forked
# subprocess"), so workers are spawned. recipe.machine.environment holds what every engine needs.
ENVIRONMENT = {"VLLM_LOGGING_LEVEL": "ERROR", "VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
# Below this size a second thread does not help. On a busy machine its spinning makes sampling 14
# times slower (0.3M parameters, 2 cores, a training beside it: 10.2 s instead of 0.7 s).
ONE_THREAD_BYTES = 64 * 2**20
CPU_SEQUENCES = 128  # 16,000 tokens/s for a 0.3M-parameter model on 2 cores
CPU_BATCHED_TOKENS = 4096
CPU_BLOCK = 16  # tokens of the prompt's cache, as in training: of vLLM's 128 few prompts fill one
IN_FLIGHT = 2048  # requests with the engine at once
TokenIds = tuple[int, ...]
SampleKey = tuple[str, str, int]  # uid, digest of the prompt, number of the sample
SAMPLE_KEY = ("uid", "prompt_sha256", "sample")  # its keys in files


@dataclass(frozen=True, kw_only=True)
class Request:
    """A sample to generate of the question with the index `question`."""

    question: int
    key: SampleKey
    prompt_token_ids: TokenIds
    stop: tuple[str, ...] = ()


def request_seed(seed: int, uid: str, sample: int) -> int:
    """Return the seed of one sample, in [0, 2^31), so that a resumed evaluation has equal ones."""
    digest = hashlib.sha256(f"{seed}\0{uid}\0{sample}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def check_heads(model: str) -> None:
    """Reject a model with attention heads that vLLM does not support on a CPU."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(model, trust_remote_code=False).get_text_config()
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    if why := unsupported_head(size):
        raise UserError(f"--model={model}: {why}. Choose another model, or use a GPU.")


def prepare_environment(model: str) -> None:
    """Set unset variables that torch and its OpenMP library read when they are first loaded.

    A small model gets one thread.
    """
    on_cpu = not gpus_here()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # vLLM warns of its NUMA binding
    size = sum(path.stat().st_size for path in Path(model).glob("*.safetensors"))
    if on_cpu:
        threads = 1 if 0 < size < ONE_THREAD_BYTES else cores()
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    environment.set_defaults(cpu=on_cpu, **ENVIRONMENT)


def precision(model: str, settings: Settings) -> str:
    """Return the precision of an engine on a CPU: the setting, or that of the weights for "auto".

    vLLM's own "auto" computes in bfloat16 what is stored in float32. A processor that does not
    multiply 16-bit numbers computes in float32.
    """
    if settings.dtype != "auto" or gpus_here():
        return settings.dtype
    stored = model_json(model, "config.json") or {}
    dtype = str(stored.get("dtype") or stored.get("torch_dtype") or "float32")
    return dtype if multiplies_bfloat16() else "float32"


class Engine:
    """vLLM engine: a context manager that starts it on entry and frees its memory on exit."""

    def __init__(self, model: str, settings: Settings, max_model_len: int) -> None:
        self._model, self._settings, self._max_model_len = model, settings, max_model_len
        self._llm: Any = None
        self._end = end_of_turn(load_tokenizer(model))
        self._on_cpu = not gpus_here()
        self._requests = 0

    def __enter__(self) -> Self:
        if self._on_cpu:
            check_heads(self._model)
        environment.set_defaults(cpu=self._on_cpu, **ENVIRONMENT)
        from vllm import LLM  # reads the variables above when it is imported

        options: dict[str, Any] = {"tensor_parallel_size": self._settings.tensor_parallel}
        if self._on_cpu:
            # No chunked prefill: for a split prompt vLLM 0.28 sets the offset of a request's
            # random generator, and a CPU generator has none ("does not use offset").
            options |= {
                "enforce_eager": True,
                "max_num_seqs": CPU_SEQUENCES,
                "enable_chunked_prefill": False,
                "max_num_batched_tokens": max(CPU_BATCHED_TOKENS, self._max_model_len),
                "block_size": CPU_BLOCK,
            }
        else:
            options |= {"gpu_memory_utilization": self._settings.gpu_memory_utilization}
        dtype = precision(self._model, self._settings)
        if dtype != self._settings.dtype:
            print(f"computes in {dtype} (another: --dtype)")
        self._llm = LLM(
            model=self._model,
            dtype=dtype,
            max_model_len=self._max_model_len,
            seed=self._settings.seed,
            use_tqdm_on_load=False,
            **options,
        )
        return self

    def stream(self, requests: Sequence[Request]) -> Iterator[tuple[Request, dict[str, Any]]]:
        """Yield each request with its response, tokens and finish_reason (stop or length).

        Responses end as in training. Stop strings stay in the text, because a closing tag is part
        of the format. If the caller stops early, the open requests are aborted.
        """
        waiting, engine = iter(requests), self._llm.llm_engine
        running: dict[str, Request] = {}
        try:
            while True:
                while len(running) < IN_FLIGHT and (request := next(waiting, None)) is not None:
                    running[self._add(request)] = request
                if not running:
                    return
                for output in (output for output in engine.step() if output.finished):
                    answer, request = output.outputs[0], running.pop(output.request_id)
                    text = self._end.text(answer.token_ids, request.stop)
                    if answer.finish_reason == "length":  # no part of a character, as vLLM's server
                        text = text.rstrip("\ufffd")
                    response = {
                        "response": text,
                        "tokens": len(answer.token_ids),
                        "finish_reason": str(answer.finish_reason),
                    }
                    yield request, response
        finally:
            if running:
                engine.abort_request(list(running))

    def _add(self, request: Request) -> str:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        parameters = SamplingParams(
            **{name: getattr(self._settings, name) for name in SAMPLING},
            max_tokens=self._settings.max_tokens,
            seed=request_seed(self._settings.seed, request.key[0], request.key[2]),
            stop=list(request.stop) or None,
            include_stop_str_in_output=True,
            stop_token_ids=sorted(self._end.ids),
            skip_special_tokens=False,  # a stop string may be a special token
            detokenize=bool(request.stop),
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        self._requests += 1
        name, prompt = str(self._requests), {"prompt_token_ids": list(request.prompt_token_ids)}
        self._llm.llm_engine.add_request(name, prompt, parameters)
        return name

    def log_probabilities(self, prompts: Sequence[TokenIds]) -> list[list[float]]:
        """Return log p(token | tokens before it) of tokens 1, 2, ... of each prompt, in nats."""
        from vllm import SamplingParams

        parameters = SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=0)
        inputs = [{"prompt_token_ids": list(ids)} for ids in prompts]
        outputs = self._llm.generate(inputs, [parameters] * len(inputs), use_tqdm=False)
        return [
            [e[token].logprob for e, token in zip(out.prompt_logprobs[1:], ids[1:], strict=True)]
            for out, ids in zip(outputs, prompts, strict=True)
        ]

    def load(self, model: str) -> None:
        """Load the weights of a model with the same architecture and tokenizer, in place."""
        engine = self._llm.llm_engine
        engine.collective_rpc("reload_weights", kwargs={"weights_path": model})
        if self._on_cpu:
            engine.collective_rpc(_pack_head_again)
        # vLLM's prefix cache is keyed by tokens alone: it would return values of the old weights.
        if not self._llm.reset_prefix_cache():
            raise UserError("vLLM could not clear its prefix cache: requests are open")

    def facts(self) -> dict[str, Any]:
        """Return what a response may depend on, apart from the settings."""
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

    def __exit__(self, *_: object) -> None:
        from vllm.distributed.parallel_state import cleanup_dist_env_and_memory

        # LLM has no close method. Without the shutdown its process would hold the GPU until
        # garbage collection, while the next engine measures the free memory.
        self._llm.llm_engine.engine_core.shutdown()
        self._llm = None
        cleanup_dist_env_and_memory()
        gc.collect()


def _pack_head_again(worker: Any) -> None:
    """Pack the output head of a CPU engine again; with VERL_PLATFORM=cpu no weights are packed.

    vLLM's reload packs every layer whose weights it has loaded. A head that is tied to the
    embedding loads none, so its packed copy would keep the old weights.
    """
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm

    head = getattr(worker.get_model(), "lm_head", None)
    if head is not None and hasattr(head, "cpu_linear") and head.weight.numel():
        dispatch_cpu_unquantized_gemm(head, remove_weight=False)
