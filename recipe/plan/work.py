"""From a configuration to the work that the formulas of `recipe.plan.estimate` are of."""

from omegaconf import DictConfig

from prompt_aug.base.errors import UsageError
from recipe.errors import ConfigError
from recipe.plan.estimate import Work


def work_of(
    config: DictConfig, gpus: int, mean_response: int | None = None, validation: int = 500
) -> Work:
    """What the configuration asks of `gpus` GPUs; by default responses are half of their limit."""
    roles, data, trainer = config.actor_rollout_ref, config.data, config.trainer
    actor, rollout = roles.actor, roles.rollout
    check_division(actor, rollout, gpus)
    prompt, response = data.max_prompt_length, data.max_response_length
    if mean_response is not None and mean_response > response:
        raise UsageError(
            f"--mean-response {mean_response} is more than data.max_response_length={response}"
        )
    micro = actor.ppo_max_token_len_per_gpu
    if not actor.use_dynamic_bsz:
        micro = actor.ppo_micro_batch_size_per_gpu * (prompt + response)
    attention = roles.model.override_config.get("attn_implementation", "flash_attention_2")
    frequency = trainer.test_freq
    return Work(
        gpus=gpus,
        tensor_parallel=rollout.tensor_model_parallel_size,
        questions=data.train_batch_size,
        responses=rollout.n,
        prompt=prompt,
        response=response,
        mean_prompt=min(prompt, 200),
        mean_response=mean_response or response // 2,
        micro_tokens=micro,
        epochs=actor.ppo_epochs,
        reference=bool(actor.use_kl_loss or config.algorithm.use_kl_in_reward),
        packed_mask=bool(roles.model.use_remove_padding and attention == "sdpa"),
        utilisation=rollout.gpu_memory_utilization,
        sequences=rollout.max_num_seqs,
        steps=trainer.total_training_steps,
        validation=validation,
        validations=trainer.total_training_steps // frequency if frequency > 0 else 0,
    )


def check_division(actor: DictConfig, rollout: DictConfig, gpus: int) -> None:
    """Refuse a number of GPUs over which engines or mini-batches do not divide."""
    if gpus % rollout.tensor_model_parallel_size:
        raise ConfigError(
            f"--gpus {gpus} is not a multiple of "
            "actor_rollout_ref.rollout.tensor_model_parallel_size="
            f"{rollout.tensor_model_parallel_size}: change one of them"
        )
    rows = actor.ppo_mini_batch_size * rollout.n * actor.ulysses_sequence_parallel_size
    if rows % gpus:
        raise ConfigError(
            f"--gpus {gpus}: a mini-batch of {actor.ppo_mini_batch_size} questions x {rollout.n} "
            "responses does not divide over them. Change "
            "actor_rollout_ref.actor.ppo_mini_batch_size or --gpus"
        )
