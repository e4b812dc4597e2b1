"""Rules about verl and its engines: settings that verl ignores, or rejects only much later.

Also those about attention, kernels, quantized rollouts and LoRA.
"""

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from omegaconf import OmegaConf

from prompt_aug.typed import shown
from recipe.config import verl
from recipe.config.base import is_in
from recipe.config.verl import ASYNCHRONOUS, MODE, MODEL, REF, SEPARATE, A, R, own_gpus
from recipe.machine.memory import shards
from recipe.machine.model_files import NO_LOGIT
from recipe.machine.shapes import LAYERS, fields_of
from recipe.start.attention import ATTENTION, PRECISION, available, planned
from recipe.start.data import paths_of
from recipe.start.rules import Check, Rule, Setup

TENSOR_GPUS = f"{R}.tensor_model_parallel_size"
POSITIONS, HEADS = "max_position_embeddings", "num_attention_heads"
CPU_ENGINES = {"recipe.actor.engine", "recipe.patches.cpu.engines"}
LOOP_KEYS = (f"{R}.multi_turn", f"{R}.trace", "data.tool_config_path", "data.function_tool_path")


def fixed_keys(s: Setup) -> Iterator[str]:
    """Keys that have no effect here, or are not supported, have their defaults (keys.yaml)."""
    for key, value, text in verl.changed_keys(s.config):
        of_own_loop = is_in(key, LOOP_KEYS) and s.rollout.agent.agent_loop_config_path
        if not of_own_loop:
            yield f"{key}={shown(value)}: {text}. Unset it."


def own_folder_of_checkpoints(s: Setup) -> Iterator[str]:
    """Checkpoints are saved in the run folder, where export and evaluation look for them."""
    folder = s.folder.checkpoints
    if Path(s.trainer.default_local_dir).resolve() != folder.resolve():
        yield s.message(
            "trainer.default_local_dir",
            f"export and evaluation look for checkpoints in {folder}. Leave the key alone and "
            "choose the folder of the run with recipe.run_dir=...; for another disk make its "
            "checkpoints/ a link.",
        )


def trainer_mode(s: Setup) -> Iterator[str]:
    """`trainer.v1.trainer_mode` is a trainer of this project, with keys that it reads."""
    if s.mode not in ("recipe_sync", *ASYNCHRONOUS):
        yield s.message(
            MODE, f"not a trainer of this project. Set recipe_sync, {' or '.join(ASYNCHRONOUS)}."
        )
    if s.mode in ASYNCHRONOUS and s.data.gen_batch_size not in (None, 1):
        yield s.message(
            f"data.gen_batch_size {MODE}",
            "no effect: this trainer requests single questions. Unset it.",
        )
    if s.mode in ASYNCHRONOUS and s.config.skip.rollout_tq.enable:
        yield s.message(
            f"skip.rollout_tq.enable {MODE}",
            "recorded rollouts would lack the questions in flight. Set trainer_mode=recipe_sync.",
        )


def separate_engines(s: Setup) -> Iterator[str]:
    """With `recipe_separate_async` the engines have GPUs and a transport of weights."""
    if s.mode != SEPARATE:
        return
    if not own_gpus(s.config):
        yield s.message(
            f"{R}.nnodes {MODE}",
            f"the engines have no GPUs. Set {R}.nnodes and {R}.n_gpus_per_node; those of trainer "
            "are the actor's.",
        )
    if s.rollout.checkpoint_engine.backend == "nccl" and s.here and not find_spec("cupy"):
        yield s.message(
            f"{R}.checkpoint_engine.backend",
            "verl's transport needs the package cupy. Install it, or leave the key out: gloo.",
        )


FIXED: list[Check] = [fixed_keys, own_folder_of_checkpoints, trainer_mode, separate_engines]
FIXED += [
    available,
    Rule(
        "recipe.run_dir",
        lambda s: str(s.recipe.run_dir).startswith("~"),
        "the shell expands ~ only at the beginning of a word. Use $HOME.",
    ),
    Rule(
        "trainer.resume_mode",
        lambda s: s.trainer.resume_mode not in ("auto", "resume_path", None),
        "verl would do this at every restart, so a run that is requeued would never end. Leave it "
        "at auto. To start over choose another recipe.run_dir.",
    ),
    Rule(
        "trainer.resume_mode trainer.resume_from_path",
        lambda s: (s.trainer.resume_mode == "resume_path") != bool(s.trainer.resume_from_path),
        "a run begins from another run's checkpoint with both. Set resume_mode=resume_path and "
        "resume_from_path=RUN/checkpoints/global_step_N, or neither.",
    ),
    Rule(
        "actor_rollout_ref.model.external_lib trainer.device",
        lambda s: (
            s.trainer.device == "cpu" and not CPU_ENGINES & set(paths_of(s.model.external_lib))
        ),
        "without one of recipe's engines verl has no actor for a CPU. Set the first key to "
        "[YOUR_MODULE,recipe.actor.engine].",
    ),
    Rule(
        f"{R}.agent.default_agent_loop",
        lambda s: (
            s.rollout.agent.default_agent_loop != "prompt_augmentation"
            and not s.rollout.agent.agent_loop_config_path
        ),
        "rewards and statistics need what prompt_augmentation writes. Leave the key alone, or "
        f"register your own loop with {R}.agent.agent_loop_config_path.",
    ),
    Rule(
        f"{R}.val_kwargs.n {R}.val_kwargs.temperature",
        lambda s: s.rollout.val_kwargs.n > 1 and not s.rollout.val_kwargs.temperature,
        f"greedy responses to a question are all equal. Set {R}.val_kwargs.temperature=1, or "
        f"{R}.val_kwargs.n=1.",
    ),
]


def number(s: Setup, field: str) -> int | None:
    """Return a number of the model's config.json, None if it is not known."""
    value = s.model_fields.get(field)
    return value if type(value) is int and value > 0 else None


def engine_length(s: Setup) -> Iterator[str]:
    """The engine's limit holds the longest prompt and response, and the model's positions it."""
    key, joint = f"{R}.max_model_len", s.recipe.rollout.joint_limit
    needed, most = s.data.max_prompt_length + 1 if joint else s.longest, number(s, POSITIONS)
    if most and max(needed, s.rollout.max_model_len or 0) > most:
        yield s.message(
            key,
            f"the model has {most} positions ({POSITIONS}). Set it to {most} or less, with a "
            "shorter data.max_response_length or recipe.rollout.joint_limit=true.",
        )
    elif (s.rollout.max_model_len or 0) < needed:
        yield s.message(
            key,
            f"no response has room after the longest prompt. Set it to {needed} or more."
            if joint
            else "it is less than data.max_prompt_length + data.max_response_length = "
            f"{s.longest}, so verl would silently cut responses. Set it to {needed} or more, "
            "shorten data.max_response_length, or set recipe.rollout.joint_limit=true.",
        )
    if s.get(again := f"{R}.engine_kwargs.vllm.max_model_len"):
        yield s.message(again, f"it would replace the key that is checked. Set {key}.")


def token_limits(s: Setup) -> Iterator[str]:
    """A micro-batch of a dynamic size holds the longest prompt and response."""
    actor, ref = s.sequence_ranks("actor"), s.sequence_ranks("ref")
    for key, is_read, ranks in (
        (f"{A}.ppo_max_token_len_per_gpu", s.actor.use_dynamic_bsz, actor),
        (f"{R}.log_prob_max_token_len_per_gpu", s.rollout.log_prob_use_dynamic_bsz, actor),
        (
            f"{REF}.log_prob_max_token_len_per_gpu",
            s.reference and s.ref.log_prob_use_dynamic_bsz,
            ref,
        ),
        ("critic.ppo_infer_max_token_len_per_gpu", s.facts.critic, actor),
    ):
        if is_read and s.get(key) * ranks < s.longest:
            yield s.message(
                key,
                f"verl would stop at the first sequence of {s.longest} tokens "
                "(data.max_prompt_length + data.max_response_length). Set it to "
                f"{-(-s.longest // ranks)} or more.",
            )


def engine_gpus(s: Setup) -> Iterator[str]:
    """Engines divide the GPUs, and an engine is on one node or on whole nodes."""
    gpus = int(s.rollout.tensor_model_parallel_size)
    node = (s.rollout if s.mode == SEPARATE else s.trainer).n_gpus_per_node
    if s.engine_gpus % gpus or (node % gpus and gpus % node):
        yield s.message(
            TENSOR_GPUS,
            f"it does not divide the {s.engine_gpus} GPUs of the engines (nnodes x "
            "n_gpus_per_node), or an engine would have parts of two nodes. Set it to a divisor.",
        )
    if (heads := number(s, HEADS)) and heads % gpus:
        yield s.message(TENSOR_GPUS, f"it does not divide the model's {heads} {HEADS}. Lower it.")


def actor_rows(s: Setup) -> Iterator[str]:
    """The rows of a mini-batch, also of the critic's, divide over the data-parallel ranks."""
    for role in (A, *(["critic"] if s.critic else [])):
        rows = s.get(f"{role}.ppo_mini_batch_size") * s.rollout.n
        if rows % s.ranks:
            yield s.message(
                f"{role}.ppo_mini_batch_size {R}.n",
                f"the {rows} rows of a mini-batch do not divide over {s.ranks} data-parallel ranks "
                "(trainer.nnodes x trainer.n_gpus_per_node). Set another mini-batch or number of "
                "GPUs.",
            )


def sequence_parallelism(s: Setup) -> Iterator[str]:
    """Sequences are divided over ranks with flash attention, and the ranks divide the GPUs."""
    for role in ("actor", "ref") if s.reference else ("actor",):
        key, ranks = s.sequence_key(role), s.sequence_ranks(role)
        # transformers calls all of these, also kernels of the hub, through flash_attention_forward,
        # which verl patches to divide a sequence (verl/models/transformers/monkey_patch.py).
        if ranks > 1 and "flash" not in planned(s)[0]:
            yield (
                f"{s.named(ATTENTION)} with {key}={ranks}: verl divides a sequence over ranks with "
                f"flash attention alone. Set flash_attention_2, or {key}=1."
            )
        if s.gpus % ranks:
            yield (
                f"{key}={ranks}: it does not divide the {s.gpus} GPUs (trainer.nnodes x "
                "trainer.n_gpus_per_node). Set it to a divisor."
            )
        if (heads := number(s, HEADS)) and heads % ranks:
            yield f"{key}={ranks}: it does not divide the model's {heads} {HEADS}. Lower it."
    key = "critic.fsdp.ulysses_sequence_parallel_size"
    if s.facts.critic and s.get(key) != s.sequence_ranks():
        yield s.message(
            key,
            f"the batch is distributed over the actor's {s.ranks} data-parallel ranks, and the "
            f"critic's mini-batches would have other rows. Set it to {s.sequence_ranks()}.",
        )


def copies(s: Setup) -> Iterator[str]:
    """Copies of the states, each divided over `fsdp_size` ranks, are on all GPUs."""
    used = {f"{A}.fsdp_config": True, f"{REF}.fsdp_config": s.reference, "critic.fsdp": s.critic}
    for section in (name for name, is_used in used.items() if is_used):
        if s.gpus % shards(s.get(f"{section}.fsdp_size"), s.gpus):
            yield s.message(
                f"{section}.fsdp_size",
                f"it does not divide the {s.gpus} GPUs (trainer.nnodes x trainer.n_gpus_per_node). "
                "Set it to a divisor, or to -1 for one copy over all GPUs.",
            )


def micro_batches(s: Setup) -> Iterator[str]:
    """A micro-batch of a fixed size divides the rows of a rank."""
    if s.actor.use_dynamic_bsz or s.batch % s.mini or s.mini_rows % s.ranks:
        return
    rows = s.batch * s.rollout.n
    sizes = {
        "actor.ppo_micro_batch_size_per_gpu": s.mini_rows // s.ranks,
        "rollout.log_prob_micro_batch_size_per_gpu": rows // s.ranks,
    }
    if s.reference:
        of_ref = rows * s.sequence_ranks("ref") // s.gpus
        sizes["ref.log_prob_micro_batch_size_per_gpu"] = of_ref
    for name, rows_of_rank in sizes.items():
        micro = OmegaConf.select(s.config.actor_rollout_ref, name)
        if not micro or rows_of_rank % micro:
            yield (
                f"actor_rollout_ref.{name}={micro}: it does not divide the {rows_of_rank} rows of "
                "a rank. Set it to a divisor, or set actor_rollout_ref.actor.use_dynamic_bsz=true."
            )


SIZES: list[Check] = [engine_gpus, actor_rows, sequence_parallelism, copies, micro_batches]
SIZES += [
    Rule(
        f"{A}.use_dynamic_bsz {R}.log_prob_use_dynamic_bsz",
        lambda s: s.actor.use_dynamic_bsz != s.rollout.log_prob_use_dynamic_bsz,
        "verl divides both passes of an actor in one way. Set only the first: the other follows.",
    ),
    Rule(
        f"{A}.use_dynamic_bsz {REF}.log_prob_use_dynamic_bsz",
        lambda s: s.reference and s.actor.use_dynamic_bsz != s.ref.log_prob_use_dynamic_bsz,
        "the sizes of the other way are not read. Set only the first: the other follows.",
    ),
    Rule(
        f"data.train_batch_size {A}.ppo_mini_batch_size",
        lambda s: s.batch % s.mini,
        "the batch is not a multiple of the mini-batch (both in questions). Set "
        f"{A}.ppo_mini_batch_size to a divisor.",
    ),
    Rule(
        "data.train_batch_size critic.ppo_mini_batch_size",
        lambda s: s.critic and s.batch % s.config.critic.ppo_mini_batch_size,
        "verl would pad the batch to a multiple of both mini-batches, so that the actor trains on "
        "mini-batches of padding. Set critic.ppo_mini_batch_size to a divisor of the batch.",
    ),
]


TARGETS, EXCLUDED = f"{MODEL}.target_modules", f"{MODEL}.exclude_modules"


def adapted(s: Setup) -> list[str]:
    """Return the layers with a LoRA adapter."""
    targets, excluded = s.get(TARGETS), s.get(EXCLUDED)
    return [
        x for x in (LAYERS if targets == "all-linear" else targets) if x not in (excluded or ())
    ]


def layers(s: Setup) -> Iterator[str]:
    """An adapter has layers, whose names are known."""
    targets, excluded = s.get(TARGETS), s.get(EXCLUDED)
    lists = [[] if targets == "all-linear" else targets, excluded or []]
    if not s.model.lora_rank:
        return
    if not all(isinstance(names, list) for names in lists):
        why = "text is a pattern for PEFT"
    elif unknown := [str(name) for names in lists for name in names if name not in LAYERS]:
        why = f"unknown are {', '.join(unknown)}"
    elif not adapted(s):
        why = "no layer is left"
    else:
        return
    yield s.message(
        f"{TARGETS} {EXCLUDED}", f"{why}. Set all-linear, or a list of {', '.join(LAYERS)}."
    )


LORA: list[Check] = [
    layers,
    Rule(
        f"{MODEL}.lora.merge {MODEL}.lora_rank",
        lambda s: bool(s.model.lora.merge) != bool(s.model.lora_rank),
        "with LoRA the engine gets the weights with the adapter added, which is what is exported "
        "and tested here; without it the key has no effect. Set "
        f"{MODEL}.lora.merge=true together with {MODEL}.lora_rank, or neither.",
    ),
    Rule(
        f"{MODEL}.lora_rank {A}.strategy",
        lambda s: s.model.lora_rank and s.actor.strategy != "fsdp2",
        f"LoRA is tested only with fsdp2. Set {A}.strategy=fsdp2.",
    ),
    Rule(
        f"{MODEL}.lora_rank {A}.fsdp_config.model_dtype",
        lambda s: (
            s.model.lora_rank and s.actor.fsdp_config.model_dtype not in (None, "float32", "fp32")
        ),
        "verl would keep the adapter in the same 16 bits, in which most updates are lost. Set "
        f"{A}.fsdp_config.model_dtype=fp32.",
    ),
]

OVERRIDES = f"{MODEL}.override_config"
DROPOUT = re.compile(r"(?!classifier|summary)\w*(?:dropout|pdrop|layerdrop)\w*")


def overrides(s: Setup) -> Iterator[str]:
    """`override_config` changes no logit: only the actor gets it, the engine and exports do not."""
    config = fields_of(s.recipe.model_path or "")
    for key, value in (s.get(OVERRIDES) or {}).items():
        if not (key in NO_LOGIT or "drop" in key or (key in config and config[key] == value)):
            yield s.message(
                f"{OVERRIDES}.{key}",
                "the actor would be another model than the engine's. Save a copy of the model "
                "folder with this in its config.json, and set recipe.model_path.",
            )


def dropout(s: Setup) -> Iterator[str]:
    """No dropout: it is on in the update and off for old log-probabilities, so ratios are noise."""
    for key, value in s.model_fields.items():
        if DROPOUT.fullmatch(key) and isinstance(value, int | float) and value > 0:
            yield (
                f"recipe.model_path={s.recipe.model_path}: it has {key}={value}, on in the update "
                f"alone, so its ratios would be noise. Set +{OVERRIDES}.{key}=0.0."
            )


def sixteen_bits(s: Setup) -> Iterator[str]:
    """Note weights of 16 bits, whose last digit is more than most updates."""
    dtype, optimizer = s.actor.fsdp_config.model_dtype, f"{A}.optim.override_optimizer_config"
    rounded = (s.get(optimizer) or {}).get("bf16_stochastic_round")
    if not (dtype in (None, "float32", "fp32") or rounded or s.model.lora_rank):
        yield s.message(
            f"{A}.fsdp_config.model_dtype {A}.optim.lr",
            "most updates are less than the last digit of such a weight, and are lost. Set fp32.",
        )


HALF = Rule(
    PRECISION.format("actor"),
    lambda s: (
        s.trainer.device == "cpu" and str(s.get(PRECISION.format("actor"))) in ("fp16", "float16")
    ),
    "on a CPU nothing scales the loss, so gradients underflow, and an infinite one makes all "
    f"weights NaN. Set bfloat16 or float32, also as {R}.dtype.",
)
STRATEGY = Rule(
    f"{A}.strategy trainer.device",
    lambda s: s.actor.strategy == "fsdp" and s.config.trainer.device == "cpu",
    f"torch's FSDP cannot broadcast weights on a CPU. Set {A}.strategy=fsdp2.",
)

ENGINE: list[Check] = [
    STRATEGY,
    *FIXED,
    overrides,
    dropout,
    HALF,
    engine_length,
    token_limits,
    *SIZES,
]
