"""Rules about algorithms: reject combinations in which a part has no effect or another meaning."""

import importlib
from collections.abc import Iterator

from recipe.algorithms import ADVANTAGES, TOKEN_WEIGHTS
from recipe.algorithms.compute import group_of
from recipe.config.compose import one_line
from recipe.preflight.data import paths_of
from recipe.preflight.rules import SHORT, Check, Rule, Setup

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
GMPO_TARGET = "recipe.algorithms.gmpo.GMPOLossConfig"


def known_advantage(s: Setup) -> Iterator[str]:
    """`recipe.advantage`: the function exists and takes its arguments."""
    if s.advantage.startswith("verl:"):
        yield from import_libraries(s)
    ADVANTAGES.call(s.recipe.advantage)


def known_token_weight(s: Setup) -> Iterator[str]:
    """`recipe.weights`: the function exists and takes its arguments."""
    if s.weights != "none":
        TOKEN_WEIGHTS.call(s.recipe.weights)
    yield from ()


def import_libraries(s: Setup) -> Iterator[str]:
    """Import the modules that may register an estimator or a loss, as verl does in a run."""
    for module in paths_of(s.model.external_lib):
        try:
            importlib.import_module(module)
        except Exception as error:  # whatever the user's module raises
            yield (
                f"actor_rollout_ref.model.external_lib={module}: it cannot be imported "
                f"({type(error).__name__}: {error}). Correct it."
            )


def own_loss(s: Setup) -> Iterator[str]:
    """`actor_rollout_ref.actor.policy_loss`: the user's class exists and registers the loss."""
    if not s.own_loss:
        return
    # The run imports verl anyway, in the process of these checks.
    from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
    from verl.utils.config import omega_conf_to_dataclass

    yield from import_libraries(s)
    target = s.named("{A}.policy_loss._target_".format(**SHORT))
    try:
        omega_conf_to_dataclass(s.actor.policy_loss)
    except Exception as error:  # whatever the user's module raises
        yield (
            f"{target}: {one_line(error.__cause__ or error)}. Correct the class or its fields, or "
            "put the folder of its package into PYTHONPATH."
        )
        return
    if s.actor.policy_loss.loss_mode not in POLICY_LOSS_REGISTRY:
        yield (
            f"{s.named(SHORT['LOSS'])} with {target}: not registered. Known are "
            f"{', '.join(POLICY_LOSS_REGISTRY)}. Register yours with verl's @register_policy_loss "
            "in the module of the class."
        )


def corrections(s: Setup) -> list[str]:
    return [k for k in ("bypass_mode", "rollout_is", "rollout_rs") if s.correction.get(k)]


def ignored_in_bypass(s: Setup) -> list[str]:
    """Return settings of the rollout correction that verl's V1 trainer ignores in bypass mode."""
    if not s.correction.get("bypass_mode"):
        return []
    used = [k for k in ("rollout_is", "rollout_rs") if s.correction.get(k)]
    return used + ["loss_type"] * (s.correction.get("loss_type", "ppo_clip") != "ppo_clip")


def unknown_rejections(s: Setup) -> list[str]:
    names = str(s.correction.get("rollout_rs") or "").split(",")
    return [name for name in map(str.strip, names) if name and name not in REJECTIONS]


def lost_weights(s: Setup) -> str | None:
    """Return why token weights would have no effect on the loss, or None."""
    if s.weights == "none" or s.own_loss or s.loss in HOMOGENEOUS:
        return None
    if s.loss in PER_MICRO_BATCH:
        return "this loss computes its own covariance, of the weighted advantages"
    if s.loss in GEOMETRIC:
        return "this loss averages the advantages of a response, and the weights would be lost"
    return "this loss is not proportional to the advantage"


def maybe_negative(key: str) -> Rule:
    """Return the rule: an advantage that divides by the mean reward needs rewards >= 0."""
    return Rule(
        f"recipe.advantage.name {key}",
        lambda s: s.facts.nonnegative_rewards and s.get(key),
        "this advantage divides by the mean reward of a group, which could be near 0 with negative "
        f"rewards. Unset {key}, or use another advantage.",
    )


def without_rewards(key: str, off: object = False) -> Rule:
    """Return the rule: an advantage without rewards ignores `key`, a setting of rewards."""
    return Rule(
        f"recipe.advantage.name {key}",
        lambda s: not s.facts.uses_rewards and s.get(key) != off,
        f"this advantage uses no reward, so {key} has no effect. Unset it.",
    )


def made_of_parts(key: str) -> Rule:
    """Return the rule: an advantage of accuracy and format ignores `key`, another reward."""
    return Rule(
        f"recipe.advantage.name {key}",
        lambda s: s.facts.parts and s.get(key),
        "this advantage reads {s.facts.parts} in place of the summed reward, so "
        f"{key} has no effect. Unset it.",
    )


def needs_rephrasings(key: str, value: str) -> Rule:
    return Rule(
        f"{key} recipe.rephrasings.count",
        lambda s: s.get(key) == value and s.rephrasings == 0,
        "there are no rephrasings, so it has no effect. Set recipe.rephrasings.count or unset it.",
    )


HISTORY, FILTER = "recipe.history.enable", "algorithm.filter_groups.enable"
KL_IN_REWARD = "algorithm.use_kl_in_reward"
# Settings that change the summed reward.
REWARDS = (KL_IN_REWARD, "recipe.reward.overlong.enable", HISTORY, "recipe.reward.verifiers")
ALGORITHM: list[Check] = [
    known_advantage,
    Rule(
        "recipe.advantage.name recipe.advantage.group",
        lambda s: s.facts.group and group_of(s.recipe.advantage) != s.facts.group,
        "this advantage is normalized per {s.facts.group}. Leave recipe.advantage.group null, or "
        "set recipe.advantage.name=grpo with the group you want.",
    ),
    Rule(
        "{R}.n",
        lambda s: s.facts.uses_rewards and s.group_size < 2 and not s.facts.critic,
        "a group of {s.group_size} response has no baseline, so every advantage would be 0. Raise "
        "{R}.n.",
    ),
    *map(maybe_negative, REWARDS),
    Rule(
        "recipe.advantage.name recipe.reward.format_weight",
        lambda s: (
            s.facts.nonnegative_rewards and s.reward.format_weight and not s.reward.format_gated
        ),
        "this advantage takes the mean reward of a group for its share of right answers, and wrong "
        "ones would be rewarded too. Set recipe.reward.format_weight=0, or "
        "recipe.reward.format_gated=true.",
    ),
    *map(made_of_parts, REWARDS),
    Rule(
        "recipe.advantage.name recipe.reward.format_weight",
        lambda s: s.facts.parts == ("accuracy",) and s.reward.format_weight,
        "this advantage reads the accuracy alone. Set recipe.reward.format_weight=0.",
    ),
    Rule(
        "recipe.advantage.name critic.enable",
        lambda s: s.facts.critic and not s.critic,
        "this advantage reads the values of a critic. Set critic.enable=true.",
    ),
    Rule(
        "recipe.curriculum.value_model critic.enable",
        lambda s: s.value_model and not (s.critic and s.curriculum.enable),
        "the value model is the critic of a curriculum. Set critic.enable=true and "
        "recipe.curriculum.enable=true.",
    ),
    Rule(
        "critic.enable",
        lambda s: s.critic and not (s.facts.critic or s.value_model),
        "no effect: nothing reads the critic. Unset it, set recipe.advantage.name=verl:gae or "
        "recipe.curriculum.value_model=true, or declare your function @advantage(critic=True).",
    ),
    Rule(
        "recipe.advantage.name recipe.curriculum.value_model",
        lambda s: s.facts.critic and s.value_model,
        "one critic predicts either returns or pass rates. Unset one.",
    ),
    Rule(
        "recipe.curriculum.value_model algorithm.filter_groups.enable",
        lambda s: s.value_model and s.filter.enable,
        "the value model would be trained on the groups that are kept alone. Unset one.",
    ),
    Rule(
        "recipe.advantage.name algorithm.use_kl_in_reward",
        lambda s: (
            (s.facts.critic or s.advantage == "verl:reinforce_plus_plus")
            and s.algorithm.use_kl_in_reward
        ),
        "the whole reward is on the last token here. Set {A}.use_kl_loss=true.",
    ),
    Rule(
        "trainer.critic_warmup",
        lambda s: s.trainer.critic_warmup and not s.facts.critic,
        "its steps would train nothing. Unset it.",
    ),
    without_rewards("recipe.weights.name", off="none"),
    *map(without_rewards, (HISTORY, FILTER, KL_IN_REWARD)),
    needs_rephrasings("recipe.rephrasings.ratio", "own"),
    needs_rephrasings("recipe.advantage.group", "rephrasing"),
    Rule(
        "recipe.advantage.name recipe.rephrasings.count",
        lambda s: s.facts.rephrasings and s.rephrasings == 0,
        "this is GRPO without rephrasings. Set recipe.rephrasings.count, or "
        "recipe.advantage.name=grpo.",
    ),
    Rule(
        "{R}.n recipe.rephrasings.count",
        lambda s: s.rollout.n % (s.rephrasings + 1),
        "the question and each rephrasing get the same number of responses. Set {R}.n to a "
        "multiple of recipe.rephrasings.count + 1.",
    ),
    Rule(
        "recipe.rephrasings.ratio {C}",
        lambda s: s.rephrasings and s.recipe.rephrasings.ratio == "anchored" and corrections(s)[:1],
        "{C}.{found[0]} uses the engine's log-probabilities, which are under the rephrasing q^n, "
        "in a ratio under q^0. Unset it, or set recipe.rephrasings.ratio=own.",
    ),
    known_token_weight,
    Rule(
        "recipe.weights.arguments",
        lambda s: s.weights == "none" and s.recipe.weights.arguments,
        "no effect with recipe.weights.name=none. Name a token weight, or unset it.",
    ),
    Rule(
        "recipe.weights.name {LOSS}",
        lost_weights,
        "{found}. Use one of " + ", ".join(HOMOGENEOUS) + ", or recipe.weights.name=none.",
    ),
    own_loss,
    Rule(
        "{LOSS}",
        lambda s: s.loss and s.loss not in LOSSES,
        f"unknown. Known are {', '.join(LOSSES)}.",
    ),
    Rule(
        "{LOSS}",
        lambda s: s.loss in PER_MICRO_BATCH and (s.actor.use_dynamic_bsz or s.micro_rows < 2),
        "the covariance is taken within a micro-batch, and with one response in it this is PPO. "
        "Set {A}.use_dynamic_bsz=false and {A}.ppo_micro_batch_size_per_gpu to 2 or more (the same "
        "in all runs compared), or use recipe.weights.name=clip_cov, which does not depend on it.",
    ),
    Rule(
        "{LOSS}",
        lambda s: s.loss == "kl_cov" and s.batch == s.mini and s.actor.ppo_epochs == 1,
        "with one optimizer step per batch |log ratio| is 0 but for rounding, so it has no effect. "
        "Set {A}.ppo_mini_batch_size below data.train_batch_size.",
    ),
    Rule(
        "{LOSS}",
        lambda s: s.loss == "geo_mean" and (s.actor.use_dynamic_bsz or s.micro_rows != s.rank_rows),
        "verl 0.9.1 multiplies this loss by the number of micro-batches. Use method=gmpo, the same "
        "loss with the right scale.",
    ),
    Rule(
        "{LOSS} {A}.policy_loss._target_",
        lambda s: s.loss == "gmpo" and s.actor.policy_loss.get("_target_") != GMPO_TARGET,
        f"this loss needs {{A}}.policy_loss._target_={GMPO_TARGET}. Use method=gmpo.",
    ),
    Rule(
        "{A}.clip_ratio {A}.clip_ratio_low {A}.clip_ratio_high",
        lambda s: (
            s.loss
            and None not in ((low := s.actor.clip_ratio_low), (high := s.actor.clip_ratio_high))
            and s.actor.clip_ratio not in (0.2, low, high)
        ),
        "no effect beside the other two, which verl reads first. Set those two.",
    ),
    Rule(
        "{LOSS} {A}.policy_loss.dro_beta",
        lambda s: s.loss == "dro" and not (s.actor.policy_loss.dro_beta or 0) > 0,
        "this loss needs {A}.policy_loss.dro_beta above 0, the strength of its quadratic penalty.",
    ),
    Rule(
        "{LOSS} {A}.loss_agg_mode",
        lambda s: (
            s.actor.policy_loss.loss_mode in ("sapo", *GEOMETRIC)
            and s.actor.loss_agg_mode != "seq-mean-token-mean"
        ),
        "this loss takes the mean over responses whatever the mode is. Set "
        "{A}.loss_agg_mode=seq-mean-token-mean.",
    ),
    Rule(
        "{A}.loss_agg_mode {A}.loss_scale_factor",
        lambda s: (
            s.actor.loss_agg_mode == "seq-mean-token-sum-norm" and not s.actor.loss_scale_factor
        ),
        "verl would divide by the longest response of each micro-batch. Set {A}.loss_scale_factor "
        "to data.max_response_length.",
    ),
    Rule(
        "{A}.loss_scale_factor {A}.loss_agg_mode",
        lambda s: s.actor.loss_agg_mode != "seq-mean-token-sum-norm" and s.actor.loss_scale_factor,
        "no effect: it divides the loss of seq-mean-token-sum-norm alone. Unset one of them.",
    ),
    Rule(
        "recipe.advantage.name",
        lambda s: s.advantage == "none" and not (s.actor.entropy_coeff or s.actor.use_kl_loss),
        "trains nothing by itself. Set {A}.entropy_coeff (entropy loss alone) or {A}.use_kl_loss.",
    ),
    Rule(
        "{R}.calculate_log_probs {C}",
        lambda s: not s.rollout.calculate_log_probs and corrections(s),
        "{C}.{found[0]} needs the engine's log-probabilities, and nothing would be corrected. Set "
        "{R}.calculate_log_probs=true.",
    ),
    Rule(
        "{C}.bypass_mode",
        lambda s: ", ".join(ignored_in_bypass(s)),
        "takes the engine's log-probabilities as the old ones, and verl 0.9.1's V1 trainer then "
        "ignores {found}. Unset one or the other.",
    ),
    Rule(
        "{C}.rollout_rs",
        lambda s: ", ".join(unknown_rejections(s)),
        "unknown: {found}. Known are " + ", ".join(REJECTIONS) + ".",
    ),
    Rule(
        "{C}.rollout_rs {C}.rollout_rs_threshold",
        lambda s: s.correction.get("rollout_rs") and s.correction.rollout_rs_threshold is None,
        "the bound is missing beyond which a response or token is not trained on. Set "
        "{C}.rollout_rs_threshold: for a ..._k1 LOWER_UPPER, as in 0.5_2.0, otherwise one number.",
    ),
    Rule(
        "algorithm.filter_groups.metric recipe.curriculum.enable",
        lambda s: s.filter.enable and s.curriculum.enable and s.filter.metric != "acc",
        "the curriculum learns pass rates from the groups that dynamic sampling evicts. Set "
        "algorithm.filter_groups.metric=acc.",
    ),
    Rule(
        f"{HISTORY} {FILTER}",
        lambda s: s.filter.enable and s.recipe.history.enable,
        "HAPO's signal is in groups that are all right, which the filter evicts. Enable one.",
    ),
    Rule(
        "recipe.one_question recipe.curriculum.enable",
        lambda s: s.curriculum.enable and s.recipe.one_question is not None,
        "with one question there is nothing to choose from. Unset one of them.",
    ),
    Rule(
        "recipe.keep_best trainer.test_freq",
        lambda s: s.recipe.keep_best and s.trainer.test_freq <= 0,
        "no checkpoint is validated, so none is the best. Set trainer.test_freq, or "
        "recipe.keep_best=null.",
    ),
    Rule(
        "recipe.guard.action trainer.save_freq trainer.test_freq",
        lambda s: (
            s.rolls_back
            and (
                min(s.trainer.save_freq, s.trainer.test_freq) <= 0
                or s.trainer.save_freq % s.trainer.test_freq
            )
        ),
        "a run rolls back to the saved step of the best validation. Set trainer.save_freq to a "
        "multiple of trainer.test_freq, both above 0.",
    ),
    Rule(
        "recipe.guard.action trainer.max_actor_ckpt_to_keep recipe.keep_best",
        lambda s: s.rolls_back and s.trainer.max_actor_ckpt_to_keep and not s.recipe.keep_best,
        "the best checkpoint would be deleted, to which a run rolls back. Set "
        "recipe.keep_best=val/SOURCE/accuracy.",
    ),
]
