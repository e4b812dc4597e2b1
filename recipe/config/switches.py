"""Keys that verl, or this project, reads only with certain values of another key."""

from dataclasses import dataclass
from typing import Any, get_args

from recipe.config.settings import Alarm

A, R = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
REF, MODEL = "actor_rollout_ref.ref", "actor_rollout_ref.model"
LOSS, CORRECTION = f"{A}.policy_loss.loss_mode", "algorithm.rollout_correction"
# Losses that read clip_ratio; the first three also read clip_ratio_c.
CLIPPED = ("vanilla", "dppo_tv", "dppo_kl", "gspo", "cispo", "clip_cov", "geo_mean", "gmpo")
LOSSES = (*CLIPPED, "sapo", "gpg", "kl_cov", "dro", "vespo")  # whose keys are known
ALARMS = get_args(Alarm)
MODE, ASYNCHRONOUS = "trainer.v1.trainer_mode", "recipe_colocate_async"


@dataclass(frozen=True)
class Switch:
    """`read`, a key or section, is read only if `key` has one of the values `on`.

    Without `on`: any value other than false, 0, null and empty. If several switches name a key,
    the longest names count, and one of them is enough.
    """

    read: str
    key: str
    on: tuple[Any, ...] = ()

    def is_on(self, value: Any) -> bool:
        return value in self.on if self.on else bool(value)


SWITCHES = [
    *(
        Switch(f"{section}.{name}", f"{A}.use_dynamic_bsz", (dynamic,))
        for section, use in ((A, "ppo"), (R, "log_prob"), (REF, "log_prob"))
        for name, dynamic in (
            (f"{use}_max_token_len_per_gpu", True),
            (f"{use}_micro_batch_size_per_gpu", False),
        )
    ),
    Switch(f"{A}.kl_loss_coef", f"{A}.use_kl_loss"),
    Switch(f"{A}.kl_loss_type", f"{A}.use_kl_loss"),
    Switch(REF, f"{A}.use_kl_loss"),
    Switch(REF, "algorithm.use_kl_in_reward"),
    Switch(f"{A}.policy_loss.clip_cov_ratio", LOSS, ("clip_cov",)),
    Switch(f"{A}.policy_loss.clip_cov_lb", LOSS, ("clip_cov",)),
    Switch(f"{A}.policy_loss.clip_cov_ub", LOSS, ("clip_cov",)),
    Switch(f"{A}.policy_loss.kl_cov_ratio", LOSS, ("kl_cov",)),
    Switch(f"{A}.policy_loss.ppo_kl_coef", LOSS, ("kl_cov",)),
    Switch(f"{A}.policy_loss.dro_beta", LOSS, ("dro",)),
    Switch(f"{A}.tau_pos", LOSS, ("sapo",)),
    Switch(f"{A}.tau_neg", LOSS, ("sapo",)),
    Switch(f"{A}.clip_ratio", LOSS, CLIPPED),
    Switch(f"{A}.clip_ratio_low", LOSS, CLIPPED),
    Switch(f"{A}.clip_ratio_high", LOSS, CLIPPED),
    Switch(f"{A}.clip_ratio_c", LOSS, CLIPPED[:3]),
    Switch(f"{A}.loss_scale_factor", f"{A}.loss_agg_mode", ("seq-mean-token-sum-norm",)),
    Switch(f"{A}.optim.min_lr_ratio", f"{A}.optim.lr_scheduler_type", ("cosine",)),
    Switch(f"{A}.data_loader_seed", f"{A}.shuffle"),
    Switch("critic", "critic.enable"),
    Switch("critic.optim.min_lr_ratio", "critic.optim.lr_scheduler_type", ("cosine",)),
    Switch("critic.loss_scale_factor", "critic.loss_agg_mode", ("seq-mean-token-sum-norm",)),
    Switch("algorithm.kl_ctrl", "algorithm.use_kl_in_reward"),
    Switch("algorithm.kl_penalty", "algorithm.use_kl_in_reward"),
    Switch("algorithm.kl_ctrl.target_kl", "algorithm.kl_ctrl.type", ("adaptive",)),
    Switch("algorithm.kl_ctrl.horizon", "algorithm.kl_ctrl.type", ("adaptive",)),
    Switch("algorithm.filter_groups.metric", "algorithm.filter_groups.enable"),
    Switch("algorithm.filter_groups.max_inflight_gen_batches", "algorithm.filter_groups.enable"),
    Switch("recipe.dynamic_sampling", "algorithm.filter_groups.enable"),
    Switch("data.gen_batch_size", "algorithm.filter_groups.enable", (False,)),
    Switch(f"{CORRECTION}.rollout_is_threshold", f"{CORRECTION}.rollout_is"),
    Switch(f"{CORRECTION}.rollout_is_batch_normalize", f"{CORRECTION}.rollout_is"),
    Switch(f"{CORRECTION}.rollout_rs_threshold", f"{CORRECTION}.rollout_rs"),
    Switch(f"{MODEL}.lora_alpha", f"{MODEL}.lora_rank"),
    Switch(f"{MODEL}.target_modules", f"{MODEL}.lora_rank"),
    Switch(f"{MODEL}.exclude_modules", f"{MODEL}.lora_rank"),
    Switch(f"{R}.cudagraph_capture_sizes", f"{R}.enforce_eager", (False,)),
    Switch("global_profiler", "global_profiler.steps"),
    Switch("trainer.v1.colocate_async", MODE, (ASYNCHRONOUS,)),
    *(Switch(f"{role}.profiler", "global_profiler.steps") for role in (A, R, REF, "critic")),
    Switch("data.custom_cls.name", "data.custom_cls.path"),
    Switch("skip.rollout_tq", "skip.rollout_tq.enable"),
    Switch("recipe.rephrasings.ratio", "recipe.rephrasings.count"),
    Switch("recipe.advantage.group", "recipe.rephrasings.count"),
    Switch("recipe.curriculum", "recipe.curriculum.enable"),
    Switch("recipe.history", "recipe.history.enable"),
    Switch("recipe.reward.overlong", "recipe.reward.overlong.enable"),
    Switch("recipe.weights.clip_cov", "recipe.weights.name", ("clip_cov",)),
    Switch("recipe.weights.gaussian_covariance", "recipe.weights.name", ("gaussian_covariance",)),
    Switch("recipe.guard", "recipe.guard.action", ALARMS),
]
