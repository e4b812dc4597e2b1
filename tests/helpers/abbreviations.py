"""Abbreviations of sections in the settings of tests: ``{A}.optim.lr``."""

SHORT = {
    "A": "actor_rollout_ref.actor",
    "R": "actor_rollout_ref.rollout",
    "REF": "actor_rollout_ref.ref",
    "MODEL": "actor_rollout_ref.model",
    "C": "algorithm.rollout_correction",
    "LOSS": "actor_rollout_ref.actor.policy_loss.loss_mode",
}
