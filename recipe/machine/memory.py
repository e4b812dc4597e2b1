"""Estimates of memory, disk and time of a run, in bytes, tokens, operations or seconds.

On GPUs a parameter in float32 has 4 bytes, its gradient 4, and Adam's moments 8. An update computes
8 operations per parameter and token (the forward pass is repeated for gradient checkpointing; 6
with LoRA), log-probabilities 2. A decoding step reads weights and KV cache once.

On a CPU, with P parameters, T tokens of a micro-batch, V vocabulary, h hidden, i intermediate size,
L layers, b bytes of a matrix entry (2 or 4), K bytes of the KV cache:

    memory = BASE + TOKENIZERS V + 16 P + b P + K + 2 bucket + T (L b (10 h + 4 i) + V (2 b + 4))

BASE are the processes of verl, Ray and vLLM, of which seven hold a tokenizer; 16 P float32
parameters, gradients and Adam's moments; b P the engine's copy.
"""

import math
import os
from dataclasses import dataclass, replace
from typing import NamedTuple

import psutil

from recipe.machine import host
from recipe.machine.shapes import Shape

RESERVE = 4 * 2**30  # CUDA context, graphs and the engine's own activations
LOGIT_CHUNK = 1024
MEAN_PROMPT = 200  # assumed
BASE = 6.0e9  # a training of the toy model, whose own part is small, holds up to 7 GiB
TOKENIZERS = 7 * 2e3  # bytes of an entry of the vocabulary; one of 262,144 takes 0.5 GB a process
LEAST_BUCKET = 16  # MB
CACHE = 1.0e9  # bytes of the KV cache of a small model on a CPU


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
ASSUMED = "h100-80"  # where the GPU of a run is not known


def gpu_of(chosen: str | None, *, here: bool) -> tuple[str, Gpu, bool]:
    """Return name and numbers of a run's GPU, and whether it is known: chosen, or here.

    Here it is the smallest one. One that is not listed is taken to be as fast as the assumed one.
    """
    if chosen:
        return chosen, GPUS[chosen], True
    # RECIPE_MACHINE: a login node, whose GPU is not that of the job (scripts/submit.sh).
    found = host.cards() if here or not os.environ.get("RECIPE_MACHINE") else []
    if not found:
        return f"{ASSUMED} (assumed)", GPUS[ASSUMED], False
    name, memory, _ = min(found, key=lambda card: card.memory)
    alike = [kind for kind in GPUS if kind.partition("-")[0] in name.replace(" ", "").lower()]
    kind = min(alike or [ASSUMED], key=lambda kind: abs(GPUS[kind].memory - memory))
    text = name if alike else f"{name} (speed of {kind} assumed)"
    return text, GPUS[kind]._replace(memory=memory), True


class Speed(NamedTuple):
    """Shares of the peak that the actor and the engine reach, and other seconds of a step."""

    mfu: float
    traffic: float
    other: float


# The spread of measured steps (examples/SIZES.md): the actor reached 0.17 to 0.48 of the peak in
# other people's runs and 0.19 in ours, the engine 0.07 to 0.2 of the bandwidth (0.5 is assumed: the
# logs are of older engines). The rest of a step took 0.3 s, of the first one 14 s.
FAST, SLOW = Speed(0.48, 0.5, 0.5), Speed(0.15, 0.07, 15.0)


def shards(fsdp_size: int, gpus: int) -> int:
    """Return the GPUs over which FSDP divides the states; others hold copies."""
    return fsdp_size if 0 < fsdp_size < gpus else gpus


@dataclass(frozen=True, kw_only=True, slots=True)
class Numbers:
    """Numbers of a run that determine its memory and time; `recipe.start.machine` reads them."""

    shape: Shape
    gpus: int  # of the actor
    engine_gpus: int
    tensor: int  # GPUs of an engine
    fsdp_size: int
    sequence_ranks: int  # over which a sequence is divided
    mini_rows: int  # responses of a mini-batch
    critic_rows: int  # of the critic's mini-batch, 0 without a critic
    tokens: int  # of a micro-batch
    dynamic: bool  # a micro-batch may have fewer
    responses: int  # of a step
    longest_prompt: int
    longest_response: int
    parameter_bytes: int
    moment_bytes: int  # of a parameter
    adapter: int  # parameters, 0 without LoRA
    unsynced: bool  # every rank holds whole gradients until the last micro-batch
    fused: bool  # no logits
    masked: bool  # attention of a micro-batch with a mask
    offloaded: bool  # no states on a GPU
    beside_engine: tuple[str, ...]  # states on a GPU while the engine generates
    utilization: float  # share of a GPU for the engine
    sequences: int  # that an engine decodes at once, at most
    passes: int  # that compute log-probabilities
    epochs: int
    values: bool  # a critic's are read
    test_freq: int

    @property
    def ranks(self) -> int:
        """Data-parallel ranks, over which a mini-batch is divided."""
        return max(1, self.gpus // self.sequence_ranks)

    @property
    def micro_tokens(self) -> int:
        """Tokens of a micro-batch, of a dynamic one no more than a rank has."""
        most = self.mini_rows // self.ranks * (self.longest_prompt + self.longest_response)
        most = -(-most // self.sequence_ranks)  # a GPU has a part of each sequence
        return min(self.tokens, most) if self.dynamic else self.tokens

    def state_bytes(self) -> dict[str, int]:
        """Return the bytes of one copy of the parameters, gradients and moments."""
        model = self.shape.parameters
        critic = model if self.critic_rows else 0
        trained = (self.adapter or model) + critic
        return {
            "parameters": self.parameter_bytes * (model + self.adapter + critic),
            "gradients": self.parameter_bytes * trained,
            "moments": self.moment_bytes * trained,
        }

    def saved_bytes(self) -> int:
        """Return the bytes of a checkpoint, to which every rank writes its shard."""
        states = self.state_bytes()
        copies = self.gpus // shards(self.fsdp_size, self.gpus)
        return copies * (states["parameters"] + states["moments"])


class Estimate:
    """A run of a model on GPUs; the mean length of its responses is assumed."""

    def __init__(self, numbers: Numbers, gpu: Gpu, mean_response: int = 0) -> None:
        self.numbers, self.shape, self.gpu = numbers, numbers.shape, gpu
        self.shards = shards(numbers.fsdp_size, numbers.gpus)
        self.engines = numbers.engine_gpus // numbers.tensor
        most = numbers.longest_response
        self.mean_response = min(mean_response or most // 2, most)
        self.length = min(numbers.longest_prompt, MEAN_PROMPT) + self.mean_response

    def actor_memory(self) -> dict[str, float]:
        """Return the bytes on one GPU while the actor trains, by part."""
        shape, tokens = self.shape, self.numbers.micro_tokens
        share = 0 if self.numbers.offloaded else 1 / self.shards
        whole = 4 * (self.numbers.adapter or shape.parameters)  # float32, as FSDP2 adds them up
        outputs = shape.embedding * (1 if shape.tied else 2)
        return {
            "states": share * sum(self.numbers.state_bytes().values()),
            "whole gradients": whole * (1 - share) if self.numbers.unsynced else 0.0,
            "gathered": 2 * (outputs + 2 * shape.layer),  # bfloat16, while they compute
            # inputs of all layers, and one recomputed layer
            "activations": tokens * shape.layers * 2 * shape.hidden
            + tokens * 2 * (8 * shape.hidden + 4 * shape.intermediate),
            # bfloat16 with gradient, and float32 chunks of the log-probs
            "logits": 0.0
            if self.numbers.fused
            else tokens * shape.vocab * 4 + 8 * min(LOGIT_CHUNK, tokens) * shape.vocab,
            "mask": float(tokens**2) if self.numbers.masked else 0.0,
        }

    def beside_engine(self) -> float:
        """Return the bytes of parameters and moments on one GPU while the engine generates."""
        states = self.numbers.state_bytes()
        return sum(states[name] for name in self.numbers.beside_engine) / self.shards

    def engine_room(self) -> float:
        """Return the bytes on one GPU that the engine takes."""
        return self.gpu.memory * self.numbers.utilization

    def engine_memory(self) -> float:
        """Return the bytes on one GPU that the engine needs for one longest sequence."""
        longest = self.numbers.longest_prompt + self.numbers.longest_response
        states = 2 * self.shape.parameters + longest * self.shape.kv_bytes
        return RESERVE + states / self.numbers.tensor

    def cache_tokens(self) -> int:
        """Return the tokens that an engine's KV cache holds; at 0 or less it does not start."""
        room = (self.engine_room() - RESERVE) * self.numbers.tensor
        return int((room - 2 * self.shape.parameters) / self.shape.kv_bytes)

    def at_once(self) -> int:
        """Return the sequences that one engine decodes at once, each of the mean final length."""
        fitting = self.cache_tokens() // self.length
        return max(0, min(self.numbers.sequences, fitting))

    def waves(self, responses: int) -> int:
        """Return the rounds in which each engine decodes its part of all `responses`."""
        return math.ceil(math.ceil(responses / self.engines) / max(1, self.at_once()))

    def rollout_seconds(self, responses: int, speed: Speed) -> float:
        """Return the seconds to decode `responses`."""
        return sum(self.rollout_parts(responses, speed))

    def rollout_parts(self, responses: int, speed: Speed) -> tuple[float, float]:
        """Return the seconds with a full batch, and those of the longest response after it."""
        rounds, weights = self.waves(responses), 2 * self.shape.parameters
        rate = self.gpu.bandwidth * speed.traffic * self.numbers.tensor
        context = self.length - self.mean_response / 2
        cache = math.ceil(responses / self.engines) / rounds * context * self.shape.kv_bytes
        tail = self.numbers.longest_response - self.mean_response
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
        full, tail = self.rollout_parts(self.numbers.responses, speed)
        rest = sum(self.step_seconds(speed).values()) - full - tail
        generation = max(full, (full + tail) / (1 + window))
        return max(generation, rest) if separate else generation + rest

    def with_own_gpus(self, engines: int) -> "Estimate":
        """Return this run with `engines` of its GPUs for engines alone."""
        n = replace(self.numbers, engine_gpus=engines, gpus=self.numbers.gpus - engines)
        return Estimate(n, self.gpu, self.mean_response)

    def actor_seconds(self, speed: Speed) -> dict[str, float]:
        """Return the seconds of log-probabilities and update, with those of a critic."""
        n, shape = self.numbers, self.shape
        # Scores and values, forward: 4 x span x heads x head_dim per layer and token. With packed
        # sdpa the span is the micro-batch, else on average half of the sequence.
        span = n.micro_tokens if n.masked else self.length / 2
        attention = 4 * span * shape.heads * shape.head_dim * shape.layers
        rate = n.gpus * self.gpu.flops * speed.mfu
        tokens = n.responses * self.length
        forward = tokens * (2 * shape.parameters + attention) / rate
        weight_gradient = tokens * 2 * shape.parameters / rate
        update = 4 * forward - (weight_gradient if n.adapter else 0)
        values = (1 + 4 * n.epochs) * forward if n.values else 0
        return {"log-probs": n.passes * forward, "update": n.epochs * update + values}

    def step_seconds(self, speed: Speed) -> dict[str, float]:
        """Return the seconds of one step by part."""
        rollouts = self.rollout_seconds(self.numbers.responses, speed)
        return {"rollouts": rollouts, **self.actor_seconds(speed), "other": speed.other}

    def hours(self, steps: int, validation: int, speed: Speed) -> float:
        """Return the hours of `steps` with their validations of `validation` responses."""
        every = self.numbers.test_freq
        tested = self.rollout_seconds(validation, speed) * (steps // every if every > 0 else 0)
        return (steps * sum(self.step_seconds(speed).values()) + tested) / 3600


# ------------------------------------------------------------------------- on a CPU


def total_memory() -> float:
    """Return the bytes of memory of this machine or, if smaller, of this job's control group."""
    return min(float(psutil.virtual_memory().total), host.memory_limit())


def bucket(shape: Shape | None) -> int:
    """Return the MB of a weight bucket: verl sends each tensor whole, in float32."""
    largest = 4 * max(shape.embedding, shape.hidden * shape.intermediate) if shape else 0
    return max(LEAST_BUCKET, -(-largest // 2**20) + 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class OnCpu:
    """A run of a model on a CPU, by the formula above; `recipe.machine.sizes` reads its numbers."""

    shape: Shape
    entry: int  # bytes of a matrix entry in the engine and in the actor's passes
    sequences: int  # that the engine decodes at once, at most
    longest: int  # tokens of the longest prompt with the longest response
    tokens: int  # of a micro-batch

    def cache(self) -> float:
        """Return the bytes of the engine's KV cache: all sequences at once, if they are short."""
        tokens = min(self.sequences, 128) * self.longest
        needed = tokens * self.shape.kv_bytes * self.entry / 2
        return max(CACHE, min(needed, total_memory() / 8))

    def parts(self) -> tuple[float, float]:
        """Return the bytes that do not depend on the micro-batch, and those of one token of it."""
        shape, b = self.shape, self.entry
        fixed = BASE + TOKENIZERS * shape.vocab + (16 + b) * shape.parameters
        fixed += self.cache() + 2e6 * bucket(shape)
        activations = shape.layers * b * (10 * shape.hidden + 4 * shape.intermediate)
        return fixed, activations + shape.vocab * (2 * b + 4)

    def needed(self) -> float:
        """Return the bytes at the peak."""
        fixed, token = self.parts()
        return fixed + self.tokens * token

    def fitting_tokens(self) -> int:
        """Return the tokens of a micro-batch for which there is memory; may be negative."""
        fixed, token = self.parts()
        return int((0.95 * total_memory() - fixed) / token)
