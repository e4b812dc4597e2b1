"""Estimates of memory, disk and time of a run on GPUs, in bytes, tokens, operations or seconds.

In float32 a parameter has 4 bytes, its gradient 4, and Adam's moments 8. An
update computes 8 operations per parameter and token (the forward pass is repeated for gradient
checkpointing; 6 with LoRA), log-probabilities 2. A decoding step reads weights and KV cache once.
"""

import copy
import math
from typing import NamedTuple

from recipe.config.verl import MODEL
from recipe.machine.shapes import Shape
from recipe.start.attention import planned
from recipe.start.rules import Setup

RESERVE = 4 * 2**30  # CUDA context, graphs and the engine's own activations
LOGIT_CHUNK = 1024
FLOAT32 = (None, "fp32", "float32")
MOMENTS = {"AdamW8bit": 2, "SGD": 0}  # bytes a parameter; others have two in its precision
MEAN_PROMPT = 200  # assumed
# Linear layers of the decoders that `Shape` knows, by their names in transformers.
LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


class Gpu(NamedTuple):
    """Bytes of memory, dense 16-bit operations and bytes of memory traffic per second."""

    memory: float
    flops: float
    bandwidth: float


# From vendors' data sheets; the memory is what the driver reports, below the nominal size.
GPUS = {
    "h100-80": Gpu(79.6 * 2**30, 989e12, 3.35e12),
    "h200-141": Gpu(139.8 * 2**30, 989e12, 4.8e12),
    "a100-80": Gpu(79.3 * 2**30, 312e12, 2.04e12),
    "a100-40": Gpu(39.4 * 2**30, 312e12, 1.56e12),
    "l40s-48": Gpu(44.5 * 2**30, 362e12, 0.864e12),
    "rtx4090-24": Gpu(23.6 * 2**30, 165e12, 1.008e12),
}


class Speed(NamedTuple):
    """Shares of the peak that the actor and the engine reach, and other seconds of a step."""

    mfu: float
    traffic: float
    other: float


# The spread of measured steps (examples/SIZES.md): the actor reached 0.17 to 0.48 of the peak in
# other people's runs and 0.19 in ours, the engine 0.07 to 0.2 of the bandwidth (0.5 is assumed: the
# logs are of older engines). The rest of a step took 0.3 s, of the first one 14 s.
FAST, SLOW = Speed(0.48, 0.5, 0.5), Speed(0.15, 0.07, 15.0)


def adapted(s: Setup) -> list[str]:
    """Return the layers with a LoRA adapter."""
    targets, excluded = (s.get(f"{MODEL}.{name}_modules") for name in ("target", "exclude"))
    return [
        x for x in (LAYERS if targets == "all-linear" else targets) if x not in (excluded or ())
    ]


def state_bytes(s: Setup, shape: Shape) -> dict[str, int]:
    """Return the bytes of one copy of the parameters, gradients and moments."""
    rank = s.model.lora_rank
    adapter = shape.adapter(rank, adapted(s)) if rank else 0
    critic = shape.parameters if s.critic else 0
    trained = (adapter or shape.parameters) + critic
    parameters = shape.parameters + adapter + critic
    each = 4 if s.actor.fsdp_config.model_dtype in FLOAT32 else 2
    moments = MOMENTS.get(str(s.actor.optim.optimizer), 2 * each)
    return {
        "parameters": each * parameters,
        "gradients": each * trained,
        "moments": moments * trained,
    }


def saved_bytes(s: Setup, shape: Shape) -> int:
    """Return the bytes of a checkpoint, to which every rank writes its shard."""
    states = state_bytes(s, shape)
    copies = s.gpus // s.shards(s.actor.fsdp_config.fsdp_size)
    return int(copies * (states["parameters"] + states["moments"]))


class Estimate:
    """A run of a model on GPUs; the mean length of its responses is assumed."""

    def __init__(self, setup: Setup, shape: Shape, gpu: Gpu, mean_response: int = 0) -> None:
        self.setup, self.shape, self.gpu = setup, shape, gpu
        actor, rollout, model, data = setup.actor, setup.rollout, setup.model, setup.data
        rows = setup.micro_rows * setup.longest
        most = setup.rank_rows * setup.longest
        self.micro_tokens = (
            min(actor.ppo_max_token_len_per_gpu, most) if actor.use_dynamic_bsz else rows
        )
        self.shards = setup.shards(actor.fsdp_config.fsdp_size)
        self.tensor = rollout.tensor_model_parallel_size
        self.engines = setup.engine_gpus // self.tensor
        self.responses = setup.batch * rollout.n  # of a step
        most = data.max_response_length
        self.mean_response = min(mean_response or most // 2, most)
        self.length = min(data.max_prompt_length, MEAN_PROMPT) + self.mean_response
        self.masked = bool(model.use_remove_padding and planned(setup)[0] == "sdpa")
        self.offloads_all = bool(actor.fsdp_config.offload_policy and actor.strategy == "fsdp2")

    def actor_memory(self) -> dict[str, float]:
        """Return the bytes on one GPU while the actor trains, by part."""
        shape, tokens = self.shape, self.micro_tokens
        states = sum(state_bytes(self.setup, shape).values()) / self.shards
        outputs = shape.embedding * (1 if shape.tied else 2)
        return {
            "states": 0.0 if self.offloads_all else states,
            "gathered": 2 * (outputs + 2 * shape.layer),  # bfloat16, while they compute
            # inputs of all layers, and one recomputed layer
            "activations": tokens * shape.layers * 2 * shape.hidden
            + tokens * 2 * (8 * shape.hidden + 4 * shape.intermediate),
            # bfloat16 with gradient, and float32 chunks of the log-probs
            "logits": 0.0
            if self.setup.model.use_fused_kernels
            else tokens * shape.vocab * 4 + 8 * min(LOGIT_CHUNK, tokens) * shape.vocab,
            "mask": float(tokens**2) if self.masked else 0.0,
        }

    def beside_engine(self) -> float:
        """Return the bytes of parameters and moments on one GPU while the engine generates."""
        fsdp, states = self.setup.actor.fsdp_config, state_bytes(self.setup, self.shape)
        kept = 0 if fsdp.param_offload else states["parameters"]
        kept += 0 if fsdp.optimizer_offload else states["moments"]
        return 0.0 if self.offloads_all else kept / self.shards

    def cache_tokens(self) -> int:
        """Return the tokens that an engine's KV cache holds; at 0 or less it does not start."""
        room = self.gpu.memory * self.setup.rollout.gpu_memory_utilization - RESERVE
        return int((room * self.tensor - 2 * self.shape.parameters) / self.shape.kv_bytes)

    def at_once(self) -> int:
        """Return the sequences that one engine decodes at once, each of the mean final length."""
        fitting = self.cache_tokens() // self.length
        return max(0, min(self.setup.rollout.max_num_seqs, fitting))

    def waves(self, responses: int) -> int:
        """Return the rounds in which each engine decodes its part of all `responses`."""
        return math.ceil(math.ceil(responses / self.engines) / max(1, self.at_once()))

    def rollout_seconds(self, responses: int, speed: Speed) -> float:
        """Return the seconds to decode `responses`."""
        return sum(self.rollout_parts(responses, speed))

    def rollout_parts(self, responses: int, speed: Speed) -> tuple[float, float]:
        """Return the seconds with a full batch, and those of the longest response after it."""
        rounds, weights = self.waves(responses), 2 * self.shape.parameters
        rate = self.gpu.bandwidth * speed.traffic * self.tensor
        context = self.length - self.mean_response / 2
        cache = math.ceil(responses / self.engines) / rounds * context * self.shape.kv_bytes
        tail = self.setup.data.max_response_length - self.mean_response
        return rounds * self.mean_response * (weights + cache) / rate, tail * weights / rate

    def asynchronous_seconds(self, window: float, speed: Speed, *, separate: bool = False) -> float:
        """Return the seconds of a step of an asynchronous mode with W = `window`, at best.

            recipe_sync             full + tail + rest
            recipe_colocate_async   max(full, (full + tail) / (1 + W)) + rest
            recipe_separate_async   max(full, (full + tail) / (1 + W), rest)

        The engines decode the tokens of one batch in a step. On shared GPUs they stand still in the
        rest of it. The longest response is decoded in 1 + W steps. Not counted: transfers of
        weights, prefixes that are computed again after an abort, and steps that staleness costs.
        """
        full, tail = self.rollout_parts(self.responses, speed)
        rest = sum(self.step_seconds(speed).values()) - full - tail
        generation = max(full, (full + tail) / (1 + window))
        return max(generation, rest) if separate else generation + rest

    def with_own_gpus(self, engines: int) -> "Estimate":
        """Return this run with `engines` of its GPUs for engines alone."""
        setup = copy.copy(self.setup)
        setup.engine_gpus = setup.engine_node = engines
        setup.gpus = self.setup.gpus - engines
        return Estimate(setup, self.shape, self.gpu, self.mean_response)

    def actor_seconds(self, speed: Speed) -> dict[str, float]:
        """Return the seconds of log-probabilities and update, with those of a critic."""
        s, shape = self.setup, self.shape
        # Scores and values, forward: 4 x span x heads x head_dim per layer and token. With packed
        # sdpa the span is the micro-batch, else on average half of the sequence.
        span = self.micro_tokens if self.masked else self.length / 2
        attention = 4 * span * shape.heads * shape.head_dim * shape.layers
        rate = s.gpus * self.gpu.flops * speed.mfu
        tokens = self.responses * self.length
        forward = tokens * (2 * shape.parameters + attention) / rate
        weight_gradient = tokens * 2 * shape.parameters / rate
        update = 4 * forward - (weight_gradient if s.model.lora_rank else 0)
        passes = 2 if s.actor.use_kl_loss or s.algorithm.use_kl_in_reward else 1
        values = (1 + 4 * s.actor.ppo_epochs) * forward if s.facts.critic else 0
        return {"log-probs": passes * forward, "update": s.actor.ppo_epochs * update + values}

    def step_seconds(self, speed: Speed) -> dict[str, float]:
        """Return the seconds of one step by part."""
        rollouts = self.rollout_seconds(self.responses, speed)
        return {"rollouts": rollouts, **self.actor_seconds(speed), "other": speed.other}

    def hours(self, steps: int, validation: int, speed: Speed) -> float:
        """Return the hours of `steps` with their validations of `validation` responses."""
        every = self.setup.trainer.test_freq
        tested = self.rollout_seconds(validation, speed) * (steps // every if every > 0 else 0)
        return (steps * sum(self.step_seconds(speed).values()) + tested) / 3600
