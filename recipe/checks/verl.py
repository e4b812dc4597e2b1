"""What verl accepts and then ignores, or finds out after minutes or hours: refused at launch."""

import importlib.util
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from recipe.errors import ConfigError
from recipe.run.folder import RunFolder

# Key: the only value with which verl's V1 trainer, or ours, does what the key says.
IGNORED: dict[str, Any] = {
    "custom_reward_function.path": None,
    "reward.custom_reward_function.path": None,
    "reward_model.reward_manager": None,
    "algorithm.filter_groups.max_num_gen_batches": 0,
    "algorithm.use_pf_ppo": False,
    "actor_rollout_ref.rollout.val_kwargs.do_sample": False,
    "actor_rollout_ref.rollout.do_sample": True,
    "actor_rollout_ref.rollout.over_sample_rate": 0,
    "trainer.balance_batch": True,
    "trainer.esi_redundant_time": 0,
    "trainer.v1.sampler.custom_sampler.path": None,
    "trainer.v1.sampler.sync_refill_failed_groups": False,
    "critic.enable": None,
    "actor_rollout_ref.actor.grad_clip": 1.0,  # the engine reads actor.optim.clip_grad
    "data.mm_processor_kwargs": {},
}
INSTEAD = {"actor_rollout_ref.actor.grad_clip": "actor_rollout_ref.actor.optim.clip_grad"}
EPOCHS = 1_000_000  # of recipe.yaml: more than any number of steps has


def check_verl(config: DictConfig) -> None:
    """Refuse settings that would be ignored, and those that break what a run promises."""
    for key, default in IGNORED.items():
        value = OmegaConf.select(config, key)
        if value not in (default, None, "naive"):
            raise ConfigError(
                f"{key}={value} has no effect in verl 0.9.1's V1 trainer with this project's "
                f"agent loop and rewards; see {INSTEAD.get(key, 'the keys under recipe')} instead"
            )
    if OmegaConf.select(config, "reward.reward_model.enable"):
        raise ConfigError(
            "reward.reward_model.enable=true: rewards come from this project's grader, which a "
            "reward model would take the place of, and every rollout would fail. Unset it"
        )
    if OmegaConf.select(config, "distillation.enabled"):
        raise ConfigError(
            "distillation.enabled=true: this project's agent loop asks no teacher for its "
            "log-probs, without which verl's distillation loss has nothing to train on"
        )
    if config.trainer.v1.trainer_mode != "recipe_sync":
        raise ConfigError(
            "trainer.v1.trainer_mode must be recipe_sync: what this project attaches to"
        )
    if config.actor_rollout_ref.rollout.get("full_determinism"):
        raise ConfigError(
            "actor_rollout_ref.rollout.full_determinism=true gives all requests of an engine the "
            "same seed, so all responses to a question would be the same and no group would have a "
            "signal"
        )
    check_end(config)
    check_adapters(config)
    check_resume(config)
    check_attention(config)


def check_end(config: DictConfig) -> None:
    """Refuse what would end a run before its last step, or begin one that was not asked for."""
    epochs = config.trainer.total_epochs
    if epochs != EPOCHS:
        raise ConfigError(
            f"trainer.total_epochs={epochs}: verl would stop after so many epochs without saving "
            "the steps since the last checkpoint, and count them wrongly with dynamic sampling or "
            "a curriculum. Leave it alone and set trainer.total_training_steps (steps = epochs x "
            "questions / data.train_batch_size, rounded down in each epoch)"
        )
    if config.trainer.get("val_only"):
        raise ConfigError(
            "trainer.val_only=true: verl trains all the same unless trainer.val_before_train is "
            "set, and no run folder is made of a validation. Unset it; python -m eval.sweep "
            "evaluates models"
        )


def check_adapters(config: DictConfig) -> None:
    """Refuse LoRA: a run would end with checkpoints that `recipe.export` cannot export."""
    for key, off in (("lora_rank", 0), ("lora.rank", 0), ("lora_adapter_path", None)):
        value = OmegaConf.select(config.actor_rollout_ref.model, key)
        if value not in (off, None):
            raise ConfigError(
                f"actor_rollout_ref.model.{key}={value}: only full-parameter training is exported "
                f"and evaluated here: unset it (it is {'null' if off is None else off} by default)"
            )


def check_attention(config: DictConfig) -> None:
    """Refuse an attention that cannot run, before a model is loaded on every rank.

    Without the key verl takes flash_attention_2. Only that one is divided over the ranks of a
    sequence: with sdpa every rank would look at its own part of a sequence alone.
    """
    model = config.actor_rollout_ref.model
    chosen = OmegaConf.select(model, "override_config.attn_implementation") or "flash_attention_2"
    where = f"actor_rollout_ref.model.override_config.attn_implementation={chosen}"
    if chosen == "flash_attention_2" and importlib.util.find_spec("flash_attn") is None:
        raise ConfigError(
            f"{where}, but flash-attn is not installed: set it to sdpa, or install flash-attn "
            "(requirements/README.md says how, and what it buys)"
        )
    if chosen != "flash_attention_2" and sequence_ranks(config) > 1:
        raise ConfigError(
            f"{where} with ulysses_sequence_parallel_size={sequence_ranks(config)}: verl divides "
            "a sequence over ranks with flash_attention_2 alone. Set the size to 1"
        )


def check_resume(config: DictConfig) -> None:
    """Refuse what would keep the same command from resuming a run."""
    saves, run_dir = config.trainer.default_local_dir, config.recipe.run_dir
    wanted = RunFolder(Path(run_dir)).checkpoints
    if Path(saves).resolve() != wanted.resolve():
        raise ConfigError(
            f"trainer.default_local_dir={saves}: checkpoints are in {wanted}, where export and "
            "evaluation look for them. Leave the key alone and choose the folder of the run with "
            "recipe.run_dir=...; for another disk make its checkpoints/ a link"
        )
    if config.trainer.resume_mode != "auto":
        raise ConfigError(
            f"trainer.resume_mode={config.trainer.resume_mode}: a run is resumed from its own last "
            "checkpoint. To start from scratch choose another folder with recipe.run_dir=...; to "
            "start from another run's weights export them and set recipe.model_path"
        )
    if OmegaConf.select(config, "actor_rollout_ref.actor.checkpoint.async_save"):
        raise ConfigError(
            "actor_rollout_ref.actor.checkpoint.async_save=true: verl 0.9.1 then never writes "
            "which checkpoint is the last, and a stopped run would start from its first step"
        )


def check_lengths(config: DictConfig) -> None:
    """Refuse an engine or a micro-batch into which the longest prompt and response do not fit."""
    prompt, response = config.data.max_prompt_length, config.data.max_response_length
    longest, what = prompt + response, f"a prompt of {prompt} and a response of {response} tokens"
    rollout = config.actor_rollout_ref.rollout
    needed = prompt + 1 if config.recipe.rollout.joint_limit else longest
    if (rollout.max_model_len or 0) < needed:
        raise ConfigError(
            f"actor_rollout_ref.rollout.max_model_len={rollout.max_model_len} is less than {what}: "
            "verl would silently cut responses before data.max_response_length. Set it "
            f"to {needed} or more, or shorten data.max_response_length, or set "
            "recipe.rollout.joint_limit=true"
        )
    keys = ["actor.ppo_max_token_len_per_gpu"] * bool(
        config.actor_rollout_ref.actor.use_dynamic_bsz
    )
    for role in ("rollout", "ref"):
        if config.actor_rollout_ref[role].log_prob_use_dynamic_bsz:
            keys.append(f"{role}.log_prob_max_token_len_per_gpu")
    for key in keys:
        ranks = sequence_ranks(config, "ref" if key.startswith("ref.") else "actor")
        tokens = OmegaConf.select(config.actor_rollout_ref, key) * ranks
        if tokens < longest:
            raise ConfigError(
                f"actor_rollout_ref.{key} holds {tokens} tokens, less than {what}: verl would stop "
                f"at the first sequence that does not fit. Set it to {longest} or more"
            )
    for key, value in (("prompt_length", prompt), ("response_length", response)):
        if rollout[key] != value:
            raise ConfigError(
                f"actor_rollout_ref.rollout.{key}={rollout[key]} is not data.max_{key}={value}: "
                "rewards and checks would go by the one, the engine by the other. Set "
                f"data.max_{key} alone, which both follow"
            )


def data_parallel_ranks(config: DictConfig) -> int:
    """Over how many ranks a mini-batch is divided."""
    return config.trainer.nnodes * config.trainer.n_gpus_per_node // sequence_ranks(config)


def sequence_ranks(config: DictConfig, role: str = "actor") -> int:
    """Over how many ranks a sequence is divided: verl has an old key for it and a new one.

    The reference model ("ref") has keys of its own, of which the old one follows the actor's.
    """
    section = config.actor_rollout_ref[role]
    new = OmegaConf.select(section, "fsdp_config.ulysses_sequence_parallel_size") or 1
    old = OmegaConf.select(section, "ulysses_sequence_parallel_size") or 1
    # verl takes the old one where it is above 1, and the new one otherwise.
    return int(old) if int(old) > 1 else int(new)


def check_engines(config: DictConfig) -> None:
    """Refuse an engine over a number of GPUs that does not divide those of the run."""
    gpus = config.trainer.nnodes * config.trainer.n_gpus_per_node
    tensor = config.actor_rollout_ref.rollout.tensor_model_parallel_size
    if gpus % tensor:
        raise ConfigError(
            f"actor_rollout_ref.rollout.tensor_model_parallel_size={tensor} does not divide the "
            f"{gpus} GPUs (trainer.nnodes x trainer.n_gpus_per_node)"
        )


def check_chunks(config: DictConfig) -> None:
    """Refuse a `data.gen_batch_size`, the questions of one fetch, in which no step can be fetched.

    verl finds out at the first step; with dynamic sampling it takes 1 whatever the key says.
    """
    chunk, batch = config.data.gen_batch_size, config.data.train_batch_size
    where = f"data.gen_batch_size={chunk}"
    if chunk is None:
        return
    if config.algorithm.filter_groups.enable and chunk != 1:
        raise ConfigError(
            f"{where} has no effect: with algorithm.filter_groups.enable=true verl fetches one "
            "question at a time. Leave it null"
        )
    if batch % chunk:
        raise ConfigError(
            f"{where} does not divide data.train_batch_size={batch}: verl fetches the questions of "
            "a step in chunks of that many, and would stop at the first step. Leave it null, which "
            "is one chunk"
        )


def check_batches(config: DictConfig) -> None:
    """Refuse batch sizes that do not divide; verl finds out minutes later, at the first step."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    ranks = data_parallel_ranks(config)
    batch, mini = config.data.train_batch_size, actor.ppo_mini_batch_size
    check_chunks(config)
    if batch % mini:
        raise ConfigError(
            f"data.train_batch_size={batch} is not a multiple of "
            f"actor_rollout_ref.actor.ppo_mini_batch_size={mini} (both in questions): choose a "
            "mini-batch that divides it"
        )
    rows = mini * rollout.n
    if rows % ranks:
        raise ConfigError(
            f"a mini-batch of {mini} questions x {rollout.n} responses = {rows} rows does not "
            f"divide over {ranks} data-parallel ranks (trainer.nnodes x trainer.n_gpus_per_node): "
            "change actor_rollout_ref.actor.ppo_mini_batch_size or the number of GPUs"
        )
    if actor.use_dynamic_bsz:
        return
    whole = batch * rollout.n // ranks
    sizes = {
        "actor.ppo_micro_batch_size_per_gpu": rows // ranks,
        "rollout.log_prob_micro_batch_size_per_gpu": whole,
    }
    if actor.use_kl_loss or config.algorithm.use_kl_in_reward:
        gpus = config.trainer.nnodes * config.trainer.n_gpus_per_node
        of_ref = batch * rollout.n * sequence_ranks(config, "ref") // gpus
        sizes["ref.log_prob_micro_batch_size_per_gpu"] = of_ref
    for name, rows_per_rank in sizes.items():
        micro = OmegaConf.select(config.actor_rollout_ref, name)
        if not micro or rows_per_rank % micro:
            raise ConfigError(
                f"actor_rollout_ref.{name}={micro} does not divide the {rows_per_rank} rows of a "
                "rank: choose a divisor, or set actor_rollout_ref.actor.use_dynamic_bsz=true"
            )
