"""What `recipe.train` refuses about algorithms, one reason at a time, and what it lets through."""

import copy
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf
from verl.trainer.ppo import core_algos, rollout_corr_helper
from verl.workers.config import FSDPActorConfig

from recipe.checks.algorithm import GMPO_TARGET, HOMOGENEOUS, REJECTIONS, check_algorithm
from recipe.errors import ConfigError

LOSS = "actor_rollout_ref.actor.policy_loss.loss_mode"
TARGET = "actor_rollout_ref.actor.policy_loss._target_"
MEAN = "actor_rollout_ref.actor.loss_agg_mode"
MICRO = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"
DYNAMIC = "actor_rollout_ref.actor.use_dynamic_bsz"
MINI = "actor_rollout_ref.actor.ppo_mini_batch_size"
NAME, COUNT, N = "recipe.advantage.name", "recipe.rephrasings.count", "actor_rollout_ref.rollout.n"
FORMAT = "recipe.reward.format_weight"
CORRECTION = "algorithm.rollout_correction"
WEIGHTS = "recipe.weights.name"
ENTROPY = "actor_rollout_ref.actor.entropy_coeff"
SEQUENCE = "seq-mean-token-mean"
FILTER = "algorithm.filter_groups.enable"
CLIP = "actor_rollout_ref.actor.clip_ratio"
KL = "algorithm.use_kl_in_reward"


@pytest.fixture(scope="module")
def base(toy_config: Any) -> Any:
    return copy.deepcopy(toy_config)


def check(base: Any, changes: dict[str, Any]) -> None:
    """With `changes`, which are taken back: a copy for each of so large a configuration is slow."""
    before = {key: OmegaConf.select(base, key) for key in changes}
    try:
        for key, value in changes.items():
            OmegaConf.update(base, key, value, force_add=True)
        check_algorithm(base)
    finally:
        for key, value in before.items():
            OmegaConf.update(base, key, value, force_add=True)


TA = {NAME: "ta_grpo", COUNT: 3}

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({NAME: "gae"}, "known are .*grpo"),
    ({"recipe.advantage.group": "row"}, "known are question, rephrasing"),
    ({"recipe.advantage.group": "phrasing"}, "renamed. Set it to rephrasing"),
    ({**TA, "recipe.advantage.group": "rephrasing"}, "normalised per question"),
    (
        {NAME: "ta_grpo_star", COUNT: 3, "recipe.advantage.group": "question"},
        "normalised per rephrasing",
    ),
    ({"algorithm.adv_estimator": "rloo"}, "set recipe.advantage.name"),
    ({"algorithm.norm_adv_by_std_in_grpo": False}, "set recipe.advantage.name"),
    ({N: 1}, "no baseline"),
    ({NAME: "ta_grpo_star", COUNT: 7}, "a group of 1"),
    ({NAME: "ta_grpo"}, "this is GRPO without rephrasings"),
    ({COUNT: 2}, "multiple of"),
    ({**TA, f"{CORRECTION}.bypass_mode": True}, "bypass_mode uses the engine"),
    ({**TA, f"{CORRECTION}.rollout_is": "token"}, "rollout_is uses the engine"),
    ({**TA, f"{CORRECTION}.rollout_rs": "token_k1"}, "rollout_rs uses the engine"),
    ({WEIGHTS: "cosine"}, "known are clip_cov"),
    (
        {WEIGHTS: "gaussian_covariance", "recipe.weights.gaussian_covariance.sigma": "x"},
        "gaussian_covariance",
    ),
    ({WEIGHTS: "clip_cov", "recipe.weights.clip_cov.lower": 9}, "clip_cov: lower="),
    ({WEIGHTS: "gaussian_covariance", LOSS: "kl_cov"}, "its own covariance"),
    ({WEIGHTS: "clip_cov", LOSS: "geo_mean"}, "weights would be lost"),
    ({WEIGHTS: "clip_cov", LOSS: "dro"}, "not proportional"),
    ({LOSS: "clipcov"}, "known are vanilla"),
    ({LOSS: "clip_cov", MICRO: 1}, "within a micro-batch"),
    ({LOSS: "kl_cov", MICRO: 1}, "within a micro-batch"),
    ({LOSS: "clip_cov", DYNAMIC: True}, "within a micro-batch"),
    ({LOSS: "kl_cov", MINI: 16}, "rounding noise"),
    ({LOSS: "geo_mean", MEAN: SEQUENCE, MICRO: 32}, "number of micro-batches"),
    ({LOSS: "gmpo", MEAN: SEQUENCE}, "wants .*actor.policy_loss._target_"),
    ({LOSS: "sapo"}, "ignores .*actor.loss_agg_mode=token-mean"),
    ({LOSS: "gmpo", TARGET: GMPO_TARGET}, "ignores .*actor.loss_agg_mode=token-mean"),
    ({MEAN: "seq-mean-token-sum-norm"}, "loss_scale_factor"),
    (
        {f"{CORRECTION}.bypass_mode": True, f"{CORRECTION}.rollout_is": "token"},
        "then ignores rollout_is",
    ),
    (
        {f"{CORRECTION}.bypass_mode": True, f"{CORRECTION}.loss_type": "reinforce"},
        "then ignores loss_type",
    ),
    (
        {
            f"{CORRECTION}.rollout_is": "token",
            "actor_rollout_ref.rollout.calculate_log_probs": False,
        },
        "nothing is corrected",
    ),
    (
        {LOSS: "mine", "actor_rollout_ref.actor.policy_loss._target_": "nowhere.MyLossConfig"},
        "there is no module nowhere.*PYTHONPATH",
    ),
    ({LOSS: "dro"}, "policy_loss.dro_beta above 0"),
    ({NAME: "none"}, "trains nothing"),
    ({"recipe.rephrasings.ratio": "own"}, "has no use"),
    ({"recipe.advantage.group": "rephrasing"}, "advantage.group=rephrasing without .* has no use"),
    ({NAME: "maxrl", "algorithm.use_kl_in_reward": True}, "algorithm.use_kl_in_reward rewards"),
    ({NAME: "maxrl", "recipe.reward.overlong.enable": True}, "overlong.enable rewards can be"),
    ({NAME: "maxrl", "recipe.history.enable": True}, "history.enable rewards can be negative"),
    ({NAME: "maxrl"}, "rewards wrong ones too: set recipe.reward.format_weight=0"),
    ({NAME: "none", ENTROPY: 0.1, WEIGHTS: "clip_cov"}, "weights.name=clip_cov then has no effect"),
    ({NAME: "none", ENTROPY: 0.1, "recipe.history.enable": True}, "history.enable then has no"),
    ({NAME: "none", ENTROPY: 0.1, FILTER: True}, "filter_groups.enable then has no effect"),
    ({NAME: "none", ENTROPY: 0.1, KL: True}, "use_kl_in_reward then has no effect"),
    ({CLIP: 0.3}, "clip_ratio=0.3 has no effect"),
    ({LOSS: "dppo_tv", CLIP: 0.3}, "clip_ratio=0.3 has no effect"),
    ({LOSS: "dppo_kl", CLIP: 0.3}, "clip_ratio=0.3 has no effect"),
    ({f"{CORRECTION}.rollout_is": "tokens"}, "known are token, sequence"),
    ({f"{CORRECTION}.rollout_rs": "token_k1"}, "wants .*rollout_rs_threshold"),
    (
        {f"{CORRECTION}.rollout_rs": "token_k1,seq_k1", f"{CORRECTION}.rollout_rs_threshold": 2.0},
        "rollout_rs=seq_k1: known are token_k1",
    ),
    ({"recipe.one_question": 0, "recipe.curriculum.enable": True}, "nothing to choose from"),
    (
        {
            "algorithm.filter_groups.enable": True,
            "algorithm.filter_groups.metric": "reward",
            "recipe.curriculum.enable": True,
        },
        "metric=acc",
    ),
    (
        {"algorithm.filter_groups.enable": True, "recipe.history.enable": True},
        "throws away",
    ),
    (
        {"algorithm.filter_groups.enable": True, "algorithm.filter_groups.metric": "score"},
        "known are acc",
    ),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSED, ids=lambda v: str(v)[:60])
def test_refused_with_the_reason(base: Any, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        check(base, changes)


ALLOWED: list[dict[str, Any]] = [
    {},
    *({NAME: name} for name in ("dr_grpo", "rloo")),
    {NAME: "maxrl", FORMAT: 0.0},
    {NAME: "maxrl", "recipe.reward.format_gated": True},
    {NAME: "none", ENTROPY: 0.001},
    {LOSS: "mine", "actor_rollout_ref.actor.policy_loss._target_": "json.decoder.Mine"},  # is there
    {NAME: "none", "actor_rollout_ref.actor.use_kl_loss": True},
    {LOSS: "dro", "actor_rollout_ref.actor.policy_loss.dro_beta": 0.1},
    {LOSS: "gspo", f"{CORRECTION}.bypass_mode": True},
    {LOSS: "dppo_tv", CLIP: 0.3, f"{CLIP}_low": None, f"{CLIP}_high": None},
    {f"{CORRECTION}.rollout_rs": "token_k2, seq_max_k3", f"{CORRECTION}.rollout_rs_threshold": 2.0},
    {CLIP: 0.3, f"{CLIP}_low": None, f"{CLIP}_high": None},
    TA,
    {NAME: "ta_grpo_star", COUNT: 3, "recipe.rephrasings.ratio": "own"},
    {NAME: "ta_grpo_star", COUNT: 3},  # the corner: anchored ratio, normalised per rephrasing
    {**TA, "recipe.rephrasings.ratio": "own", f"{CORRECTION}.rollout_is": "token"},
    {NAME: "rloo", COUNT: 3, "recipe.advantage.group": "rephrasing"},
    *(
        {**TA, WEIGHTS: weights, LOSS: loss, MEAN: SEQUENCE}
        for weights in ("gaussian_covariance", "clip_cov")
        for loss in HOMOGENEOUS
    ),
    {LOSS: "clip_cov"},
    {LOSS: "kl_cov"},
    {LOSS: "geo_mean", MEAN: SEQUENCE, MICRO: 64},
    {LOSS: "gmpo", MEAN: SEQUENCE, TARGET: GMPO_TARGET, DYNAMIC: True},
    {MEAN: "seq-mean-token-sum-norm", "actor_rollout_ref.actor.loss_scale_factor": 80},
    {"algorithm.filter_groups.enable": True, "recipe.dynamic_sampling.on_exhausted": "stop"},
    {N: 1, NAME: "none", ENTROPY: 0.001},
]


@pytest.mark.parametrize("changes", ALLOWED, ids=lambda v: str(v)[:60])
def test_what_makes_sense_together_is_let_through(base: Any, changes: dict[str, Any]) -> None:
    check(base, changes)


def test_the_rejections_are_all_that_verl_knows() -> None:
    assert set(REJECTIONS) == rollout_corr_helper.SUPPORTED_ROLLOUT_RS_OPTIONS


@pytest.mark.parametrize("mode", ["dppo_tv", "dppo_kl"])
def test_dppo_reads_its_threshold_only_where_there_are_no_two_bounds(mode: str) -> None:
    """verl's own losses, of a token whose probability went from 0.5 to 0.65 at an advantage of 1.

    Total variation 0.15, divergence of the two outcomes 0.046: above 0.01, below 0.2.
    """
    old, new = torch.tensor([[0.5]]).log(), torch.tensor([[0.65]]).log()
    ones = torch.ones(1, 1)

    def clipped(low: float | None, high: float | None) -> float:
        actor = FSDPActorConfig(
            strategy="fsdp", rollout_n=2, ppo_micro_batch_size_per_gpu=1, clip_ratio=0.01,
            clip_ratio_low=low, clip_ratio_high=high,
        )  # fmt: skip
        loss = core_algos.get_policy_loss_fn(mode)
        _, metrics = loss(old, new, ones, ones, "token-mean", actor)
        return float(metrics["actor/pg_clipfrac"])

    assert (clipped(0.2, 0.2), clipped(None, None)) == (0.0, 1.0)
