"""Which algorithms go together: refused at launch, with the reason and what to set instead.

Any advantage goes with any weight, clip, aggregation, sampling and augmentation, except where a
setting would be silently ignored, or where the sum would not be what its parts are called.
"""

import importlib.util
from typing import Any

from omegaconf import DictConfig

from recipe.algorithms import ADVANTAGES, TOKEN_WEIGHTS
from recipe.algorithms.compute import group_of
from recipe.checks.verl import data_parallel_ranks
from recipe.errors import ConfigError

# Losses that are positively homogeneous in a token's advantage: a weight on it weights the loss.
HOMOGENEOUS = ("vanilla", "gspo", "sapo", "cispo", "gpg", "dppo_tv", "dppo_kl")
PER_MICRO_BATCH = ("clip_cov", "kl_cov")
GEOMETRIC = ("geo_mean", "gmpo")
# Of algorithm.rollout_correction.rollout_rs; verl.trainer.ppo.rollout_corr_helper has the formulas.
REJECTIONS = (
    *("token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3"),
    *("seq_mean_k1", "seq_mean_k2", "seq_mean_k3", "seq_max_k2", "seq_max_k3"),
)
LOSSES = (*HOMOGENEOUS, *PER_MICRO_BATCH, *GEOMETRIC, "dro")
ACTOR, LOSS_MODE = "actor_rollout_ref.actor", "actor_rollout_ref.actor.policy_loss.loss_mode"
GMPO_TARGET = "recipe.algorithms.gmpo.GMPOLossConfig"


def check_algorithm(config: DictConfig) -> None:
    """Refuse, before anything starts, what is unknown, ignored by verl, or contradicts itself."""
    check_advantage(config)
    check_rephrasings(config)
    check_weights(config)
    check_loss(config)
    check_aggregation(config)
    check_correction(config)
    check_sampling(config)


def require_one_of(key: str, value: Any, known: Any) -> None:
    """Raise ConfigError unless `value` is among `known`."""
    if value not in known:
        raise ConfigError(f"{key}={value}: known are {', '.join(map(str, known))}")


def check_advantage(config: DictConfig) -> None:
    """`recipe.advantage`, and verl's keys that it takes the place of."""
    section, algorithm = config.recipe.advantage, config.algorithm
    ADVANTAGES.call(section)  # raises ConfigError for an unknown name and for bad settings
    if section.group == "phrasing":
        raise ConfigError("recipe.advantage.group=phrasing: renamed. Set it to rephrasing.")
    if section.group is not None:
        require_one_of("recipe.advantage.group", section.group, ("question", "rephrasing"))
    wanted = ADVANTAGES.facts(section.name).group
    if wanted and group_of(section) != wanted:
        raise ConfigError(
            f"recipe.advantage.name={section.name} is normalised per {wanted}: leave "
            "recipe.advantage.group null, or take name=grpo with the group you want"
        )
    if algorithm.adv_estimator != "grpo" or not algorithm.get("norm_adv_by_std_in_grpo", True):
        raise ConfigError(
            "advantages are computed by this project, not by algorithm.adv_estimator or "
            "algorithm.norm_adv_by_std_in_grpo: leave those alone and set recipe.advantage.name "
            f"({', '.join(ADVANTAGES)})"
        )
    count, rows = int(config.recipe.rephrasings.count), int(config.actor_rollout_ref.rollout.n)
    size = rows // (count + 1) if group_of(section) == "rephrasing" else rows
    if size < 2 and ADVANTAGES.facts(section.name).uses_rewards:
        raise ConfigError(
            f"a group of {size} response has no baseline, so every advantage would be 0: raise "
            "actor_rollout_ref.rollout.n"
        )
    check_rewards(config)


def check_rewards(config: DictConfig) -> None:
    """Advantages that want rewards of a kind, and what has no use without any advantage."""
    name, recipe = config.recipe.advantage.name, config.recipe
    below_zero = {
        "algorithm.use_kl_in_reward": config.algorithm.use_kl_in_reward,
        "recipe.reward.overlong.enable": recipe.reward.overlong.enable,
        "recipe.history.enable": recipe.history.enable,
    }
    useless = {
        f"recipe.weights.name={recipe.weights.name}": recipe.weights.name != "none",
        "recipe.history.enable": recipe.history.enable,
        "algorithm.filter_groups.enable": config.algorithm.filter_groups.enable,
        "algorithm.use_kl_in_reward": config.algorithm.use_kl_in_reward,
    }
    facts = ADVANTAGES.facts(name)
    if facts.nonnegative_rewards and any(below_zero.values()):
        raise ConfigError(
            f"recipe.advantage.name={name} divides by the mean reward of a group, and with "
            f"{_first(below_zero)} rewards can be negative and that mean near 0: unset it, or use "
            "another advantage"
        )
    if facts.nonnegative_rewards and recipe.reward.format_weight and not recipe.reward.format_gated:
        raise ConfigError(
            f"recipe.advantage.name={name} weighs a group by its mean reward, which stands for the "
            f"share of right answers, and recipe.reward.format_weight="
            f"{recipe.reward.format_weight} rewards wrong ones too: set "
            "recipe.reward.format_weight=0, or recipe.reward.format_gated=true"
        )
    if not facts.uses_rewards and any(useless.values()):
        raise ConfigError(
            f"recipe.advantage.name={name} uses no reward, and {_first(useless)} then has no "
            "effect: unset it"
        )


def _first(flags: dict[str, Any]) -> str:
    return next(key for key, on in flags.items() if on)


def check_rephrasings(config: DictConfig) -> None:
    """`recipe.rephrasings`; no log-probabilities under q^n may enter a ratio under q^0."""
    section, rollout = config.recipe.rephrasings, config.actor_rollout_ref.rollout
    by_rephrasing = config.recipe.advantage.group == "rephrasing"
    for key, on in (
        ("rephrasings.ratio=own", section.ratio == "own"),
        ("advantage.group=rephrasing", by_rephrasing),
    ):
        if on and section.count == 0:
            raise ConfigError(f"recipe.{key} without recipe.rephrasings.count has no use")
    if section.count == 0:
        if ADVANTAGES.facts(config.recipe.advantage.name).rephrasings:
            raise ConfigError(
                f"recipe.advantage.name={config.recipe.advantage.name}: this is GRPO without "
                "rephrasings. Set recipe.rephrasings.count, or recipe.advantage.name=grpo."
            )
        return
    if rollout.n % (section.count + 1):
        raise ConfigError(
            f"actor_rollout_ref.rollout.n={rollout.n} must be a multiple of "
            f"recipe.rephrasings.count + 1 = {section.count + 1}: the same number of responses to "
            "the question and to each rephrasing"
        )
    correction = config.algorithm.rollout_correction
    used = [k for k in ("bypass_mode", "rollout_is", "rollout_rs") if correction.get(k)]
    if used and section.ratio == "anchored":
        raise ConfigError(
            f"algorithm.rollout_correction.{used[0]} uses the engine's log-probabilities, which "
            "TA-GRPO has under the rephrasing q^n, in a ratio that is under q^0: unset it, or set "
            "recipe.rephrasings.ratio=own"
        )


def check_weights(config: DictConfig) -> None:
    """`recipe.weights`, and the losses in which a token's weight would not weight its loss."""
    section, mode = config.recipe.weights, config.actor_rollout_ref.actor.policy_loss.loss_mode
    if section.name == "none":
        if section.arguments:
            raise ConfigError(
                "recipe.weights.arguments has no effect with recipe.weights.name=none: name a "
                "token weight, or unset it"
            )
        return
    TOKEN_WEIGHTS.call(section)  # raises ConfigError for an unknown name and for bad settings
    if mode not in HOMOGENEOUS and not own_loss(config.actor_rollout_ref.actor):
        reason = {
            "clip_cov": "computes its own covariance, of the weighted advantages",
            "kl_cov": "computes its own covariance, of the weighted advantages",
            "geo_mean": "averages the advantages of a response, so the weights would be lost",
            "gmpo": "averages the advantages of a response, so the weights would be lost",
        }.get(mode, "is not proportional to the advantage")
        raise ConfigError(
            f"recipe.weights.name={section.name} does not go with {LOSS_MODE}={mode}, "
            f"which {reason}: use one of {', '.join(HOMOGENEOUS)}, or recipe.weights.name=none"
        )


def own_loss(actor: DictConfig) -> bool:
    """Whether the loss is the user's own: `_target_` names a class whose module registers it.

    As `recipe.algorithms.gmpo` does; verl imports the class in every actor's process. Here it is
    only looked for: it imports verl. Whether the loss is proportional to the advantage, so that a
    token weight weights it, is for its author to know.
    """
    target = str(actor.policy_loss.get("_target_") or "verl.")
    if target.startswith(("verl.", "recipe.")):
        return False
    module = target.rpartition(".")[0]
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise ConfigError(
            f"{ACTOR}.policy_loss._target_={target}: there is no module {module or target}; the "
            "folder of its package must be in the PYTHONPATH of recipe.train"
        )
    return True


def check_loss(config: DictConfig) -> None:
    """verl's losses, refused where they silently do nothing or something else."""
    actor = config.actor_rollout_ref.actor
    mode = actor.policy_loss.loss_mode
    if own_loss(actor):
        return
    require_one_of(LOSS_MODE, mode, LOSSES)
    if mode in PER_MICRO_BATCH and (actor.use_dynamic_bsz or _micro_batch(actor) < 2):
        raise ConfigError(
            f"{LOSS_MODE}={mode} takes its covariance within a micro-batch: with one response in "
            f"it all covariances are 0 and it is plain PPO. Set {ACTOR}.use_dynamic_bsz=false and "
            f"{ACTOR}.ppo_micro_batch_size_per_gpu to 2 or more (the same in all runs compared), "
            "or use recipe.weights.name=clip_cov, which does not depend on micro-batches"
        )
    on_policy = config.data.train_batch_size == actor.ppo_mini_batch_size and actor.ppo_epochs == 1
    if mode == "kl_cov" and on_policy:
        raise ConfigError(
            f"{LOSS_MODE}=kl_cov with one optimizer step per batch penalises |log ratio| where it "
            f"is 0: no effect but rounding noise. Set {ACTOR}.ppo_mini_batch_size below "
            "data.train_batch_size"
        )
    if mode == "geo_mean" and (actor.use_dynamic_bsz or _micro_batch(actor) != _rows(config)):
        raise ConfigError(
            f"{LOSS_MODE}=geo_mean is multiplied by the number of micro-batches in verl 0.9.1: use "
            "method=gmpo, the same loss with the right scale"
        )
    if mode == "gmpo" and actor.policy_loss.get("_target_") != GMPO_TARGET:
        raise ConfigError(
            f"{LOSS_MODE}=gmpo wants {ACTOR}.policy_loss._target_={GMPO_TARGET}: use method=gmpo"
        )
    check_clip(actor)
    if mode == "dro" and not (actor.policy_loss.dro_beta or 0) > 0:
        raise ConfigError(
            f"{LOSS_MODE}=dro wants {ACTOR}.policy_loss.dro_beta above 0, the strength of its "
            "quadratic penalty"
        )


def check_clip(actor: DictConfig) -> None:
    """The one bound that verl does not read where there are two, DPPO's threshold included."""
    narrow, wide = actor.clip_ratio_low, actor.clip_ratio_high
    if None not in (narrow, wide) and actor.clip_ratio not in (0.2, narrow, wide):
        raise ConfigError(
            f"{ACTOR}.clip_ratio={actor.clip_ratio} has no effect beside {ACTOR}.clip_ratio_low="
            f"{narrow} and {ACTOR}.clip_ratio_high={wide}, which verl sets: set those two"
        )


def check_aggregation(config: DictConfig) -> None:
    """How losses of tokens become one number, and whether there is any loss."""
    actor = config.actor_rollout_ref.actor
    mode, mean = actor.policy_loss.loss_mode, actor.loss_agg_mode
    if mode in ("sapo", *GEOMETRIC) and mean != "seq-mean-token-mean":
        raise ConfigError(
            f"{LOSS_MODE}={mode} ignores {ACTOR}.loss_agg_mode={mean} and takes the mean over "
            f"responses: set {ACTOR}.loss_agg_mode=seq-mean-token-mean"
        )
    if mean == "seq-mean-token-sum-norm" and not actor.loss_scale_factor:
        raise ConfigError(
            f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm without {ACTOR}.loss_scale_factor "
            "divides by the longest response of each micro-batch: set it to "
            "data.max_response_length"
        )
    if mean != "seq-mean-token-sum-norm" and actor.loss_scale_factor:
        raise ConfigError(
            f"{ACTOR}.loss_scale_factor={actor.loss_scale_factor} has no effect with "
            f"{ACTOR}.loss_agg_mode={mean}: it divides the loss of seq-mean-token-sum-norm alone. "
            "Unset one of them"
        )
    if config.recipe.advantage.name == "none" and not (actor.entropy_coeff or actor.use_kl_loss):
        raise ConfigError(
            f"recipe.advantage.name=none trains nothing by itself: set {ACTOR}.entropy_coeff "
            f"(entropy loss alone) or {ACTOR}.use_kl_loss"
        )


def check_correction(config: DictConfig) -> None:
    """Rollout correction: what verl's V1 trainer ignores, and the log-probs that it needs."""
    correction = config.algorithm.rollout_correction
    used = [k for k in ("bypass_mode", "rollout_is", "rollout_rs") if correction.get(k)]
    if used and not config.actor_rollout_ref.rollout.calculate_log_probs:
        raise ConfigError(
            f"algorithm.rollout_correction.{used[0]} wants the engine's log-probabilities: set "
            "actor_rollout_ref.rollout.calculate_log_probs=true, or nothing is corrected"
        )
    if correction.get("bypass_mode"):
        ignored = [k for k in ("rollout_is", "rollout_rs") if correction.get(k)]
        ignored += ["loss_type"] * (correction.get("loss_type", "ppo_clip") != "ppo_clip")
        if ignored:
            raise ConfigError(
                "algorithm.rollout_correction.bypass_mode=true takes the engine's log-probs as the "
                f"old ones, and verl 0.9.1's V1 trainer then ignores {', '.join(ignored)}: "
                "unset one or the other"
            )
    check_rejection(correction)


def check_rejection(correction: DictConfig) -> None:
    """Names and bounds of the correction, of which verl finds out after the first rollouts."""
    section, kind = "algorithm.rollout_correction", correction.get("rollout_is")
    if kind is not None:
        require_one_of(f"{section}.rollout_is", kind, ("token", "sequence"))
    names = correction.get("rollout_rs")
    if names is None:
        return
    for name in str(names).split(","):
        require_one_of(f"{section}.rollout_rs", name.strip(), REJECTIONS)
    if correction.get("rollout_rs_threshold") is None:
        raise ConfigError(
            f"{section}.rollout_rs={names} wants {section}.rollout_rs_threshold, the bound beyond "
            "which a response or a token is not trained on: for a ..._k1 LOWER_UPPER, as in "
            "0.5_2.0, for the others one number"
        )


def _rows(config: DictConfig) -> int:
    """Responses of a mini-batch on one data-parallel rank."""
    rows = config.actor_rollout_ref.actor.ppo_mini_batch_size * config.actor_rollout_ref.rollout.n
    return rows // data_parallel_ranks(config)


def _micro_batch(actor: DictConfig) -> int:
    return int(actor.ppo_micro_batch_size_per_gpu or 0)


def check_sampling(config: DictConfig) -> None:
    """Dynamic sampling, history and curriculum."""
    recipe, groups = config.recipe, config.algorithm.filter_groups
    if groups.enable:
        require_one_of(
            "algorithm.filter_groups.metric", groups.metric, ("acc", "reward", "format", "overlong")
        )
        if recipe.curriculum.enable and groups.metric != "acc":
            raise ConfigError(
                "recipe.curriculum learns pass rates from the groups that dynamic sampling evicts: "
                "set algorithm.filter_groups.metric=acc"
            )
        if recipe.history.enable:
            raise ConfigError(
                "recipe.history (HAPO) finds its signal in groups that are all right, which "
                "algorithm.filter_groups throws away: enable one of them"
            )
    if recipe.curriculum.enable and recipe.one_question is not None:
        raise ConfigError(
            "recipe.curriculum has nothing to choose from with recipe.one_question: unset one"
        )
