"""The algorithms, one file each, in float64; the losses and verl_estimators are in verl's types.

Families, in the order in which a step uses them:

    sampling    curriculum; dynamic sampling is `recipe.trainer.replay_buffer`
    rewards     hapo; accuracy, format and overlong penalty are `recipe.rollout.reward`
    advantages  grpo, dr_grpo, rloo, maxrl, seed_grpo, ta_grpo, gdpo, grpo_lead, asym_grpo,
                unlikeliness, sdpo, none, verl_estimators (PPO and verl's others)
    weights     of tokens: cw_grpo, clip_cov, high_entropy, balanced
    losses      gmpo, vespo, fipo; GSPO (LUSPO), CISPO, SAPO, Clip-Cov, KL-Cov and DPPO are verl's
    shared      registry, compute, rollouts (the input), groups, tokens, covariance

`ADVANTAGES`: name -> function (rewards_B, group_B) -> advantages_B. Each returns exactly 0 for
a group of one and for a group of equal rewards, and raises for rewards that are not finite.
Exceptions: unlikeliness also compares likelihoods, sdpo these alone, each token's; grpo_lead,
asym_grpo and gdpo read other columns instead of the rewards. The result depends neither on the
order of rows nor on the ids of groups.

`TOKEN_WEIGHTS`: name -> function (logprobs_BT, advantages_BT, mask_BT, group_B, **settings) ->
weights_BT, which multiply the advantages; 0 where the mask is 0. Statistics are over whole groups
or the whole batch, so micro-batches, padding and data-parallel ranks change nothing.

`recipe.algorithms.registry` registers functions, also those of other packages;
`recipe.algorithms.compute` combines them.
"""

import importlib
import pkgutil

from recipe.algorithms.registry import ADVANTAGES, TOKEN_WEIGHTS

__all__ = ["ADVANTAGES", "TOKEN_WEIGHTS"]

# Losses of the actor. Importing verl takes seconds and fixes the platform, so only the actor's
# processes import them, through `actor.policy_loss._target_`.
IMPORT_VERL = ("gmpo", "vespo", "fipo")

for _module in pkgutil.iter_modules(__path__):
    if _module.name not in IMPORT_VERL:
        importlib.import_module(f"{__name__}.{_module.name}")
