"""Rules about verl and its engines: settings that verl ignores, or rejects only much later."""

from collections.abc import Iterator
from pathlib import Path

from omegaconf import OmegaConf

from prompt_aug.typed import shown
from recipe.algorithms import ADVANTAGES
from recipe.config.shapes import known_shape
from recipe.preflight import keys
from recipe.preflight.rules import SHORT, Check, Rule, Setup, table

ENOUGH_EPOCHS = 1_000_000  # recipe.yaml's default, more than any run needs
TABLE = table("engine")
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


ATTENTION = "actor_rollout_ref.model.override_config.attn_implementation"
# Both are called through transformers' flash_attention_forward, which verl patches to divide a
# sequence over ranks (verl/models/transformers/monkey_patch.py).
FLASH = (None, "flash_attention_2", "flash_attention_3")  # None: verl takes flash_attention_2


def sequence_parallelism(s: Setup) -> Iterator[str]:
    """Sequences are divided over ranks with flash attention, and the ranks divide the GPUs."""
    for role in ("actor", "ref"):
        key, ranks = s.sequence_key(role), s.sequence_ranks(role)
        if ranks > 1 and s.get(ATTENTION) not in FLASH:
            yield (
                f"{s.named(ATTENTION)} with {key}={ranks}: verl divides a sequence over ranks with "
                f"flash attention alone. Set flash_attention_2, or {key}=1."
            )
        if s.gpus % ranks:
            yield (
                f"{key}={ranks}: it does not divide the {s.gpus} GPUs (trainer.nnodes x "
                "trainer.n_gpus_per_node). Set it to a divisor."
            )


def unused_keys(s: Setup) -> Iterator[str]:
    """Every other key without effect in verl 0.9.1 (keys.yaml) has verl's default."""
    own = {key for rule in TABLE for key in rule.keys.split()}
    for key, value, text in keys.unused(s.config):
        of_own_loop = key.startswith(LOOP_KEYS) and s.rollout.agent.agent_loop_config_path
        if key not in own and not of_own_loop:
            yield f"{key}={shown(value)}: {text}. Unset it."


def token_limits(s: Setup) -> Iterator[str]:
    """A micro-batch of a dynamic size holds the longest prompt and response."""
    actor, ref = s.sequence_ranks("actor"), s.sequence_ranks("ref")
    critic = s.config.critic.fsdp.ulysses_sequence_parallel_size
    for name, is_read, ranks in (
        ("{A}.ppo_max_token_len_per_gpu", s.actor.use_dynamic_bsz, actor),
        ("{R}.log_prob_max_token_len_per_gpu", s.rollout.log_prob_use_dynamic_bsz, actor),
        ("{REF}.log_prob_max_token_len_per_gpu", s.ref.log_prob_use_dynamic_bsz, ref),
        ("critic.ppo_infer_max_token_len_per_gpu", s.facts.critic, critic),
    ):
        key = name.format(**SHORT)
        if is_read and s.get(key) * ranks < s.longest:
            yield (
                f"{s.named(key)}: verl would stop at the first sequence of "
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


def keeps_all(key: str) -> Rule:
    return Rule(
        key,
        lambda s: ", ".join(sorted({"model", "optimizer", "extra"} - set(s.get(key) or ()))),
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
CRITIC_ROWS = Rule(
    "critic.ppo_mini_batch_size {R}.n",
    lambda s: s.critic and s.config.critic.ppo_mini_batch_size * s.rollout.n % s.ranks,
    "the rows of the critic's mini-batch do not divide over {s.ranks} data-parallel ranks "
    "(trainer.nnodes x trainer.n_gpus_per_node). Set another mini-batch or number of GPUs.",
)
CRITIC_RANKS = Rule(
    "critic.fsdp.ulysses_sequence_parallel_size",
    lambda s: (
        s.facts.critic and s.config.critic.fsdp.ulysses_sequence_parallel_size != s.sequence_ranks()
    ),
    "the batch is distributed over the actor's {s.ranks} data-parallel ranks, and the critic's "
    "mini-batches would have other rows. Leave the key alone: it follows the actor's.",
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


def odd_width(s: Setup) -> int | None:
    """Return the model's hidden size if verl's triton kernels, which take 128 at a time, fail."""
    shape, options = known_shape(s.recipe.model_path), s.model.fused_kernel_options
    triton = s.model.use_fused_kernels and options.impl_backend == "triton"
    return shape.hidden if triton and shape and shape.hidden % 128 else None


ENGINE: list[Check] = [
    *TABLE,
    estimator,
    unused_keys,
    sequence_parallelism,
    # ---------------------------------------------------------------- checkpoints
    Rule(
        "trainer.default_local_dir",
        elsewhere,
        "export and evaluation look for checkpoints in {found}. Leave the key alone and choose the "
        "folder of the run with recipe.run_dir=...; for another disk make its checkpoints/ a link.",
    ),
    keeps_all("{A}.checkpoint.save_contents"),
    keeps_all("{A}.checkpoint.load_contents"),
    keeps_all("critic.checkpoint.save_contents"),
    keeps_all("critic.checkpoint.load_contents"),
    # ---------------------------------------------------------------- lengths
    Rule(
        "{R}.max_model_len",
        lambda s: (s.rollout.max_model_len or 0) < s.needed,
        "it is less than data.max_prompt_length + data.max_response_length = {s.longest}, so verl "
        "would silently cut responses. Set it to {s.needed} or more, shorten "
        "data.max_response_length, or set recipe.rollout.joint_limit=true.",
    ),
    token_limits,
    Rule(
        "{MODEL}.fused_kernel_options.impl_backend",
        odd_width,
        "its kernels need a hidden size divisible by 128, and the model's is {found}. Set torch.",
    ),
    same_length("prompt_length"),
    same_length("response_length"),
    # ---------------------------------------------------------------- sizes that must divide
    TENSOR,
    Rule(
        "{R}.expert_parallel_size {R}.tensor_model_parallel_size {R}.data_parallel_size",
        lambda s: s.rollout.expert_parallel_size not in (1, s.engine_gpus),
        "verl requires the product of the two others. Set it to {s.engine_gpus}, or to 1.",
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
    CRITIC_ROWS,
    CRITIC_RANKS,
    micro_batches,
]
