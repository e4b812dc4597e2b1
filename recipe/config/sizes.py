"""Sizes that follow from the model and the machine, for keys that are null.

On a CPU (config/machine/cpu.yaml leaves them null; an override is kept):

    precision                actor_rollout_ref.rollout.dtype: bfloat16 if the processor multiplies
                             it and the model is large, else float32; the actor's passes follow it,
                             its parameters are float32
    weight bucket            the largest tensor in float32, at least 16 MB
    tokens of a micro-batch  2,048, or the longest sequence, or fewer if memory is short

P parameters, T tokens of a micro-batch, V vocabulary, h hidden, i intermediate size, L layers,
b bytes of a matrix entry (2 or 4), K bytes of the KV cache:

    memory = BASE + TOKENIZERS V + 16 P + b P + K + 2 bucket + T (L b (10 h + 4 i) + V (2 b + 4))

BASE are the processes of verl, Ray and vLLM, of which seven hold a tokenizer; 16 P float32
parameters, gradients and Adam's moments; b P the engine's copy. An estimate, which `recipe.train
--dry-run` prints.
"""

import math
import os
from pathlib import Path

import psutil
from omegaconf import DictConfig, OmegaConf

from recipe.config.shapes import Shape, known_shape
from recipe.run.environment import ENGINE_THREADS
from recipe.run.host import multiplies_bfloat16

BASE = 6.0e9  # a training of the toy model, whose own part is small, holds up to 7 GiB
TOKENIZERS = 7 * 2e3  # bytes of an entry of the vocabulary; one of 262,144 takes 0.5 GB a process
LARGE = 50_000_000  # parameters from which bfloat16 is faster on processors that multiply it
TOKENS = 2048  # of a micro-batch: more are not faster
LEAST_BUCKET = 16  # MB
CACHE = 1.0e9  # bytes of the KV cache of a small model
ENGINE = "actor_rollout_ref.rollout"
BUDGET = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"


def total_memory() -> float:
    """Return the bytes of memory of this machine or, if smaller, of this job's control group."""
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text(encoding="utf-8").strip() if limit.is_file() else "max"
    return min(float(psutil.virtual_memory().total), float("inf" if text == "max" else text))


def longest(config: DictConfig) -> int:
    """Return the tokens of the longest prompt with the longest response."""
    return int(config.data.max_prompt_length) + int(config.data.max_response_length)


def bytes_of(config: DictConfig) -> int:
    """Return the bytes of a matrix entry in the engine and in the actor's passes."""
    return 4 if config.actor_rollout_ref.rollout.dtype in ("float32", "fp32") else 2


def cache_bytes(config: DictConfig, shape: Shape | None) -> float:
    """Return the bytes of the engine's KV cache: all sequences at once, if they are short."""
    if shape is None:
        return CACHE
    rollout, tokens = config.actor_rollout_ref.rollout, longest(config)
    needed = min(rollout.max_num_seqs, 128) * tokens * shape.kv_bytes * bytes_of(config) / 2
    return max(CACHE, min(needed, total_memory() / 8))


def token_bytes(config: DictConfig, shape: Shape) -> float:
    """Return the bytes of one token of a micro-batch: its activations and logits."""
    b = bytes_of(config)
    activations = shape.layers * b * (10 * shape.hidden + 4 * shape.intermediate)
    return activations + shape.vocab * (2 * b + 4)


def fixed_bytes(config: DictConfig, shape: Shape) -> float:
    """Return the bytes that do not depend on the micro-batch."""
    engine = bytes_of(config) * shape.parameters + cache_bytes(config, shape)
    base = BASE + TOKENIZERS * shape.vocab
    return base + 16 * shape.parameters + engine + 2e6 * bucket(shape)


def memory(config: DictConfig, shape: Shape) -> float:
    """Return the bytes that a run on a CPU needs at its peak, by the formula above."""
    tokens = int(config.actor_rollout_ref.actor.ppo_max_token_len_per_gpu)
    if not config.actor_rollout_ref.actor.use_dynamic_bsz:
        tokens = int(config.actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu) * longest(config)
    return fixed_bytes(config, shape) + tokens * token_bytes(config, shape)


def bucket(shape: Shape | None) -> int:
    """Return the MB of a weight bucket: verl sends each tensor whole, in float32."""
    largest = 4 * max(shape.embedding, shape.hidden * shape.intermediate) if shape else 0
    return max(LEAST_BUCKET, -(-largest // 2**20) + 1)


def fitting_tokens(config: DictConfig, shape: Shape) -> int:
    """Return the tokens of a micro-batch for which there is memory; may be negative."""
    room = 0.95 * total_memory() - fixed_bytes(config, shape)
    return int(room / token_bytes(config, shape))


def environment(config: DictConfig) -> dict[str, str]:
    """Return the variables of the engine on a CPU: GiB of its KV cache, and threads.

    For a small model a second thread costs more than it gives: its operations take microseconds.
    """
    shape = known_shape(config.recipe.model_path)
    cores = os.environ.get("OMP_NUM_THREADS") or str(len(os.sched_getaffinity(0)))
    first = cores.split(",")[0].strip()  # OpenMP takes "4,2" for nested levels
    threads = int(first) if first.isdecimal() else 1
    if shape is None or shape.parameters < LARGE:
        threads = max(1, threads // 2)
    gib = math.ceil(cache_bytes(config, shape) / 2**30)
    return {
        "OMP_NUM_THREADS": cores,
        ENGINE_THREADS: str(threads),
        "VLLM_CPU_KVCACHE_SPACE": str(gib),
    }


def set_sizes(config: DictConfig) -> None:
    """Set the null keys of a configuration for a CPU, in place."""
    if config.trainer.device != "cpu":
        return
    shape = known_shape(config.recipe.model_path)
    large = shape is not None and shape.parameters >= LARGE
    values: dict[str, object] = {
        f"{ENGINE}.dtype": "bfloat16" if large and multiplies_bfloat16() else "float32",
        f"{ENGINE}.checkpoint_engine.update_weights_bucket_megabytes": bucket(shape),
    }
    _fill(config, values)
    tokens = max(TOKENS, longest(config))
    if shape is not None:
        tokens = max(longest(config), min(tokens, fitting_tokens(config, shape)))
    _fill(config, {BUDGET: tokens})


def _fill(config: DictConfig, values: dict[str, object]) -> None:
    for key, value in values.items():
        if OmegaConf.select(config, key) is None:
            OmegaConf.update(config, key, value)
