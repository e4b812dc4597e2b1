"""Formulas of `recipe.plan`, in bytes, tokens, operations or seconds.

P parameters, A of an adapter (LoRA), N GPUs, F of them that share one copy of the states (all, or
``fsdp_size``), T tokens of a micro-batch, V vocabulary, h hidden, i intermediate size, L layers.

    states        16 P / F     float32 parameters, gradients and Adam's two moments, sharded;
                  (4 P + 16 A) / F with LoRA; 16 P / F more for a critic, of the actor's size;
                  0 with fsdp2's offload_policy
    beside        states without gradients: what stays on the GPU while the engine generates;
                  param_offload removes the parameters, optimizer_offload the moments
    reference     4 P of host memory, where verl keeps it; 0 with LoRA
    gathered      2 x (embedding, output matrix and two layers), in bfloat16 while they compute
    activations   T x L x 2 h          checkpoints of the layers' inputs
                  + T x 2 (8 h + 4 i)  the layer that is recomputed
    logits        T x V x 4    bfloat16 logits and their gradient, + 8 x 1,024 x V of the chunks
    mask          T^2          of packed sequences, with sdpa only
    checkpoint    12 P N / F   parameters and moments, float32; 4 P + 12 A with LoRA; 12 P more
                               for a critic
    KV cache      memory x utilisation - 2 P / tp - reserve

    actor         8 P per token trained on (6 P, and the forward pass again; with LoRA 6 P, since P
                  has no gradient), 2 P for each of the log-probabilities before it, + the
                  attention, at `mfu` of the GPU's peak
    critic        10 P per token: its values and its update; PCL's reads prompts only, not counted
    rollouts      each decoding step reads the weights and the cache once, at `traffic` of the
                  bandwidth; sequences that do not fit at once come in waves
"""

import math
from dataclasses import dataclass

from omegaconf import DictConfig

from recipe.config.shapes import Gpu, Shape
from recipe.preflight.engine import actor_rows, attention_heads, engine_gpus, micro_batches
from recipe.preflight.lora import adapter_size
from recipe.preflight.rules import Setup, refuse

RESERVE = 4 * 2**30  # CUDA context, graphs and the engine's own activations
LOGIT_CHUNK = 1024
# Assumptions behind the hours. The comments are from one H200 (examples/SIZES.md).
MFU = 0.35  # 0.33 to 0.37 of an update alone, 0.19 in verl's
TRAFFIC = 0.5  # 0.2 with 128 responses at once
OVERHEAD = 15.0  # other seconds of a step: driver, grading, weights, sleep; 0.3 and 14


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Model, GPUs, workload and assumptions of a run; lengths in tokens."""

    shape: Shape
    gpu: Gpu
    gpus: int
    shards: int  # GPUs over which the states are divided
    tensor_parallel: int
    questions: int
    responses: int  # of a question
    prompt: int  # longest
    response: int  # longest
    mean_prompt: int  # assumed
    mean_response: int  # assumed
    micro_tokens: int  # of a micro-batch on one GPU
    epochs: int  # times that a batch is trained on
    reference: bool  # log-probabilities of a reference model too
    packed_mask: bool  # sdpa over packed sequences
    utilisation: float  # of the engine
    sequences: int  # at once in an engine
    steps: int
    validations: int
    adapter: int = 0  # parameters of LoRA; 0: all of the model are trained
    critic: bool = False  # a second model of the actor's size
    values: bool = False  # the critic predicts a value of every token
    param_offload: bool = False  # parameters are on the GPU in the actor's passes only
    optimizer_offload: bool = False  # moments are on the GPU in the update only
    offload_policy: bool = False  # parameters and moments are never on the GPU (fsdp2)
    validation: int = 500  # responses of one validation
    mfu: float = MFU
    traffic: float = TRAFFIC
    overhead: float = OVERHEAD


def work_of(config: DictConfig, shape: Shape, gpu: Gpu) -> Work:
    """Return the workload of a configuration; responses are assumed to have half of their limit.

    Raises ConfigError for a number of GPUs over which engines or mini-batches do not divide.
    """
    setup = Setup(config)
    refuse([engine_gpus, actor_rows, attention_heads, micro_batches], setup)
    actor, rollout, trainer = setup.actor, setup.rollout, setup.trainer
    prompt, response = setup.data.max_prompt_length, setup.data.max_response_length
    fsdp, every = actor.fsdp_config, trainer.test_freq
    attention = setup.model.override_config.get("attn_implementation", "flash_attention_2")
    return Work(
        shape=shape,
        gpu=gpu,
        gpus=setup.gpus,
        shards=setup.shards(fsdp.fsdp_size),
        tensor_parallel=rollout.tensor_model_parallel_size,
        questions=setup.batch,
        responses=rollout.n,
        prompt=prompt,
        response=response,
        mean_prompt=min(prompt, 200),
        mean_response=response // 2,
        micro_tokens=actor.ppo_max_token_len_per_gpu
        if actor.use_dynamic_bsz
        else actor.ppo_micro_batch_size_per_gpu * setup.longest,
        epochs=actor.ppo_epochs,
        reference=bool(actor.use_kl_loss or setup.algorithm.use_kl_in_reward),
        packed_mask=bool(setup.model.use_remove_padding and attention == "sdpa"),
        utilisation=rollout.gpu_memory_utilization,
        sequences=rollout.max_num_seqs,
        steps=trainer.total_training_steps,
        validations=trainer.total_training_steps // every if every > 0 else 0,
        adapter=adapter_size(setup, shape),
        critic=setup.critic,
        values=setup.facts.critic,
        param_offload=fsdp.param_offload,
        optimizer_offload=fsdp.optimizer_offload,
        offload_policy=fsdp.offload_policy and actor.strategy == "fsdp2",
    )


def actor_memory(work: Work) -> dict[str, float]:
    """Return the bytes on one GPU while the actor trains, by part."""
    shape, tokens = work.shape, work.micro_tokens
    outputs = shape.embedding * (1 if shape.tied else 2)
    states = 4 * shape.parameters + 16 * work.adapter if work.adapter else 16 * shape.parameters
    states += 16 * shape.parameters * work.critic
    return {
        "states": 0.0 if work.offload_policy else states / work.shards,
        "gathered": 2 * (outputs + 2 * shape.layer),
        "activations": tokens * shape.layers * 2 * shape.hidden
        + tokens * 2 * (8 * shape.hidden + 4 * shape.intermediate),
        "logits": tokens * shape.vocab * 4 + 8 * min(LOGIT_CHUNK, tokens) * shape.vocab,
        "mask": float(tokens**2) if work.packed_mask else 0.0,
    }


def beside_engine(work: Work) -> float:
    """Return the bytes of parameters and moments on one GPU while the engine generates."""
    parameters = work.shape.parameters
    kept = checkpoint_bytes(work.shape, work.adapter, work.critic)
    moments = 8 * ((work.adapter or parameters) + parameters * work.critic)
    kept -= moments * work.optimizer_offload + (kept - moments) * work.param_offload
    return 0.0 if work.offload_policy else kept / work.shards


def checkpoint_bytes(shape: Shape, adapter: int, critic: bool) -> int:
    """Return the bytes of one copy of what is saved."""
    actor = 4 * shape.parameters + 12 * adapter if adapter else 12 * shape.parameters
    return actor + 12 * shape.parameters * critic


def saved_bytes(s: Setup, shape: Shape) -> int:
    """Return the bytes of a checkpoint, to which every rank writes its shard."""
    copies = s.gpus // s.shards(s.actor.fsdp_config.fsdp_size)
    return int(copies * checkpoint_bytes(shape, adapter_size(s, shape), s.critic))


def cache_tokens(work: Work) -> int:
    """Return the tokens that an engine's KV cache holds; at 0 or less it does not start."""
    tp = work.tensor_parallel
    room = work.gpu.memory * work.utilisation - 2 * work.shape.parameters / tp - RESERVE
    return int(room * tp / work.shape.kv_bytes)


def at_once(work: Work) -> int:
    """Return the sequences that one engine decodes at once, each of the mean final length."""
    fitting = cache_tokens(work) // (work.mean_prompt + work.mean_response)
    return max(0, min(work.sequences, fitting))


def waves(responses: int, work: Work) -> int:
    """Return the rounds in which each engine decodes its part of all `responses`."""
    engines = work.gpus // work.tensor_parallel
    return math.ceil(math.ceil(responses / engines) / max(1, at_once(work)))


def rollout_seconds(responses: int, work: Work) -> float:
    """Return the seconds to decode `responses`; the tail is the longest response decoded alone."""
    if not responses:
        return 0.0
    engines, tp = work.gpus // work.tensor_parallel, work.tensor_parallel
    rounds = waves(responses, work)
    busy = math.ceil(responses / engines) / rounds
    cache = busy * (work.mean_prompt + work.mean_response / 2) * work.shape.kv_bytes
    rate = work.gpu.bandwidth * work.traffic * tp
    full = (2 * work.shape.parameters + cache) / rate
    tail = 2 * work.shape.parameters / rate
    return rounds * work.mean_response * full + (work.response - work.mean_response) * tail


def actor_seconds(work: Work) -> dict[str, float]:
    """Return the seconds of log-probabilities, update and critic in one step."""
    shape, length = work.shape, work.mean_prompt + work.mean_response
    tokens = work.questions * work.responses * length
    # Scores and values, forward: 4 x span x heads x head_dim per layer and token. With packed sdpa
    # the span is the micro-batch, else on average half of the sequence.
    span = work.micro_tokens if work.packed_mask else length / 2
    attention = 4 * span * shape.heads * shape.head_dim * shape.layers
    forward = tokens * (2 * shape.parameters + attention)
    update = 4 * forward - (tokens * 2 * shape.parameters if work.adapter else 0)
    rate = work.gpus * work.gpu.flops * work.mfu
    passes = 1 + work.reference
    seconds = {"log-probs": passes * forward / rate, "update": work.epochs * update / rate}
    if work.values:
        seconds["critic"] = (1 + 4 * work.epochs) * forward / rate
    return seconds


def step_seconds(work: Work) -> dict[str, float]:
    """Return the seconds of one step by part."""
    rollouts = rollout_seconds(work.questions * work.responses, work)
    return {"rollouts": rollouts, **actor_seconds(work), "overhead": work.overhead}


def run_hours(work: Work) -> float:
    """Return the hours of all steps and validations."""
    step, tested = sum(step_seconds(work).values()), rollout_seconds(work.validation, work)
    return (work.steps * step + work.validations * tested) / 3600
