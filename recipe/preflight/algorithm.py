"""Rules about algorithms: reject combinations in which a part has no effect or another meaning."""

import importlib
import warnings
from collections.abc import Iterator

from recipe.algorithms import ADVANTAGES, TOKEN_WEIGHTS
from recipe.algorithms.compute import group_of
from recipe.config.compose import one_line
from recipe.preflight.data import paths_of
from recipe.preflight.rules import SHORT, Check, Rule, Setup, table

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
    with warnings.catch_warnings(action="ignore"):  # of each engine that is not installed
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


ALGORITHM: list[Check] = [
    known_advantage,
    known_token_weight,
    own_loss,
    *table("algorithm"),
    Rule(
        "recipe.advantage.name recipe.advantage.group",
        lambda s: s.facts.group and group_of(s.recipe.advantage) != s.facts.group,
        "this advantage is normalized per {s.facts.group}. Leave recipe.advantage.group null, or "
        "set recipe.advantage.name=grpo with the group you want.",
    ),
    Rule(
        "recipe.curriculum.value_model critic.enable",
        lambda s: s.value_model and not (s.critic and s.curriculum.enable),
        "the value model is the critic of a curriculum. Set critic.enable=true and "
        "recipe.curriculum.enable=true.",
    ),
    Rule(
        "{R}.n recipe.rephrasings.count",
        lambda s: s.rollout.n % (s.rephrasings + 1),
        "the question and each rephrasing get the same number of responses. Set {R}.n to a "
        "multiple of recipe.rephrasings.count + 1.",
    ),
    Rule(
        "recipe.weights.name {LOSS}",
        lost_weights,
        "{found}. Use one of " + ", ".join(HOMOGENEOUS) + ", or recipe.weights.name=none.",
    ),
    Rule(
        "{LOSS}",
        lambda s: s.loss and s.loss not in LOSSES,
        f"unknown. Known are {', '.join(LOSSES)}.",
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
        "{A}.clip_ratio {A}.clip_ratio_low {A}.clip_ratio_high",
        lambda s: (
            s.loss
            and None not in ((low := s.actor.clip_ratio_low), (high := s.actor.clip_ratio_high))
            and s.actor.clip_ratio not in (0.2, low, high)
        ),
        "no effect beside the other two, which verl reads first. Set those two.",
    ),
    Rule(
        "{C}.rollout_rs",
        lambda s: ", ".join(unknown_rejections(s)),
        "unknown: {found}. Known are " + ", ".join(REJECTIONS) + ". Older versions of verl call "
        "token_k1, seq_sum_k1 and seq_mean_k1 token, sequence and geometric.",
    ),
]
