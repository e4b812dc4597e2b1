"""Sizes that follow from the model and the machine, for keys that are null.

On a CPU (config/machine/cpu.yaml leaves them null; an override is kept):

    precision                actor_rollout_ref.rollout.dtype: bfloat16 if the processor multiplies
                             it and the model is large, else float32; the actor's passes follow it,
                             its parameters are float32
    weight bucket            the largest tensor in float32, at least 16 MB
    tokens of a micro-batch  2,048, or the longest sequence, or fewer if memory is short
"""

import math
import os

from omegaconf import DictConfig, OmegaConf

from recipe.machine import host
from recipe.machine.environment import ENGINE_THREADS
from recipe.machine.memory import CACHE, OnCpu, bucket
from recipe.machine.shapes import Shape, known_shape

LARGE = 50_000_000  # parameters from which bfloat16 is faster on processors that multiply it
TOKENS = 2048  # of a micro-batch: more are not faster
ENGINE = "actor_rollout_ref.rollout"
BUDGET = "actor_rollout_ref.actor.ppo_max_token_len_per_gpu"
READ = (  # keys from which sizes follow
    "recipe.model_path",
    "data.max_prompt_length",
    "data.max_response_length",
    f"{ENGINE}.max_num_seqs",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu",
)


def longest(config: DictConfig) -> int:
    """Return the tokens of the longest prompt with the longest response."""
    return int(config.data.max_prompt_length) + int(config.data.max_response_length)


def on_cpu(config: DictConfig, shape: Shape) -> OnCpu:
    """Return the numbers that determine memory on a CPU, also before null keys are set."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    rows = actor.ppo_micro_batch_size_per_gpu or 0
    return OnCpu(
        shape=shape,
        entry=4 if rollout.dtype in ("float32", "fp32") else 2,
        sequences=rollout.max_num_seqs,
        longest=longest(config),
        tokens=actor.ppo_max_token_len_per_gpu if actor.use_dynamic_bsz else rows * longest(config),
    )


def environment(config: DictConfig) -> dict[str, str]:
    """Return the variables of the engine on a CPU: GiB of its KV cache, and threads.

    For a small model a second thread costs more than it gives: its operations take microseconds.
    """
    shape = known_shape(config.recipe.model_path)
    cores = os.environ.get("OMP_NUM_THREADS") or str(host.cores())
    first = cores.split(",")[0].strip()  # OpenMP takes "4,2" for nested levels
    threads = int(first) if first.isdecimal() else 1
    if shape is not None and shape.parameters < LARGE:
        threads = 1
    gib = math.ceil((on_cpu(config, shape).cache() if shape else CACHE) / 2**30)
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
        f"{ENGINE}.dtype": "bfloat16" if large and host.multiplies_bfloat16() else "float32",
        f"{ENGINE}.checkpoint_engine.update_weights_bucket_megabytes": bucket(shape),
    }
    _fill(config, values)
    tokens = max(TOKENS, longest(config))
    if shape is not None:
        tokens = max(longest(config), min(tokens, on_cpu(config, shape).fitting_tokens()))
    _fill(config, {BUDGET: tokens})


def _fill(config: DictConfig, values: dict[str, object]) -> None:
    for key, value in values.items():
        if OmegaConf.select(config, key) is None:
            OmegaConf.update(config, key, value)
