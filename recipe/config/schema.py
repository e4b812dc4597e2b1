"""The type and the range of every setting of `recipe` and `eval`, and of verl's keys.

`check_types` rejects values that no run can use, such as text for a number, a temperature of 0, an
infinite learning rate. recipe.yaml documents each key and its default. Of verl's keys, the table
lists those that an example or a group file sets, and those for which verl silently accepts
impossible values. `SWITCHES` lists the keys that a switch turns off: `recipe.config.compose`
rejects overrides of them. Rules about several keys together are in `recipe.preflight`.
"""

from typing import Annotated, Any, Literal

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue
from pydantic import AfterValidator, BeforeValidator, Field

from prompt_aug.draw import Mode
from prompt_aug.extraction import ExtractionName
from prompt_aug.templates.rendering import Style, System, Turn
from prompt_aug.templates.template import FormatSetting
from prompt_aug.typed import (
    UNSET,
    Above0,
    Count,
    Names,
    OrAll,
    OrNever,
    Part,
    Positive,
    Seed,
    Share,
    Text,
    Texts,
    Weight,
    Weights,
    adapter,
    as_list,
    problems,
)
from recipe.errors import ConfigError
from recipe.run.evaluation import EvaluationSection

A, R = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
REF, MODEL = "actor_rollout_ref.ref", "actor_rollout_ref.model"
OPTIM = f"{A}.optim critic.optim"
CORRECTION, LOSS = "algorithm.rollout_correction", f"{A}.policy_loss.loss_mode"
WHY = {  # reasons that a range does not show by itself
    f"{R}.temperature": "greedy responses of a group are all equal, so none has a signal",
    f"{A}.optim.lr": "a rate of 0 or below trains nothing or away from the reward",
    f"{A}.clip_ratio_c": "verl's dual clip is a bound above the ratio 1",
    "trainer.total_training_steps": (
        "a run ends at this step or after trainer.total_epochs, whichever comes first; to count "
        "epochs alone, set 1000000"
    ),
    "data.max_response_length": "a response needs room for at least one token",
    "recipe.augment.templates": "to draw one more often use recipe.augment.weights",
    f"{R}.name": (
        "request seeds, weight transfer and restarts are written for vLLM's server; for another "
        "engine all three would have to be ported, and the locks of packages changed"
    ),
    f"{A}.strategy": "Megatron is unsupported, see model_engine",
}
MEGATRON = (
    "model_engine={}: only dp (FSDP) is supported. Export, LoRA, the memory plan and the checks "
    "read FSDP's shards and keys. Unset it."
)


def _validated(key: str) -> str:
    source = key.removeprefix("val/").removesuffix("/accuracy")
    if key != f"val/{source}/accuracy" or not source:
        raise ValueError("should be val/SOURCE/accuracy, SOURCE a data_source of data.val_files")
    return key


# verl's own list (verl.utils.tracking, which imports torch); a test compares them.
Logger = Literal[
    "wandb", "mlflow", "swanlab", "vemlp_wandb", "tensorboard",
    "console", "clearml", "trackio", "file", "rl_insight",
]  # fmt: skip
Aggregation = Literal[
    "token-mean", "token-sum", "seq-mean-token-sum",
    "seq-mean-token-sum-norm", "seq-mean-token-mean",
]  # fmt: skip
Precision = Literal["float32", "bfloat16", "float16", "fp32", "bf16", "fp16"]
# verl.trainer.ppo.core_algos.kl_penalty; "+" gives the unbiased gradient.
KLType = Literal[
    "kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3",
    "kl+", "k1+", "abs+", "mse+", "k2+", "low_var_kl+", "k3+",
]  # fmt: skip
Beta = Annotated[float, Field(ge=0, lt=1)]
CHUNKS = f"{A}.fsdp_config.entropy_from_logits_with_chunking"
STORAGE = "transfer_queue.backend.storage_backend"
# Losses that read clip_ratio; the first three also read clip_ratio_c.
CLIPPED = ("vanilla", "dppo_tv", "dppo_kl", "gspo", "cispo", "clip_cov", "geo_mean", "gmpo")
LOSSES = (*CLIPPED, "sapo", "gpg", "kl_cov", "dro")  # whose keys are known
ALARMS = ("warn", "save", "stop")  # actions of the guard

# (sections, type, keys). Values that verl itself rejects at once are not checked again.
_TABLE: list[tuple[str, Any, str]] = [
    ("recipe", Text, "name run_dir toy.cache toy.world"),
    ("recipe", Text | None, "method model_path"),
    ("recipe", Seed, "seed"),
    ("recipe", Weight, "min_free_gib"),
    ("recipe", Count, "save_rollouts_every save_tensors_every"),
    ("recipe", Positive | None, "keep_every"),
    ("recipe", Annotated[str, AfterValidator(_validated)] | None, "keep_best"),
    ("recipe", bool, "worker_logs overlong_filter toy.enable history.enable"),
    ("recipe", Text | Count | None, "one_question"),
    ("recipe", dict[str, Above0] | None, "source_weights"),
    ("recipe.toy", Positive | None, "train_questions validation_questions test_questions updates"),
    ("recipe.toy", Names | None, "templates"),
    ("recipe.augment", Text | None, "bank"),
    ("recipe.augment", Names | None, "templates"),
    ("recipe.augment", Weights | None, "weights"),
    ("recipe.augment", Mode, "mode"),
    ("recipe.augment", FormatSetting, "format"),
    ("recipe.augment", Style, "style"),
    ("recipe.augment", Turn, "instruction"),
    ("recipe.augment", System, "system"),
    ("recipe.augment", Text, "validation_template"),
    ("recipe.reward", Weight, "format_weight"),
    ("recipe.reward", bool, "format_gated overlong.enable"),
    ("recipe.reward", ExtractionName, "extraction"),
    ("recipe.reward", Literal["pay", "refuse"], "unworked"),
    ("recipe.reward", dict[str, Text] | None, "verifiers"),
    ("recipe.reward.verifier_limits", Above0, "cpu_seconds wall_seconds memory_gib"),
    ("recipe.reward", Positive, "overlong.buffer"),
    ("recipe.reward", Above0, "overlong.factor"),
    ("recipe.rollout", Above0, "poll_seconds hang_seconds"),
    ("recipe.rollout", bool, "request_seeds joint_limit"),
    ("recipe.rephrasings", Count, "count"),
    ("recipe.rephrasings", Literal["anchored", "own"], "ratio"),
    ("recipe.advantage", Text, "name"),
    ("recipe.advantage", Literal["question", "rephrasing"] | None, "group"),
    ("recipe.advantage", dict[str, Any] | None, "arguments"),
    ("recipe.weights", Text, "name"),
    ("recipe.weights", dict[str, Any] | None, "arguments"),
    ("recipe.weights.gaussian_covariance", Text | None, "preset centre advantage_centre sigma"),
    ("recipe.weights.gaussian_covariance", Text | None, "normaliser"),
    ("recipe.weights.gaussian_covariance", Above0 | None, "logprob_temperature"),
    ("recipe.weights.clip_cov", Part, "ratio"),
    ("recipe.weights.clip_cov", float, "lower upper"),
    ("recipe.dynamic_sampling", Positive, "max_gen_batches"),
    ("recipe.dynamic_sampling", Literal["train", "stop"], "on_exhausted"),
    ("recipe.guard", Literal["off", *ALARMS], "action"),
    ("recipe.guard", Positive, "window"),
    ("recipe.guard", Annotated[float, Field(gt=1)], "factor"),
    ("recipe.guard", Part, "accuracy_drop"),
    ("recipe.history", Above0, "weight"),
    ("recipe.history", Annotated[float, Field(ge=-1, le=0)], "floor"),
    ("recipe.curriculum", bool, "enable value_model"),
    ("recipe.curriculum", Positive, "candidates"),
    ("recipe.curriculum", Share, "target"),
    ("recipe.curriculum", Part, "decay"),
    ("data", Positive, "train_batch_size max_prompt_length max_response_length"),
    ("data", Positive | None, "gen_batch_size val_batch_size"),
    ("data", OrAll, "train_max_samples val_max_samples"),
    ("data", Texts | None, "train_files val_files"),
    ("data", Seed | None, "seed"),
    ("data", Count, "dataloader_num_workers"),
    ("data", bool, "shuffle filter_overlong_prompts"),
    ("algorithm", bool, "filter_groups.enable use_kl_in_reward"),
    ("algorithm.filter_groups", Literal["acc", "reward", "format", "overlong"], "metric"),
    ("algorithm", KLType, "kl_penalty"),
    ("algorithm.kl_ctrl", Weight, "kl_coef"),
    ("algorithm.kl_ctrl", Literal["fixed", "adaptive"], "type"),
    ("algorithm.rollout_correction", Literal["token", "sequence"] | None, "rollout_is"),
    (f"{A} {REF}", bool, "entropy_from_logits_with_chunking use_torch_compile"),
    (f"{A}.fsdp_config {REF}.fsdp_config", bool, "use_torch_compile"),
    (f"{A} {REF}", Positive, "ulysses_sequence_parallel_size"),
    (f"{A}.fsdp_config {REF}.fsdp_config", Positive, "ulysses_sequence_parallel_size"),
    (f"{A}.fsdp_config {REF}.fsdp_config critic.fsdp", Precision, "dtype model_dtype"),
    (f"{A}.fsdp_config", Seed, "seed"),
    (f"{A} {REF} critic", Literal["fsdp", "fsdp2"], "strategy"),
    (A, Positive, "ppo_max_token_len_per_gpu"),
    (f"{A} critic", Positive, "ppo_mini_batch_size ppo_epochs"),
    (A, Positive | None, "ppo_micro_batch_size_per_gpu"),
    (A, bool, "use_dynamic_bsz entropy_checkpointing use_kl_loss"),
    (A, Seed, "data_loader_seed"),
    (A, float, "entropy_coeff"),
    (A, Weight, "kl_loss_coef"),
    (A, KLType, "kl_loss_type"),
    (A, Weight | None, "clip_ratio_low clip_ratio_high"),
    (A, Above0, "clip_ratio tau_pos tau_neg"),
    (A, Above0 | None, "loss_scale_factor"),
    (A, Annotated[float, Field(gt=1)], "clip_ratio_c"),
    (f"{A} critic", Aggregation, "loss_agg_mode"),
    (f"{A}.policy_loss", Text, "loss_mode"),
    (f"{A}.policy_loss", Part, "clip_cov_ratio kl_cov_ratio"),
    (f"{A}.policy_loss", float, "clip_cov_lb clip_cov_ub"),
    (f"{A}.policy_loss", Weight, "ppo_kl_coef"),
    (OPTIM, Annotated[float, Field(gt=0, le=1)], "lr"),
    (OPTIM, OrNever, "lr_warmup_steps"),
    (OPTIM, Text, "optimizer optimizer_impl"),
    (OPTIM, Share, "lr_warmup_steps_ratio"),
    (OPTIM, Share | None, "min_lr_ratio"),
    (OPTIM, Literal["constant", "cosine"], "lr_scheduler_type"),
    (OPTIM, Weight, "weight_decay"),
    (OPTIM, Annotated[list[Beta], Field(min_length=2, max_length=2)], "betas"),
    (OPTIM, Above0, "clip_grad"),
    (OPTIM, dict[str, Any] | None, "override_optimizer_config"),
    (f"{A}.checkpoint", Names, "save_contents load_contents"),
    (REF, Positive | None, "log_prob_micro_batch_size_per_gpu"),
    (REF, Positive, "log_prob_max_token_len_per_gpu"),
    (MODEL, Text | None, "path"),
    (MODEL, Texts | None, "external_lib"),
    (MODEL, bool, "use_remove_padding enable_gradient_checkpointing lora.merge"),
    (MODEL, Count, "lora_rank"),
    (MODEL, Positive, "lora_alpha"),
    (R, Positive, "n max_num_seqs tensor_model_parallel_size log_prob_max_token_len_per_gpu"),
    (R, Positive, "data_parallel_size expert_parallel_size pipeline_model_parallel_size"),
    (R, Positive, "val_kwargs.n agent.num_workers"),
    (R, Positive, "checkpoint_engine.update_weights_bucket_megabytes"),
    (R, Positive | None, "max_model_len log_prob_micro_batch_size_per_gpu"),
    (R, Seed, "seed"),
    (R, Above0, "temperature"),
    (R, Weight, "val_kwargs.temperature"),
    (R, Part, "top_p val_kwargs.top_p gpu_memory_utilization"),
    (R, OrAll, "top_k val_kwargs.top_k"),
    (R, Literal["vllm"], "name"),
    (R, Precision, "dtype"),
    (R, bool, "enforce_eager free_cache_engine"),
    (R, bool | None, "enable_sleep_mode"),
    ("reward", Positive, "num_workers"),
    ("trainer", Literal["cpu", "cuda"], "device"),
    ("trainer", Positive, "nnodes n_gpus_per_node total_training_steps total_epochs"),
    ("trainer", OrNever, "save_freq test_freq"),
    ("trainer", Positive | None, "max_actor_ckpt_to_keep"),
    ("trainer", Annotated[list[Logger], BeforeValidator(as_list)], "logger"),
    ("trainer", Text, "project_name experiment_name default_local_dir"),
    ("trainer", bool, "val_before_train"),
    ("transfer_queue.backend.SimpleStorage", Positive, "num_data_storage_units"),
    ("ray_kwargs.ray_init", Positive | None, "num_cpus"),
]
TYPES = {
    f"{section}.{key}": adapter(kind)
    for sections, kind, keys in _TABLE
    for section in sections.split()
    for key in keys.split()
}
TYPES["eval"] = adapter(EvaluationSection)

# (switch, its values, section, keys that are read only with these values). None: any value that is
# not false, 0 or null. Of the rows that match a key those with the longest pattern apply; it is
# read with any of them.
_SWITCHES: list[tuple[str, tuple[Any, ...] | None, str, str]] = [
    (f"{A}.use_dynamic_bsz", (True,), "actor_rollout_ref", "*_max_token_len_per_gpu"),
    (f"{A}.use_dynamic_bsz", (False,), "actor_rollout_ref", "*_micro_batch_size_per_gpu"),
    (f"{A}.use_kl_loss", (True,), A, "kl_loss_coef kl_loss_type"),
    (LOSS, ("clip_cov",), f"{A}.policy_loss", "clip_cov_*"),
    (LOSS, ("kl_cov",), f"{A}.policy_loss", "kl_cov_ratio ppo_kl_coef"),
    (LOSS, ("dro",), f"{A}.policy_loss", "dro_beta"),
    (LOSS, ("sapo",), A, "tau_pos tau_neg"),
    (LOSS, CLIPPED, A, "clip_ratio clip_ratio_low clip_ratio_high"),
    (LOSS, CLIPPED[:3], A, "clip_ratio_c"),
    (f"{A}.use_kl_loss", (True,), REF, "*"),
    ("algorithm.use_kl_in_reward", (True,), REF, "*"),
    (f"{A}.optim.lr_scheduler_type", ("cosine",), f"{A}.optim", "min_lr_ratio num_cycles"),
    (f"{A}.optim.lr_scheduler_type", ("cosine",), f"{A}.optim", "zero_indexed_step"),
    ("critic.optim.lr_scheduler_type", ("cosine",), "critic.optim", "min_lr_ratio num_cycles"),
    ("critic.optim.lr_scheduler_type", ("cosine",), "critic.optim", "zero_indexed_step"),
    ("algorithm.kl_ctrl.type", ("adaptive",), "algorithm.kl_ctrl", "target_kl horizon"),
    (f"{A}.shuffle", (True,), A, "data_loader_seed"),
    ("critic.shuffle", (True,), "critic", "data_loader_seed"),
    (f"{A}.fsdp_config.pad_to_length", (True,), A, "fsdp_config.pad_to_length_bucket"),
    ("critic.fsdp.pad_to_length", (True,), "critic", "fsdp.pad_to_length_bucket"),
    (f"{A}.fsdp_config.qat.enable", (True,), A, "fsdp_config.qat.*"),
    ("critic.fsdp.qat.enable", (True,), "critic", "fsdp.qat.*"),
    (CHUNKS, (True,), A, "*entropy_from_logits_chunk_size"),
    (f"{R}.prometheus.enable", (True,), f"{R}.prometheus", "file port served_model_name"),
    (f"{R}.quantization", None, R, "quantization_config_file"),
    (f"{R}.enforce_eager", (False,), R, "cudagraph_capture_sizes"),
    ("global_profiler.steps", None, "global_profiler", "*"),
    ("global_profiler.steps", None, "actor_rollout_ref", "*.profiler.*"),
    ("global_profiler.steps", None, "critic", "profiler.*"),
    ("skip.rollout_tq.enable", (True,), "skip.rollout_tq", "*"),
    (STORAGE, ("SimpleStorage",), "transfer_queue.backend", "SimpleStorage.*"),
    (STORAGE, ("MooncakeStore",), "transfer_queue.backend", "MooncakeStore.*"),
    ("transfer_queue.metrics.enabled", (True,), "transfer_queue.metrics", "port"),
    (f"{MODEL}.lora_rank", None, MODEL, "lora_alpha target_modules exclude_modules"),
    ("algorithm.use_kl_in_reward", (True,), "algorithm", "kl_ctrl.* kl_penalty"),
    ("algorithm.filter_groups.enable", (True,), "algorithm.filter_groups", "metric max_inflight*"),
    ("algorithm.filter_groups.enable", (True,), "recipe", "dynamic_sampling.*"),
    (f"{CORRECTION}.rollout_is", None, CORRECTION, "rollout_is_*"),
    (f"{CORRECTION}.rollout_rs", None, CORRECTION, "rollout_rs_*"),
    ("critic.enable", (True,), "critic", "*"),
    ("recipe.curriculum.enable", (True,), "recipe.curriculum", "candidates target decay"),
    ("recipe.history.enable", (True,), "recipe.history", "weight floor"),
    ("recipe.reward.format_weight", None, "recipe.reward", "format_gated"),
    ("recipe.reward.overlong.enable", (True,), "recipe.reward.overlong", "buffer factor"),
    ("recipe.weights.name", ("clip_cov",), "recipe.weights", "clip_cov.*"),
    ("recipe.weights.name", ("gaussian_covariance",), "recipe.weights", "gaussian_covariance.*"),
    ("recipe.guard.action", ALARMS, "recipe.guard", "window factor accuracy_drop"),
]
SWITCHES = [(s, on, f"{place}.{key}") for s, on, place, keys in _SWITCHES for key in keys.split()]


def check_engine(config: DictConfig) -> None:
    """Reject other engines than FSDP. First, since their compositions lack FSDP's keys."""
    if (chosen := config.get("model_engine", "dp")) != "dp":
        raise ConfigError(MEGATRON.format(chosen))


def check_types(config: DictConfig) -> None:
    """Reject values of a wrong type or out of range; ConfigError with all of them, one a line."""
    check_engine(config)
    found: dict[str, str] = {}
    for key, checker in TYPES.items():
        try:
            value = OmegaConf.select(config, key, throw_on_missing=True)
        except MissingMandatoryValue:
            value = UNSET
        if OmegaConf.is_config(value):
            value = OmegaConf.to_container(value, resolve=True)
        found |= problems(checker, value, key, WHY)
    # Keys that interpolate one value (data.seed is recipe.seed) are reported once, by the first.
    told = {message.partition("=")[2] or key: message for key, message in reversed(found.items())}
    if told:
        raise ConfigError("\n".join(reversed(told.values())))
