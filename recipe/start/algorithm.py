"""Rules about algorithms: reject combinations in which a part has no effect or another meaning."""

import math
from collections.abc import Iterator

import torch

from recipe.algorithms import ADVANTAGES, TOKEN_WEIGHTS
from recipe.config.compose import not_through, one_line
from recipe.config.verl import (
    ASYNCHRONOUS,
    CORRECTION,
    KL_TYPE,
    LOSS,
    MODE,
    NO_GRADIENT,
    A,
    R,
    has_no_gradient,
)
from recipe.start.loss import known_loss
from recipe.start.rules import ADVANTAGE, Check, Rule, Setup

KL_REWARD, FILTER = "algorithm.use_kl_in_reward", "algorithm.filter_groups.enable"
HISTORY, VALUE_MODEL = "recipe.history.enable", "recipe.curriculum.value_model"
# Losses that are positively homogeneous in a token's advantage: a weight on it weights the loss.
HOMOGENEOUS = ("vanilla", "gspo", "sapo", "cispo", "gpg", "dppo_tv", "dppo_kl", "vespo", "fipo")
BY_RATIO = ("gspo", "gmpo", "sapo", "cispo", "vespo", "fipo")  # vanilla's gradient at ratio 1
TOKEN_MEAN = ("balanced", "high_entropy")
CLIP = tuple(f"{A}.clip_ratio{end}" for end in ("", "_low", "_high"))
CORRECTION_KEYS = ("rollout_is", "rollout_is_threshold", "rollout_rs", "rollout_rs_threshold")
PER_MICRO_BATCH = ("clip_cov", "kl_cov")


def known_advantage(s: Setup) -> Iterator[str]:
    """`recipe.advantage`: the function exists and takes its arguments."""
    ADVANTAGES.call(s.recipe.advantage)
    yield from ()


def known_token_weight(s: Setup) -> Iterator[str]:
    """`recipe.weights`: the function exists and takes its arguments."""
    if s.weights == "none":
        return
    settings = TOKEN_WEIGHTS.call(s.recipe.weights)[1]
    if settings.get("gradient") == "through" and (keys := not_through(s.config)):
        yield s.message(
            f"recipe.weights.gaussian_covariance.gradient {keys}",
            "the gradient through the weights is an advantage only for verl's vanilla loss, in one "
            "optimizer step per batch, without rollout correction, with log-probabilities at "
            "temperature 1. Set the first key to null, or the others accordingly (for the last "
            "one: recipe.weights.arguments.logprob_temperature=1).",
        )


def parts_of_the_reward(s: Setup) -> Iterator[str]:
    """The advantage reads all parts of the reward that are enabled."""
    facts, weights = s.facts, "recipe.weights.name"
    added = [key for key in (KL_REWARD, HISTORY) if s.get(key)]
    more = [
        key for key in ("recipe.reward.overlong.enable", "recipe.reward.verifiers") if s.get(key)
    ]
    if not facts.uses_rewards:
        more = [FILTER] if s.filter.enable else []
        more += [weights] if s.weights != "none" else []
        why = "this advantage uses no reward, so the other key has no effect. Unset it."
    elif facts.nonnegative_rewards:
        why = (
            "this advantage divides by the mean reward of a group, which could be near 0 with the "
            "negative rewards of the other key. Unset it, or use another advantage."
        )
    elif facts.parts:
        why = (
            f"this advantage reads {' and '.join(facts.parts)} in place of the summed reward, so "
            "the other key has no effect. Unset it."
        )
    else:
        return
    for key in [*added, *more]:
        yield s.message(f"{ADVANTAGE} {key}", why)


def format_weight(s: Setup) -> float:
    """Return GDPO's weight of formats over accuracy's, NaN if verl:gdpo's are not two above 0."""
    arguments = s.recipe.advantage.arguments or {}
    if s.advantage != "verl:gdpo":
        return float(arguments.get("format_weight", 1.0))
    given = arguments.get("gdpo_reward_weights") or (1, 1)
    weights = [] if isinstance(given, int | float | str) else list(given)
    numbers = [float(x) for x in weights if isinstance(x, int | float) and x > 0]
    keys = "gdpo_reward_keys" in arguments  # another order
    return math.nan if keys or not len(numbers) == len(weights) == 2 else numbers[1] / numbers[0]


def baseline(s: Setup) -> Iterator[str]:
    """A group has at least two responses, unless the advantage has another baseline."""
    batch = s.advantage == "verl:reinforce_plus_plus"
    if s.facts.uses_rewards and s.group_size < 2 and not (s.facts.critic or batch):
        yield s.message(
            f"{R}.n",
            f"a group of {s.group_size} response has no baseline, so every advantage would be 0. "
            "Raise it.",
        )


REWARD: list[Check] = [
    parts_of_the_reward,
    baseline,
    Rule(
        f"{ADVANTAGE} recipe.reward.format_weight",
        lambda s: (
            s.reward.format_weight
            and (s.facts.nonnegative_rewards or s.facts.parts == ("accuracy",))
        ),
        "this advantage takes a reward for a right answer. Set recipe.reward.format_weight=0.",
    ),
    Rule(
        f"{ADVANTAGE} recipe.reward.format_weight",
        lambda s: (
            s.advantage in ("gdpo", "verl:gdpo")
            and not math.isclose(s.reward.format_weight, format_weight(s))
        ),
        "it does not read the summed reward, so the other key has no effect. Set both to one "
        "weight: recipe.advantage.arguments.format_weight counts, of verl:gdpo "
        "gdpo_reward_weights=[1, weight] without gdpo_reward_keys.",
    ),
    Rule(
        f"{ADVANTAGE} {A}.entropy_coeff {A}.use_kl_loss",
        lambda s: s.advantage == "none" and not s.actor.entropy_coeff and not s.actor.use_kl_loss,
        f"trains nothing by itself. Set {A}.entropy_coeff (entropy loss alone) or {A}.use_kl_loss.",
    ),
    Rule(
        f"{ADVANTAGE} recipe.rephrasings.count",
        lambda s: s.facts.rephrasings and not s.rephrasings,
        "this is GRPO without rephrasings. Set recipe.rephrasings.count, or "
        "recipe.advantage.name=grpo.",
    ),
    Rule(
        f"{ADVANTAGE} recipe.rephrasings.count",
        lambda s: s.advantage == "sdpo" and s.rephrasings,
        "the hint stands beside the question itself, so a rephrasing would be in the ratio of one "
        "prompt and the teacher of another. Set recipe.rephrasings.count=0.",
    ),
    Rule(
        f"{ADVANTAGE} {CORRECTION}.bypass_mode",
        lambda s: s.advantage == "sdpo" and s.correction.bypass_mode,
        "the advantage would contain the difference between engine and actor. Set "
        f"{CORRECTION}.bypass_mode=false.",
    ),
    Rule(
        f"{R}.n recipe.rephrasings.count",
        lambda s: s.rollout.n % (s.rephrasings + 1),
        "the question and each rephrasing get the same number of responses. Set "
        f"{R}.n to a multiple of recipe.rephrasings.count + 1.",
    ),
    Rule(
        f"recipe.rephrasings.ratio {CORRECTION}",
        lambda s: s.rephrasings and s.recipe.rephrasings.ratio == "anchored" and corrects(s),
        "the correction uses the engine's log-probabilities, which are under the rephrasing q^n, "
        "in a ratio under q^0. Switch it off (rollout_is=null), or set "
        "recipe.rephrasings.ratio=own.",
    ),
    Rule(
        f"recipe.rephrasings.ratio {MODE}",
        lambda s: s.rephrasings and s.recipe.rephrasings.ratio == "anchored" and window(s),
        "stale tokens would have no correction: the engine's log-probabilities are under the "
        "rephrasing q^n. Set num_warmup_batches=0 of the mode, or recipe.rephrasings.ratio=own.",
    ),
    Rule(
        f"{ADVANTAGE} {FILTER}",
        lambda s: s.filter.enable and s.facts.equal_accuracy,
        "its signal is also in groups that are all right, or all wrong, which the filter evicts. "
        f"Set {FILTER}=false.",
    ),
    Rule(
        f"recipe.curriculum.enable {FILTER.removesuffix('enable')}metric",
        lambda s: s.curriculum.enable and s.filter.enable and s.filter.metric != "acc",
        "the curriculum would take this value of a group that is evicted for its pass rate. Set "
        "metric=acc.",
    ),
    Rule(
        f"{HISTORY} {FILTER}",
        lambda s: s.recipe.history.enable and s.filter.enable,
        "HAPO's signal is in groups that are all right, which the filter evicts. Enable one.",
    ),
]


CRITIC: list[Check] = [
    Rule(
        f"{ADVANTAGE} critic.enable",
        lambda s: s.facts.critic and not s.critic,
        "this advantage reads the values of a critic. Set critic.enable=true.",
    ),
    Rule(
        "critic.enable",
        lambda s: s.critic and not s.facts.critic and not s.value_model,
        "no effect: nothing reads the critic. Unset it, set recipe.advantage.name=verl:gae or "
        "recipe.curriculum.value_model=true, or declare your function @advantage(critic=True).",
    ),
    Rule(
        f"{VALUE_MODEL} critic.enable recipe.curriculum.enable",
        lambda s: s.value_model and not (s.critic and s.curriculum.enable),
        "the value model is the critic of a curriculum. Set critic.enable=true and "
        "recipe.curriculum.enable=true.",
    ),
    Rule(
        f"{VALUE_MODEL} {FILTER}",
        lambda s: s.value_model and s.filter.enable,
        "the value model would be trained only on the kept groups. Unset one.",
    ),
    Rule(
        f"{ADVANTAGE} {KL_REWARD}",
        lambda s: (
            s.algorithm.use_kl_in_reward
            and (s.facts.critic or s.advantage == "verl:reinforce_plus_plus")
        ),
        f"the whole reward is on the last token here. Set {A}.use_kl_loss=true.",
    ),
]


def lost_weights(s: Setup) -> Iterator[str]:
    """Token weights have an effect on the loss."""
    if s.weights != "none" and not s.own_loss and s.loss not in HOMOGENEOUS:
        yield s.message(
            f"recipe.weights.name {LOSS}",
            "this loss is not proportional to a token's advantage, so weights would be lost or "
            f"mean something else. Use one of {', '.join(HOMOGENEOUS)}, or "
            "recipe.weights.name=none.",
        )


def corrects(s: Setup) -> bool:
    """Return True if the engine's log-probabilities correct the ratios."""
    return bool(s.correction.bypass_mode or s.correction.rollout_is or s.correction.rollout_rs)


def window(s: Setup) -> float:
    """Return the largest staleness of a token, in versions of the weights."""
    own = s.trainer.v1[s.mode.removeprefix("recipe_")] if s.mode in ASYNCHRONOUS else {}
    return float(own.get("num_warmup_batches", 0))


def corrections(s: Setup) -> Iterator[str]:
    """verl accepts the values of the rollout correction, which it reads after the rollouts."""
    given = {key: s.get(f"{CORRECTION}.{key}") for key in CORRECTION_KEYS}
    if given["rollout_is"] and given["rollout_is_threshold"] is None:
        yield s.message(
            f"{CORRECTION}.rollout_is {CORRECTION}.rollout_is_threshold",
            "without a threshold verl corrects nothing. Set it: 2, or a large number for no limit.",
        )
    if s.correction.bypass_mode or not (given["rollout_is"] or given["rollout_rs"]):
        return
    from verl.trainer.ppo import rollout_corr_helper as helper

    logprobs, mask = torch.zeros(2, 3), torch.ones(2, 3)
    try:
        helper.compute_rollout_correction_and_rejection_mask(logprobs, logprobs, mask, **given)
    except (TypeError, ValueError) as error:
        keys = " ".join(f"{CORRECTION}.{key}" for key, value in given.items() if value is not None)
        yield s.message(keys, f"verl would end the first step: {one_line(error)}. Correct it.")


def uncorrected(s: Setup) -> Iterator[str]:
    """Note that stale rollouts are trained without a correction."""
    if s.mode in ASYNCHRONOUS and not corrects(s):
        yield s.message(
            f"{CORRECTION}.rollout_is {MODE}",
            "tokens of older weights are trained as if they were of the current ones. Leave the "
            f"first key out, or set {CORRECTION}.rollout_is=token.",
        )


def on_policy(s: Setup) -> Iterator[str]:
    """Note that a loss differs only by its ratio, which is 1.

    The old log-probabilities are computed when the step begins, also of stale or anchored rollouts.
    """
    moves = s.batch != s.mini or s.actor.ppo_epochs > 1 or s.correction.bypass_mode
    weighted = s.loss == "vespo" and s.correction.rollout_is
    if s.loss in BY_RATIO and not (moves or weighted):
        yield s.message(
            f"{LOSS} {A}.ppo_mini_batch_size",
            "with one optimizer step per batch the ratio is 1, where this loss has vanilla's "
            f"gradient. Set {A}.ppo_mini_batch_size below data.train_batch_size.",
        )


LOSS_RULES: list[Check] = [
    lost_weights,
    corrections,
    Rule(
        " ".join(CLIP),
        lambda s: (
            s.get(CLIP[0]) not in (0.2, s.get(CLIP[1]), s.get(CLIP[2]))
            and None not in (s.get(CLIP[1]), s.get(CLIP[2]))
            and not s.own_loss
        ),
        "verl reads the first key only where the others are null. Leave it out and set the others.",
    ),
    Rule(
        f"{R}.top_k {R}.top_p {CORRECTION}",
        lambda s: (
            corrects(s)
            and (s.rollout.top_k > 0 or s.rollout.top_p < 1)
            and str(s.rollout.logprobs_mode).startswith("processed")
        ),
        "the engine's log-probabilities are then of the tokens that are left, the actor's of all, "
        f"and the correction takes one for the other. Set {R}.top_k=-1 {R}.top_p=1, or no "
        "correction.",
    ),
    Rule(
        f"{A}.policy_loss.dro_beta",
        lambda s: s.loss == "dro" and not (s.get(f"{A}.policy_loss.dro_beta") or 0) > 0,
        "this loss needs a number above 0. Set it.",
    ),
    Rule(
        f"{KL_REWARD} algorithm.kl_penalty",
        lambda s: s.algorithm.use_kl_in_reward and s.algorithm.kl_penalty not in ("kl", "k1"),
        "in a reward only k1 has the gradient of the KL divergence (arXiv 2512.21852): near the "
        "reference the others hardly pull towards it, or away. Set algorithm.kl_penalty=k1.",
    ),
    Rule(
        f"{ADVANTAGE} {CORRECTION}.rollout_rs",
        lambda s: s.advantage == "unlikeliness" and s.correction.rollout_rs,
        "a rejected response would have the rank of the likeliest. Unset one.",
    ),
    Rule(
        f"recipe.weights.name {CORRECTION}.rollout_rs",
        lambda s: s.weights in TOKEN_MEAN and s.correction.rollout_rs,
        "verl divides the loss by the rejected tokens too, which these weights do not count. Unset "
        "one.",
    ),
    Rule(
        f"{LOSS} {CORRECTION}.rollout_is_batch_normalize",
        lambda s: (
            s.loss == "vespo"
            and s.correction.rollout_is
            and s.correction.rollout_is_batch_normalize
        ),
        "the loss multiplies the weights of a response's tokens, so the mean would enter to the "
        "power of its length. Set the second key to false.",
    ),
    Rule(
        f"{LOSS} {CORRECTION}.rollout_is",
        lambda s: s.loss == "vespo" and s.correction.rollout_is == "sequence",
        "the loss multiplies the weights of a response's tokens, and each would be that of the "
        f"response. Set {CORRECTION}.rollout_is=token, or {CORRECTION}.bypass_mode=true, which "
        "has the paper's W.",
    ),
    Rule(
        f"{LOSS} {CORRECTION}.rollout_is_threshold",
        lambda s: (
            s.loss == "vespo"
            and s.correction.rollout_is
            and "_" in str(s.correction.rollout_is_threshold)
        ),
        "the loss multiplies the weights of a response's tokens, so one outside the band would end "
        "the whole response. Set one number.",
    ),
    Rule(
        f"{LOSS} {ADVANTAGE}",
        lambda s: s.loss == "gmpo" and (s.facts.critic or s.advantage == "sdpo"),
        "this loss takes the mean advantage of a response, so that of its tokens would be lost. "
        "Use method=ppo, or an advantage of responses.",
    ),
    Rule(
        f"recipe.weights.name {A}.loss_agg_mode",
        lambda s: s.weights in TOKEN_MEAN and s.actor.loss_agg_mode != "token-mean",
        "these weights make means over the batch's tokens into others, not means over responses. "
        f"Set {A}.loss_agg_mode=token-mean.",
    ),
    Rule(KL_TYPE, lambda s: has_no_gradient(s.config), NO_GRADIENT),
    Rule(
        f"{LOSS} {A}.use_dynamic_bsz {A}.ppo_micro_batch_size_per_gpu",
        lambda s: s.loss in PER_MICRO_BATCH and (s.actor.use_dynamic_bsz or s.micro_rows < 2),
        "the covariance is taken within a micro-batch, and with one response in it this is PPO. "
        f"Set {A}.use_dynamic_bsz=false and {A}.ppo_micro_batch_size_per_gpu to 2 or more (the "
        "same in all runs compared), or use recipe.weights.name=clip_cov, which does not depend on "
        "it.",
    ),
    Rule(
        f"{LOSS} {A}.ppo_mini_batch_size data.train_batch_size",
        lambda s: s.loss == "kl_cov" and s.batch == s.mini and s.actor.ppo_epochs == 1,
        "with one optimizer step per batch |log ratio| is 0 but for rounding, so it has no effect. "
        f"Set {A}.ppo_mini_batch_size below data.train_batch_size.",
    ),
    Rule(
        LOSS,
        lambda s: s.loss == "geo_mean",
        "verl 0.9.1 multiplies this loss by the number of micro-batches. Use method=gmpo, the same "
        "loss with the right scale.",
    ),
    Rule(
        f"{LOSS} {A}.policy_loss._target_",
        lambda s: (
            s.loss in ("gmpo", "vespo", "fipo")
            and not str(s.actor.policy_loss._target_).startswith(f"recipe.algorithms.{s.loss}.")
        ),
        "this loss needs the class of its own file in recipe/algorithms. Use method=gmpo, "
        "vespo or fipo.",
    ),
    Rule(
        f"{LOSS} {A}.loss_agg_mode",
        lambda s: s.loss in ("sapo", "gmpo") and s.actor.loss_agg_mode != "seq-mean-token-mean",
        "this loss takes the mean over responses whatever the mode is. Set "
        f"{A}.loss_agg_mode=seq-mean-token-mean.",
    ),
    Rule(
        f"{A}.loss_agg_mode {A}.loss_scale_factor",
        lambda s: (
            s.actor.loss_agg_mode == "seq-mean-token-sum-norm" and not s.actor.loss_scale_factor
        ),
        "verl would divide by the longest response of each micro-batch. Set "
        f"{A}.loss_scale_factor to data.max_response_length.",
    ),
    Rule(
        f"{R}.calculate_log_probs {CORRECTION}",
        lambda s: corrects(s) and not s.rollout.calculate_log_probs,
        "the correction needs the engine's log-probabilities, and nothing would be corrected. Set "
        f"{R}.calculate_log_probs=true.",
    ),
    Rule(
        f"{CORRECTION}.bypass_mode {CORRECTION}.rollout_is {CORRECTION}.rollout_rs",
        lambda s: s.correction.bypass_mode and (s.correction.rollout_is or s.correction.rollout_rs),
        "bypass_mode takes the engine's log-probabilities as the old ones, and verl 0.9.1's V1 "
        "trainer then ignores the other keys. Unset one or the other.",
    ),
    Rule(
        "recipe.keep_best trainer.test_freq",
        lambda s: s.recipe.keep_best and s.trainer.test_freq <= 0,
        "no checkpoint is validated, so none is the best. Set trainer.test_freq, or "
        "recipe.keep_best=null.",
    ),
]

ALGORITHM = [known_advantage, known_token_weight, known_loss, *REWARD, *CRITIC, *LOSS_RULES]
