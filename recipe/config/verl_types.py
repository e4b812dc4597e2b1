"""Ranges of verl's keys: those that files here set, and those that verl does not check.

`TYPES` maps the end of a key, without its first sections, to a type that pydantic validates; the
longest end applies. Other keys need the type of their default only (`recipe.config.verl`).
"""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from prompt_aug import typed

# verl's own list (verl.utils.tracking, which imports torch); a test compares them.
Logger = Literal[
    "wandb", "mlflow", "swanlab", "vemlp_wandb", "tensorboard",
    "console", "clearml", "trackio", "file", "rl_insight",
]  # fmt: skip
Aggregation = Literal[
    "token-mean", "token-sum", "seq-mean-token-sum",
    "seq-mean-token-sum-norm", "seq-mean-token-mean",
]  # fmt: skip
# verl.trainer.ppo.core_algos.kl_penalty; "+" gives the unbiased gradient.
KLType = Literal[
    "kl", "k1", "abs", "mse", "k2", "low_var_kl", "k3",
    "kl+", "k1+", "abs+", "mse+", "k2+", "low_var_kl+", "k3+",
]  # fmt: skip
Precision = Literal["float32", "bfloat16", "float16", "fp32", "bf16", "fp16"]
Beta = Annotated[float, Field(ge=0, lt=1)]
POSITIVE = """
    data.train_batch_size max_prompt_length max_response_length n max_num_seqs
    ulysses_sequence_parallel_size tensor_model_parallel_size data_parallel_size
    expert_parallel_size pipeline_model_parallel_size log_prob_max_token_len_per_gpu
    actor.ppo_max_token_len_per_gpu ppo_infer_max_token_len_per_gpu ppo_mini_batch_size
    ppo_epochs model.lora_alpha
    agent.num_workers reward.num_workers update_weights_bucket_megabytes
    trainer.nnodes trainer.n_gpus_per_node total_training_steps total_epochs
    num_data_storage_units
""".split()
POSITIVE_OR_NULL = """
    gen_batch_size val_batch_size actor.ppo_micro_batch_size_per_gpu max_model_len
    log_prob_micro_batch_size_per_gpu max_actor_ckpt_to_keep ray_init.num_cpus
""".split()
TYPES: dict[str, Any] = {
    "model_engine": Literal["dp"],
    **dict.fromkeys(POSITIVE, typed.Positive),
    **dict.fromkeys(POSITIVE_OR_NULL, typed.Positive | None),
    **dict.fromkeys(("custom_cls.path", "custom_cls.name"), typed.Text | None),
    "optim.total_training_steps": Any,  # -1: verl sets it
    "data.train_max_samples": typed.OrAll,
    "data.val_max_samples": typed.OrAll,
    "data.train_files": typed.Texts | None,
    "data.val_files": typed.Texts | None,
    "data.seed": typed.Seed | None,
    "data.dataloader_num_workers": typed.Count,
    "algorithm.kl_penalty": KLType,
    "algorithm.kl_ctrl.kl_coef": typed.Weight,
    "algorithm.kl_ctrl.type": Literal["fixed", "adaptive"],
    "filter_groups.metric": Literal["acc", "reward", "format", "overlong"],
    "rollout_is_threshold": Any,  # a number, or LOWER_UPPER
    "rollout_correction.rollout_is": Literal["token", "sequence"] | None,
    "strategy": Literal["fsdp", "fsdp2"],
    "fsdp_config.seed": typed.Seed,
    "fsdp_config.fsdp_size": typed.OrAll,
    "critic.fsdp.fsdp_size": typed.OrAll,
    "fsdp_config.model_dtype": Precision,
    "critic.fsdp.model_dtype": Precision,
    "actor.data_loader_seed": typed.Seed,
    "actor.entropy_coeff": float,
    "actor.kl_loss_coef": typed.Weight,
    "actor.kl_loss_type": KLType,
    "actor.clip_ratio": typed.Above0,
    "actor.clip_ratio_low": typed.Weight | None,
    "actor.clip_ratio_high": typed.Weight | None,
    "actor.clip_ratio_c": Annotated[float, Field(gt=1)],
    "actor.tau_pos": typed.Above0,
    "actor.tau_neg": typed.Above0,
    "actor.loss_scale_factor": typed.Above0 | None,
    "loss_agg_mode": Aggregation,
    "policy_loss.loss_mode": typed.Text,
    "policy_loss.clip_cov_ratio": typed.Part,
    "policy_loss.kl_cov_ratio": typed.Part,
    "policy_loss.ppo_kl_coef": typed.Weight,
    "optim.lr": Annotated[float, Field(gt=0, le=1)],
    "optim.lr_warmup_steps": typed.OrNever,
    "optim.lr_warmup_steps_ratio": typed.Share,
    "optim.min_lr_ratio": typed.Share | None,
    "optim.lr_scheduler_type": Literal["constant", "cosine"],
    "optim.weight_decay": typed.Weight,
    "optim.betas": Annotated[list[Beta], Field(min_length=2, max_length=2)],
    "optim.clip_grad": typed.Above0,
    "optim.override_optimizer_config": dict[str, Any] | None,
    "checkpoint.save_contents": typed.Names,
    "checkpoint.load_contents": typed.Names,
    "model.path": typed.Text | None,
    "model.external_lib": typed.Texts | None,
    "model.lora_rank": typed.Count,
    "fused_kernel_options.impl_backend": Literal["torch", "triton", "liger"] | None,
    "rollout.seed": typed.Seed,
    "rollout.temperature": typed.Above0,
    "val_kwargs.temperature": typed.Weight,
    "rollout.top_p": typed.Part,
    "val_kwargs.top_p": typed.Part,
    "rollout.top_k": typed.OrAll,
    "val_kwargs.top_k": typed.OrAll,
    "rollout.gpu_memory_utilization": typed.Part,
    "actor_rollout_ref.rollout.name": Literal["vllm"],
    "rollout.dtype": Precision,
    "rollout.quantization": Literal["fp8", "torchao"] | None,
    "trainer.device": Literal["cpu", "cuda"],
    "num_warmup_batches": typed.Weight,
    "rollout.nnodes": typed.Count,
    "rollout.n_gpus_per_node": typed.Count,
    "checkpoint_engine.backend": Literal["naive", "nccl"],
    "trainer.save_freq": typed.OrNever,
    "trainer.test_freq": typed.OrNever,
    "trainer.logger": Annotated[list[Logger], BeforeValidator(typed.as_list)],
    "trainer.project_name": typed.Text,
    "trainer.experiment_name": typed.Text,
    "trainer.default_local_dir": typed.Text,
}
