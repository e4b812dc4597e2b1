"""Rules about verl and its engines: settings that verl ignores, or rejects only much later."""

import importlib
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from prompt_aug.typed import shown
from recipe.algorithms import ADVANTAGES
from recipe.preflight import keys
from recipe.preflight.rules import SHORT, Check, Rule, Setup
from recipe.preflight.shapes import known_shape

ENOUGH_EPOCHS = 1_000_000  # recipe.yaml's default, more than any run needs
GRADER, SAMPLING = "Set the keys under recipe.reward.", "Set recipe.dynamic_sampling."
VERIFIER = "no effect. Set recipe.reward.verifiers.DATA_SOURCE=my_module.compute_score."
MODEL_FILES = (
    "the checks and the evaluation of the start model read the files of recipe.model_path. Unset "
    "it, and save a copy of the model folder with"
)
# (key, its only supported values, reason and remedy).
FIXED: list[tuple[str, Any, str]] = [
    ("custom_reward_function.path", None, VERIFIER),
    ("reward.custom_reward_function.path", None, VERIFIER),
    ("reward_model.reward_manager", "naive", f"no effect. {GRADER}"),
    ("algorithm.filter_groups.max_num_gen_batches", 0, f"no effect. {SAMPLING}"),
    ("algorithm.use_pf_ppo", False, "no effect. Unset it."),
    ("algorithm.norm_adv_by_std_in_grpo", True, "no effect. Set recipe.advantage.name=dr_grpo."),
    ("{R}.val_kwargs.do_sample", False, "no effect. Set {R}.val_kwargs.temperature."),
    ("{R}.do_sample", True, "no effect. Set {R}.temperature."),
    ("{R}.over_sample_rate", 0, f"no effect. {SAMPLING}"),
    ("{R}.full_determinism", False, "all responses of a group would be the same. Unset it."),
    ("{R}.enable_rollout_routing_replay", False, "no effect on FSDP actors. Unset it."),
    ("{A}.grad_clip", 1.0, "no effect. Set {A}.optim.clip_grad."),
    ("{A}.optim.warmup_style", None, "deprecated. Set {A}.optim.lr_scheduler_type."),
    ("critic.optim.warmup_style", None, "deprecated. Set critic.optim.lr_scheduler_type."),
    ("{A}.checkpoint.async_save", False, "verl never records the last checkpoint. Unset it."),
    ("data.mm_processor_kwargs", {}, "no effect. Unset it."),
    ("distillation.enabled", False, "the agent loop has no teacher. Unset it."),
    ("reward_model.enable", False, f"rewards come from this project's grader. {GRADER}"),
    ("reward.reward_model.enable", False, f"rewards come from this project's grader. {GRADER}"),
    ("reward.reward_manager.source", "importlib", f"the trainer reads its columns. {GRADER}"),
    (
        "reward.reward_manager.name",
        "RecipeRewardManager",
        f"the trainer reads its columns. {GRADER}",
    ),
    (
        "{MODEL}.trust_remote_code",
        False,
        "the checks, exports and evaluations do not run a model's own code. Unset it, and train a "
        "model that transformers and vLLM have a class for.",
    ),
    ("{MODEL}.custom_chat_template", None, f"{MODEL_FILES} this chat template."),
    ("{MODEL}.tokenizer_path", None, f"{MODEL_FILES} this tokenizer."),
    ("{MODEL}.hf_config_path", None, f"{MODEL_FILES} this config.json."),
    ("{R}.mode", "async", "verl 0.9.1 has no other. Unset it."),
    ("trainer.val_only", False, "verl trains all the same. Unset it; run python -m eval.sweep."),
    ("trainer.v1.sampler.custom_sampler.path", None, "no effect. Unset it."),
    ("trainer.v1.sampler.sync_refill_failed_groups", False, "no effect. Unset it."),
    ("trainer.v1.trainer_mode", "recipe_sync", "this is not this project's trainer. Unset it."),
    (
        "trainer.resume_mode",
        ("auto", "resume_path"),
        "verl would do this at every restart, so a run that is requeued would never end. Leave it "
        "at auto. To start over choose another recipe.run_dir.",
    ),
]


def fixed(key: str, only: Any, message: str) -> Rule:
    allowed = only if isinstance(only, tuple) else (only,)
    return Rule(key, lambda s: s.get(key) not in (*allowed, None), message)


LOOP_KEYS = (
    *("actor_rollout_ref.rollout.multi_turn.", "actor_rollout_ref.rollout.trace."),
    *("data.tool_config_path", "data.function_tool_path"),
)


def estimator(s: Setup) -> Iterator[str]:
    """`algorithm.adv_estimator` has verl's default: `recipe.advantage` computes the advantages."""
    name = s.algorithm.adv_estimator
    if name == "grpo":
        return
    instead = f"recipe.advantage.name={name if name in ADVANTAGES else f'verl:{name}'}"
    if name == "gae":
        instead = "method=ppo"
    yield f"algorithm.adv_estimator={name}: no effect. Unset it and set {instead}."


def sequence_parallelism(s: Setup) -> Iterator[str]:
    """Sequences are divided over ranks with flash attention, and the ranks divide the GPUs."""
    for role in ("actor", "ref"):
        key, ranks = s.sequence_key(role), s.sequence_ranks(role)
        if ranks > 1 and actor_attention(s) not in FLASH:
            attention = s.named("{MODEL}.override_config.attn_implementation".format(**SHORT))
            yield (
                f"{attention} with {key}={ranks}: verl divides a sequence over ranks with flash "
                f"attention alone. Set flash_attention_2, or {key}=1."
            )
        if s.gpus % ranks:
            yield (
                f"{key}={ranks}: it does not divide the {s.gpus} GPUs (trainer.nnodes x "
                "trainer.n_gpus_per_node). Set it to a divisor."
            )


def unused_keys(s: Setup) -> Iterator[str]:
    """Every other key without effect in verl 0.9.1 (keys.yaml) has verl's default."""
    own = {key.format(**SHORT) for key, *_ in FIXED}
    for key, value, text in keys.unused(s.config):
        of_own_loop = key.startswith(LOOP_KEYS) and s.rollout.agent.agent_loop_config_path
        if key not in own and not of_own_loop:
            yield f"{key}={shown(value)}: {text}. Unset it."


def actor_attention(s: Setup) -> str:
    """Return the attention of the actor; without the key verl takes flash_attention_2."""
    return s.get("{MODEL}.override_config.attn_implementation") or "flash_attention_2"


# Attention -> the package it needs. Both are called through transformers' flash_attention_forward,
# which verl patches to divide a sequence over ranks (verl/models/transformers/monkey_patch.py).
FLASH = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}


def is_missing(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is None
    except (ImportError, ValueError):
        return True


def token_limits(s: Setup) -> Iterator[str]:
    """A micro-batch of a dynamic size holds the longest prompt and response."""
    roles = s.config.actor_rollout_ref
    keys = ["actor.ppo_max_token_len_per_gpu"] * bool(s.actor.use_dynamic_bsz)
    keys += [
        f"{role}.log_prob_max_token_len_per_gpu"
        for role in ("rollout", "ref")
        if roles[role].log_prob_use_dynamic_bsz
    ]
    limits = [
        (
            f"actor_rollout_ref.{key}",
            OmegaConf.select(roles, key),
            s.sequence_ranks("ref" if key.startswith("ref.") else "actor"),
        )
        for key in keys
    ]
    if s.facts.critic:
        critic = s.config.critic
        limits.append((
            key := "critic.ppo_infer_max_token_len_per_gpu",
            s.get(key),
            critic.fsdp.ulysses_sequence_parallel_size,
        ))  # fmt: skip
    for key, tokens, ranks in limits:
        if tokens * ranks < s.longest:
            yield (
                f"{key}={tokens}: verl would stop at the first sequence of "
                f"{s.longest} tokens (data.max_prompt_length + data.max_response_length). Set it "
                f"to {-(-s.longest // ranks)} or more."
            )


def micro_batches(s: Setup) -> Iterator[str]:
    """A micro-batch of a fixed size divides the rows of a rank."""
    if s.actor.use_dynamic_bsz or s.batch % s.mini or s.mini_rows % s.ranks:
        return
    rows = s.batch * s.rollout.n
    sizes = {
        "actor.ppo_micro_batch_size_per_gpu": s.rank_rows,
        "rollout.log_prob_micro_batch_size_per_gpu": rows // s.ranks,
    }
    if s.actor.use_kl_loss or s.algorithm.use_kl_in_reward:
        of_ref = rows * s.sequence_ranks("ref") // s.gpus
        sizes["ref.log_prob_micro_batch_size_per_gpu"] = of_ref
    for name, rows_of_rank in sizes.items():
        micro = OmegaConf.select(s.config.actor_rollout_ref, name)
        if not micro or rows_of_rank % micro:
            yield (
                f"actor_rollout_ref.{name}={micro}: it does not divide the {rows_of_rank} rows of "
                "a rank. Set it to a divisor, or set actor_rollout_ref.actor.use_dynamic_bsz=true."
            )


def elsewhere(s: Setup) -> Path | None:
    """Return where checkpoints belong, if verl would save them elsewhere."""
    wanted = s.folder.checkpoints
    same = Path(s.trainer.default_local_dir).resolve() == wanted.resolve()
    return None if same else wanted


def needs_package(name: str, package: str) -> Rule:
    return Rule(
        "{MODEL}.override_config.attn_implementation",
        lambda s: actor_attention(s) == name and is_missing(package),
        f"{name} (verl's default is flash_attention_2) needs the package {package}, which is not "
        "installed. Set sdpa, or install it (requirements/README.md).",
    )


def keeps_all(key: str) -> Rule:
    return Rule(
        f"{{A}}.checkpoint.{key}",
        lambda s: ", ".join(sorted({"model", "optimizer", "extra"} - set(s.actor.checkpoint[key]))),
        "a resumed run would start without: {found}. Keep model, optimizer and extra.",
    )


def same_length(key: str) -> Rule:
    return Rule(
        f"{{R}}.{key} data.max_{key}",
        lambda s: s.rollout[key] != s.data[f"max_{key}"],
        f"the engine reads one and rewards the other. Set data.max_{key} alone.",
    )


TENSOR = Rule(
    "{R}.tensor_model_parallel_size {R}.data_parallel_size",
    lambda s: (
        s.gpus % s.engine_gpus
        or (s.trainer.n_gpus_per_node % s.engine_gpus and s.engine_gpus % s.trainer.n_gpus_per_node)
    ),
    "their product does not divide the {s.gpus} GPUs (trainer.nnodes x trainer.n_gpus_per_node), "
    "or an engine would have parts of two nodes. Set it to a divisor.",
)
ROWS = Rule(
    "{A}.ppo_mini_batch_size {R}.n",
    lambda s: s.mini_rows % s.ranks,
    "the {s.mini_rows} rows of a mini-batch do not divide over {s.ranks} data-parallel ranks "
    "(trainer.nnodes x trainer.n_gpus_per_node). Set another mini-batch or number of GPUs.",
)


def odd_heads(s: Setup) -> int | None:
    """Return the number of attention heads if an engine's GPUs do not divide it, else None."""
    shape = known_shape(s.recipe.model_path)
    tensor = s.rollout.tensor_model_parallel_size
    return shape.heads if shape and shape.heads % tensor else None


HEADS = Rule(
    "{R}.tensor_model_parallel_size",
    odd_heads,
    "it does not divide the {found} attention heads of the model. Set it to a divisor.",
)

ENGINE: list[Check] = [
    Rule(
        "trainer.resume_mode trainer.resume_from_path",
        lambda s: (s.trainer.resume_mode == "resume_path") != bool(s.trainer.resume_from_path),
        "a run begins from another run's checkpoint with both. Set resume_mode=resume_path and "
        "resume_from_path=RUN/checkpoints/global_step_N, or neither.",
    ),
    *(fixed(key, only, message) for key, only, message in FIXED),
    estimator,
    unused_keys,
    Rule(
        "{R}.agent.default_agent_loop",
        lambda s: (
            s.rollout.agent.default_agent_loop != "prompt_augmentation"
            and not s.rollout.agent.agent_loop_config_path
        ),
        "rewards and statistics need what prompt_augmentation writes. Leave the key alone, or "
        "register your own loop with {R}.agent.agent_loop_config_path.",
    ),
    *(needs_package(name, package) for name, package in FLASH.items()),
    Rule(
        "{MODEL}.override_config.attn_implementation trainer.device",
        lambda s: actor_attention(s) == "flex_attention" and s.trainer.device == "cpu",
        "torch computes no gradient of flex_attention on a CPU. Set sdpa.",
    ),
    sequence_parallelism,
    # ---------------------------------------------------------------- checkpoints and the end
    Rule(
        "trainer.default_local_dir",
        elsewhere,
        "export and evaluation look for checkpoints in {found}. Leave the key alone and choose the "
        "folder of the run with recipe.run_dir=...; for another disk make its checkpoints/ a link.",
    ),
    keeps_all("save_contents"),
    keeps_all("load_contents"),
    # ---------------------------------------------------------------- lengths
    Rule(
        "{R}.max_model_len",
        lambda s: (s.rollout.max_model_len or 0) < s.needed,
        "it is less than data.max_prompt_length + data.max_response_length = {s.longest}, so verl "
        "would silently cut responses. Set it to {s.needed} or more, shorten "
        "data.max_response_length, or set recipe.rollout.joint_limit=true.",
    ),
    Rule(
        "{R}.engine_kwargs.vllm",
        lambda s: s.get("{R}.engine_kwargs.vllm.max_model_len"),
        "max_model_len={found} would replace the key that is checked. Set {R}.max_model_len.",
    ),
    Rule(
        "{R}.val_kwargs.n {R}.val_kwargs.temperature",
        lambda s: s.rollout.val_kwargs.n > 1 and not s.rollout.val_kwargs.temperature,
        "greedy responses to a question are all equal. Set {R}.val_kwargs.temperature=1, or "
        "{R}.val_kwargs.n=1.",
    ),
    token_limits,
    same_length("prompt_length"),
    same_length("response_length"),
    # ---------------------------------------------------------------- sizes that must divide
    TENSOR,
    Rule(
        "{R}.expert_parallel_size {R}.tensor_model_parallel_size {R}.data_parallel_size",
        lambda s: s.rollout.expert_parallel_size not in (1, s.engine_gpus),
        "verl wants the product of the two others. Set it to {s.engine_gpus}, or to 1.",
    ),
    Rule(
        "{R}.pipeline_model_parallel_size",
        lambda s: s.rollout.pipeline_model_parallel_size > 1,
        "verl 0.9.1 does not divide the layers of an engine. Unset it.",
    ),
    Rule(
        "data.gen_batch_size algorithm.filter_groups.enable",
        lambda s: s.filter.enable and s.data.gen_batch_size not in (None, 1),
        "no effect: with the filter verl fetches one question at a time. Leave "
        "data.gen_batch_size null.",
    ),
    Rule(
        "data.gen_batch_size data.train_batch_size",
        lambda s: s.data.gen_batch_size and s.batch % s.data.gen_batch_size,
        "it does not divide data.train_batch_size, and verl would stop at the first step. Leave "
        "data.gen_batch_size null, which is one chunk.",
    ),
    Rule(
        "data.train_batch_size {A}.ppo_mini_batch_size",
        lambda s: s.batch % s.mini,
        "the batch is not a multiple of the mini-batch (both in questions). Set "
        "{A}.ppo_mini_batch_size to a divisor.",
    ),
    Rule(
        "data.train_batch_size critic.ppo_mini_batch_size",
        lambda s: s.critic and s.batch % s.config.critic.ppo_mini_batch_size,
        "verl would pad the batch to a multiple of both mini-batches, so that the actor trains on "
        "mini-batches of padding. Set critic.ppo_mini_batch_size to a divisor of the batch.",
    ),
    ROWS,
    micro_batches,
    Rule(
        "{R}.log_prob_use_dynamic_bsz {A}.use_dynamic_bsz",
        lambda s: s.rollout.log_prob_use_dynamic_bsz != s.actor.use_dynamic_bsz,
        "verl wants both alike. Unset {R}.log_prob_use_dynamic_bsz.",
    ),
]
