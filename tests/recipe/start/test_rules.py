"""The rules: each refuses what it names, and combinations that make sense pass."""

import copy
import inspect
import sys
from pathlib import Path
from typing import Any, get_args
from unittest import mock

import pytest
import ray
import torch
import transfer_queue
from composed import SHORT, changed, composed
from omegaconf import OmegaConf
from verl.trainer.ppo import core_algos

from recipe.config import verl_types
from recipe.config.verl import NO_GRADIENT_KL
from recipe.machine import host
from recipe.machine.shapes import LAYERS
from recipe.run.folder import RunFolder
from recipe.start import attention, checks, functions
from recipe.start.algorithm import ALGORITHM, HOMOGENEOUS, on_policy, uncorrected
from recipe.start.engine import ENGINE, adapted, sixteen_bits
from recipe.start.functions import names_exist
from recipe.start.resume import same_run
from recipe.start.rules import Check, Setup, messages
from recipe.trainer import task_runner

GMPO_TARGET = "recipe.algorithms.gmpo.GMPOLossConfig"
OWN_CLASS = {"vespo", "fipo"}
SEQUENCE = "{A}.loss_agg_mode=seq-mean-token-mean"
GMPO = f"{{LOSS}}=gmpo {SEQUENCE} {{A}}.policy_loss._target_={GMPO_TARGET}"
NONE = "recipe.advantage.name=none {A}.entropy_coeff=0.1"
GAE = "recipe.advantage.name=verl:gae"
PCL = "recipe.curriculum.enable=true recipe.curriculum.value_model=true critic.enable=true"
MAXRL = "recipe.advantage.name=maxrl recipe.reward.format_weight=0"
SDPO = "recipe.advantage.name=sdpo recipe.reward.format_weight=0"
VERIFIER = "recipe.reward.verifiers.toy=my_module.check"
TA = "recipe.advantage.name=ta_grpo recipe.rephrasings.count=3"
STAR = "recipe.advantage.name=ta_grpo_star recipe.rephrasings.count=3"
FILTER = "algorithm.filter_groups.enable=true"
WEIGHTS = "recipe.weights.name=clip_cov"
RS = "{C}.rollout_rs=token_k1 {C}.rollout_rs_threshold=0.5_2.0"
WITHOUT_BOUNDS = "{A}.clip_ratio_low=null {A}.clip_ratio_high=null"


@pytest.fixture(scope="module")
def toy(toy_config: Any) -> Any:
    return copy.deepcopy(toy_config)


EVERY = [check for theme in checks.SETTINGS.values() for check in theme]


def errors(config: Any, changes: str, theme: list[Check] = EVERY) -> list[str]:
    """The messages about a configuration with changes ``key=value key=value``."""
    with changed(config, changes.format(**SHORT).split()):
        return messages(theme, Setup(config))


# (changes, words of one message)
REFUSED = [
    ("recipe.advantage.name=ta_grpo", "recipe.advantage.name recipe.rephrasings.count"),
    (f"{TA} {{C}}.bypass_mode=true", "recipe.rephrasings.ratio {C}"),
    (f"{WEIGHTS} recipe.weights.clip_cov.lower=9", "recipe.weights.clip_cov"),
    ("recipe.weights.name=gaussian_covariance {LOSS}=kl_cov", "recipe.weights.name {LOSS}=kl_cov"),
    ("{LOSS}=clip_cov {A}.ppo_micro_batch_size_per_gpu=1", "{LOSS}=clip_cov"),
    ("{A}.use_kl_loss=true {A}.kl_loss_type=k1", "{A}.kl_loss_type=k1"),
    ("{A}.use_kl_loss=true {A}.kl_loss_type=kl", "{A}.kl_loss_type=kl"),
    ("{LOSS}=kl_cov {A}.ppo_mini_batch_size=16", "{A}.ppo_mini_batch_size"),
    ("{LOSS}=geo_mean", "method=gmpo"),
    (f"{{LOSS}}=gmpo {{A}}.policy_loss._target_={GMPO_TARGET}", "{LOSS}=gmpo {A}.loss_agg_mode"),
    ("{A}.loss_agg_mode=seq-mean-token-sum-norm", "{A}.loss_scale_factor"),
    ("{C}.bypass_mode=true {C}.rollout_is=token", "{C}.bypass_mode rollout_is"),
    ("{C}.rollout_is=token {R}.calculate_log_probs=false", "{R}.calculate_log_probs"),
    ("{LOSS}=mine {A}.policy_loss._target_=nowhere.Mine", "{A}.policy_loss._target_=nowhere.Mine"),
    ("recipe.advantage.name=none", "{A}.entropy_coeff {A}.use_kl_loss"),
    (f"{SDPO} {VERIFIER}", "sdpo recipe.reward.verifiers"),
    (f"recipe.advantage.name=gdpo {VERIFIER}", "gdpo recipe.reward.verifiers"),
    ("recipe.advantage.name=gdpo recipe.reward.format_weight=0.3", "arguments.format_weight"),
    ("recipe.advantage.name=gdpo recipe.reward.format_weight=0", "arguments.format_weight"),
    ("recipe.advantage.name=verl:gdpo recipe.reward.format_weight=0", "gdpo_reward_weights"),
    *(
        (f"recipe.advantage.name=verl:gdpo recipe.advantage.arguments.{argument}", "gdpo_reward")
        for argument in (
            "gdpo_reward_weights=[0,1]",
            "gdpo_reward_weights=[1]",
            "gdpo_reward_weights=2",
            "gdpo_reward_keys=[format,accuracy]",
        )
    ),
    (f"recipe.curriculum.enable=true {FILTER} algorithm.filter_groups.metric=reward", "pass rate"),
    ("{LOSS}=vespo {C}.rollout_is=token {C}.rollout_is_threshold=0.5_5.0", "outside the band"),
    (f"{GMPO} {GAE} critic.enable=true", "{LOSS}=gmpo recipe.advantage.name=verl:gae"),
    (f"{FILTER} recipe.advantage.name=grpo_lead recipe.reward.format_weight=0", "all right"),
    ("{LOSS}=vespo {C}.rollout_is=sequence", "{LOSS}=vespo {C}.rollout_is=sequence"),
    (f"recipe.weights.name=balanced {SEQUENCE}", "recipe.weights.name=balanced {A}.loss_agg_mode"),
    ("recipe.advantage.name=maxrl", "maxrl recipe.reward.format_weight"),
    (f"{NONE} {WEIGHTS}", "recipe.advantage.name recipe.weights.name"),
    (GAE, "recipe.advantage.name=verl:gae critic.enable"),
    ("recipe.curriculum.value_model=true", "recipe.curriculum.value_model critic.enable"),
    (f"{PCL} {FILTER}", "recipe.curriculum.value_model algorithm.filter_groups.enable"),
    (f"{GAE} critic.enable=true algorithm.use_kl_in_reward=true", "algorithm.use_kl_in_reward"),
    (f"{FILTER} recipe.history.enable=true", "recipe.history.enable algorithm.filter_groups"),
    ("recipe.keep_best=val/t/accuracy trainer.test_freq=-1", "recipe.keep_best trainer.test_freq"),
    ("{A}.clip_ratio=0.4", "{A}.clip_ratio=0.4 {A}.clip_ratio_low=0.2"),
    *(
        (f"{{C}}.rollout_is=token {cut}", f"{cut} {{C}}")
        for cut in ("{R}.top_k=2", "{R}.top_p=0.9")
    ),
    ("{C}.bypass_mode=true {R}.top_p=0.9", "{R}.top_p=0.9 {C}"),
    ("{C}.rollout_is=token {C}.rollout_is_threshold=null", "{C}.rollout_is=token threshold=null"),
    *(
        (f"{{C}}.{key}={value} {more}", f"{{C}}.{key}={value}")
        for key, value, more in (
            ("rollout_is_threshold", "5.0_0.5", "{C}.rollout_is=token"),
            ("rollout_rs", "token_k1", ""),
            ("rollout_rs", "geometric", "{C}.rollout_rs_threshold=2"),
            ("rollout_rs_threshold", "0.5_5.0", "{C}.rollout_rs=token_k2"),
        )
    ),
    ("{LOSS}=dro", "{A}.policy_loss.dro_beta=null"),
    ("algorithm.use_kl_in_reward=true algorithm.kl_penalty=k3", "algorithm.kl_penalty=k3 k1"),
    ("recipe.advantage.name=verl:gpg", "recipe.advantage.name=verl:gpg"),
    (f"recipe.advantage.name=unlikeliness {RS}", "recipe.advantage.name=unlikeliness {C}"),
    (f"recipe.weights.name=high_entropy {RS}", "recipe.weights.name=high_entropy {C}"),
    ("{LOSS}=vespo {C}.rollout_is=token {C}.rollout_is_batch_normalize=true", "batch_normalize"),
]
ALLOWED_ALGORITHM = [
    "",
    "recipe.advantage.name=verl:reinforce_plus_plus {R}.n=1",
    "recipe.advantage.name=verl:gdpo recipe.reward.format_weight=2 "
    "recipe.advantage.arguments.gdpo_reward_weights=[1,2]",
    "recipe.advantage.name=verl:gdpo recipe.reward.format_weight=0.1 "
    "recipe.advantage.arguments.gdpo_reward_weights=[3,0.3]",
    "{A}.use_kl_loss=true {A}.kl_loss_type=k1+",
    "algorithm.use_kl_in_reward=true algorithm.kl_penalty=k1",
    PCL,
    MAXRL,
    SDPO,
    NONE,
    VERIFIER,
    f"{{LOSS}}=dppo_tv {{A}}.clip_ratio=0.3 {WITHOUT_BOUNDS}",
    "{LOSS}=dro {A}.policy_loss.dro_beta=1.0",
    f"{RS} {{C}}.rollout_is=token",
    "{A}.clip_ratio=0.3 {A}.clip_ratio_low=0.3",
    "{C}.rollout_is=token {R}.top_p=0.9 {R}.logprobs_mode=raw_logprobs",
    "{R}.top_p=0.9",  # nothing compares the engine's probabilities
    STAR,  # the corner: anchored ratio, normalized per rephrasing
    f"{TA} recipe.rephrasings.ratio=own {{C}}.rollout_is=token",
    f"{TA} recipe.weights.name=clip_cov {{LOSS}}={min(set(HOMOGENEOUS) - OWN_CLASS)} {SEQUENCE}",
    "{LOSS}=clip_cov",
    f"{{LOSS}}=gmpo {SEQUENCE} {{A}}.policy_loss._target_={GMPO_TARGET} {{A}}.use_dynamic_bsz=true",
    "{A}.loss_agg_mode=seq-mean-token-sum-norm {A}.loss_scale_factor=80",
    "recipe.keep_best=val/t/accuracy trainer.test_freq=1",
]

DYNAMIC = "{A}.use_dynamic_bsz=true {R}.log_prob_use_dynamic_bsz=true"
ACTOR_TOKENS, TOKENS = "{A}.ppo_max_token_len_per_gpu", "log_prob_max_token_len_per_gpu"
# The toy's longest sequence has 160 + 80 tokens: half of it fits where two ranks share it.
HALVES = f"{DYNAMIC} {{REF}}.log_prob_use_dynamic_bsz=true"
HALVES += f" {ACTOR_TOKENS}=120 {{R}}.{TOKENS}=120 {{REF}}.{TOKENS}=120"
REF_ULYSSES = "{REF}.fsdp_config.ulysses_sequence_parallel_size=2"
TWO_GPUS = "trainer.n_gpus_per_node=2 {A}.use_kl_loss=true {A}.ppo_micro_batch_size_per_gpu=32"
TWO_GPUS += " {R}.log_prob_micro_batch_size_per_gpu=64 {REF}.log_prob_micro_batch_size_per_gpu=128"
ATTENTION = "{MODEL}.override_config.attn_implementation"
SOFT_CAP = "{MODEL}.override_config.attn_logit_softcapping"
PRODUCTS = "{A}.fsdp_config.mixed_precision.param_dtype"
ROUNDED = "{A}.optim.override_optimizer_config={{bf16_stochastic_round:true}}"
OWN_LOOP = "{R}.agent.default_agent_loop=mine {R}.agent.agent_loop_config_path=loops.yaml"

REFUSED += [  # found by a call on a trial batch
    (f"recipe.{section}.name={name} recipe.{section}.arguments.{value}", f"{name} {value}")
    for section, name, value in (
        ("advantage", "seed_grpo", "alpha=2"),
        ("weights", "high_entropy", "ratio=2"),
    )
]
REFUSED += [  # verl and its engines
    ("{R}.max_model_len=239", "{R}.max_model_len=239 recipe.rollout.joint_limit"),
    (f"{DYNAMIC} {ACTOR_TOKENS}=239", ACTOR_TOKENS),
    (
        "trainer.n_gpus_per_node=6 trainer.nnodes=2 {R}.tensor_model_parallel_size=4",
        "{R}.tensor_model_parallel_size=4 nodes",
    ),
    ("trainer.n_gpus_per_node=4 {A}.fsdp_config.fsdp_size=3", "{A}.fsdp_config.fsdp_size=3 4 GPUs"),
    # verl's new key of the actor does not hold for the reference model, the old one does.
    (
        f"trainer.n_gpus_per_node=2 {HALVES} {{A}}.fsdp_config.ulysses_sequence_parallel_size=2 "
        "{A}.use_kl_loss=true",
        f"{{REF}}.{TOKENS}",
    ),
    (TWO_GPUS, "{REF}.log_prob_micro_batch_size_per_gpu 64"),
    ("trainer.n_gpus_per_node=3", "64 trainer.n_gpus_per_node 3"),
    # The toy's batch has 8 questions; verl would pad it to 24 for the critic's mini-batches of 3.
    (f"{PCL} critic.ppo_mini_batch_size=3", "critic.ppo_mini_batch_size=3 padding"),
    (
        f"{GAE} critic.enable=true critic.fsdp.ulysses_sequence_parallel_size=2",
        "critic.fsdp.ulysses_sequence_parallel_size=2 rows",
    ),
    (f"{PCL} critic.grad_clip=0.1", "critic.grad_clip=0.1 critic.optim.clip_grad"),
    ("{R}.val_kwargs.n=8", "{R}.val_kwargs.n=8 {R}.val_kwargs.temperature=0"),
    ("{A}.use_kl_loss=true {REF}.log_prob_use_dynamic_bsz=true", "{REF}.log_prob_use_dynamic_bsz"),
    ("{R}.log_prob_use_dynamic_bsz=true", "{A}.use_dynamic_bsz {R}.log_prob_use_dynamic_bsz"),
    ("algorithm.adv_estimator=rloo", "algorithm.adv_estimator=rloo recipe.advantage.name"),
    ("{R}.engine_kwargs.vllm.max_model_len=100", "{R}.engine_kwargs.vllm max_model_len=100"),
    (f"{TWO_GPUS} {REF_ULYSSES}", f"attn_implementation=sdpa {REF_ULYSSES}"),
    (f"{TWO_GPUS} {REF_ULYSSES} {ATTENTION}=null", "null " + REF_ULYSSES),
    # The toy has 4 heads and 4096 positions.
    (
        "trainer.n_gpus_per_node=3 {REF}.fsdp_config.ulysses_sequence_parallel_size=3 "
        "{A}.use_kl_loss=true",
        "sequence_parallel_size=3 4 heads",
    ),
    ("trainer.n_gpus_per_node=3 {R}.tensor_model_parallel_size=3", "parallel_size=3 4 heads"),
    ("{R}.max_model_len=4097", "{R}.max_model_len=4097 4096 positions"),
    ("data.max_response_length=5000 recipe.rollout.joint_limit=false", "4096 positions"),
    ("{MODEL}.override_config.max_position_embeddings=64", "64 positions"),
    (f"{ATTENTION}=flash_attention_2", "attn_implementation flash-attn kernels"),
    (f"{ATTENTION}=flash_attention_3", "attn_implementation flash-attn-3 kernels"),
    (f"{ATTENTION}=kernels-community/flash-attn2", "attn_implementation kernels"),
    (f"{ATTENTION}=no_such_attention", "attn_implementation unknown"),
    (f"{ATTENTION}=2", "attn_implementation unknown"),
    (f"{ATTENTION}=false", "attn_implementation unknown"),
    (f"{ATTENTION}=torch_varlen", "attn_implementation trainer.device=cpu"),
    ("recipe.run_dir='~/runs/x'", "recipe.run_dir=~/runs/x $HOME"),
    (f"{SOFT_CAP}=50", f"{ATTENTION}=sdpa attn_logit_softcapping=50"),
    ("{MODEL}.override_config.rope_theta=50000", "{MODEL}.override_config.rope_theta engine"),
    ("{MODEL}.override_config.attention_dropout=0.1", "attention_dropout=0.1 ratios"),
    (f"{PRODUCTS}=float16", f"{PRODUCTS}=float16"),
    ("data.mm_processor_kwargs={{size:3}}", "data.mm_processor_kwargs"),  # no key of verl's yaml
    (f"{PCL} critic.checkpoint.save_contents=[model]", "critic.checkpoint.save_contents optimizer"),
]
ALLOWED_ENGINE = [
    "",
    "{R}.max_model_len=240",
    f"{TWO_GPUS} {REF_ULYSSES} {{A}}.use_kl_loss=false",  # no reference model
    f"{ATTENTION}=flex_attention",
    "{MODEL}.override_config.attention_dropout=0.0",
    f"{ATTENTION}=null",
    "{R}.val_kwargs.n=8 {R}.val_kwargs.temperature=1",
    "{R}.max_model_len=161 recipe.rollout.joint_limit=true",
    f"{ACTOR_TOKENS}=239 {{R}}.{TOKENS}=239",  # not read with fixed sizes
    f"{DYNAMIC} {ACTOR_TOKENS}=240 {{R}}.{TOKENS}=240",
    f"{FILTER} data.gen_batch_size=1",
    "global_profiler.steps=[2] global_profiler.tool=torch {A}.profiler.enable=true",
    OWN_LOOP,
]

ASYNC = "trainer.v1.trainer_mode=recipe_colocate_async"
SEPARATE = "trainer.v1.trainer_mode=recipe_separate_async {R}.nnodes=1"
ALLOWED_ENGINE += [
    *(ASYNC, f"{ASYNC} data.gen_batch_size=1 {FILTER}", SEPARATE),
    f"{SEPARATE} {{R}}.n_gpus_per_node=2 {{R}}.tensor_model_parallel_size=2",
]
ALLOWED_ALGORITHM += [
    f"{ASYNC} {TA} trainer.v1.colocate_async.num_warmup_batches=0",
    f"{ASYNC} {TA} recipe.rephrasings.ratio=own",
]
REFUSED += [
    *(
        (f"{mode} {TA}", "recipe.rephrasings.ratio num_warmup_batches=0")
        for mode in (ASYNC, SEPARATE)
    ),
    ("trainer.v1.trainer_mode=separate_async", "trainer_mode=separate_async recipe_colocate_async"),
    (f"{SEPARATE} {{R}}.nnodes=0", "{R}.nnodes=0 {R}.n_gpus_per_node"),
    (f"{SEPARATE} {{R}}.checkpoint_engine.backend=nccl", "nccl cupy"),
    (f"{SEPARATE} {{R}}.tensor_model_parallel_size=2", "the 1 GPUs of the engines"),
    (f"{ASYNC} data.gen_batch_size=4", "data.gen_batch_size=4 trainer.v1.trainer_mode"),
    (f"{ASYNC} skip.rollout_tq.enable=true", "skip.rollout_tq.enable trainer.v1.trainer_mode"),
    # The default in this mode; see test_compose.py.
    (f"{ASYNC} {TA} {{C}}.rollout_is=token", "recipe.rephrasings.ratio {C} rollout_is=null"),
]

REFUSED += [("{A}.strategy=fsdp", "trainer.device=cpu {A}.strategy=fsdp2")]
LORA = "{MODEL}.lora_rank=8 {MODEL}.lora.merge=true "
REFUSED += [
    (f"{LORA}{change}", f"{change.partition('=')[0]} {named}")
    for change, named in (
        ("{MODEL}.target_modules=[qkv_proj]", "unknown are qkv_proj"),
        (f"{{MODEL}}.exclude_modules=[{','.join(LAYERS)}]", "no layer is left"),
        ("{MODEL}.exclude_modules=v_proj", "pattern"),
        ("{MODEL}.lora.merge=false", "{MODEL}.lora.merge=true"),
        ("{A}.strategy=fsdp", "LoRA {A}.strategy=fsdp2"),
        ("{A}.fsdp_config.model_dtype=bf16", "{A}.fsdp_config.model_dtype=fp32"),
    )
]


@pytest.mark.parametrize(("changes", "named"), REFUSED, ids=lambda v: v[:60])
def test_refused(toy: Any, changes: str, named: str) -> None:
    refused, words = errors(toy, changes), named.format(**SHORT).split()
    assert any(all(word in message for word in words) for message in refused), refused


@pytest.mark.parametrize(
    ("theme", "changes"),
    [(ALGORITHM, case) for case in ALLOWED_ALGORITHM] + [(ENGINE, case) for case in ALLOWED_ENGINE],
    ids=lambda v: v[:60] if isinstance(v, str) else "",
)
def test_allowed(toy: Any, theme: list[Check], changes: str) -> None:
    assert errors(toy, changes, theme) == []


@pytest.mark.parametrize(
    ("changes", "notes"), [(ASYNC, 1), (f"{ASYNC} {{C}}.rollout_is=token", 0), ("", 0)]
)
def test_stale_rollouts_without_a_correction_are_noted(toy: Any, changes: str, notes: int) -> None:
    """`toy` is composed without the mode, so its correction is off."""
    assert len(errors(toy, changes, [uncorrected])) == notes


@pytest.mark.parametrize(
    ("changes", "notes"),
    [
        ("{LOSS}=gspo", 0),  # two mini-batches
        ("{LOSS}=gspo {A}.ppo_mini_batch_size=16", 1),
        ("{LOSS}=vanilla {A}.ppo_mini_batch_size=16", 0),
        ("{LOSS}=vespo {A}.ppo_mini_batch_size=16 {C}.rollout_is=token", 0),
        ("{LOSS}=gspo {A}.ppo_mini_batch_size=16 {C}.bypass_mode=true", 0),
        # The old log-probabilities are of the step's start, under the same prompt.
        (f"{{LOSS}}=gspo {{A}}.ppo_mini_batch_size=16 {TA}", 1),
        ("{LOSS}=gspo {A}.ppo_mini_batch_size=16 {C}.rollout_is=token", 1),
    ],
)
def test_losses_that_differ_by_their_ratio_alone_are_noted(
    toy: Any, changes: str, notes: int
) -> None:
    assert len(errors(toy, changes, [on_policy])) == notes


@pytest.mark.parametrize(
    ("changes", "notes"),
    [
        ("", 0),
        ("{A}.fsdp_config.model_dtype=bf16", 1),
        (f"{{A}}.fsdp_config.model_dtype=bf16 {ROUNDED}", 0),
    ],
)
def test_weights_of_16_bits_are_noted(toy: Any, changes: str, notes: int) -> None:
    assert len(errors(toy, changes, [sixteen_bits])) == notes


OWN = """
from recipe.algorithms.registry import advantage, token_weight

@advantage(inputs=("values_BT",))
def by_value(rewards_B, group_B, *, values_BT):
    return rewards_B[:, None] - values_BT

@token_weight(inputs=("entropy_BT",))
def by_entropy(logprobs_BT, advantages_BT, mask_BT, group_B, *, entropy_BT):
    return mask_BT * entropy_BT.abs()

@advantage(inputs=("sources", "parts", "templates"))
def by_source(rewards_B, group_B, *, sources, parts, templates):
    rates = {"sums": 2.0}
    return rewards_B.clone().apply_(lambda x: x * rates[sources[0]] + parts[0]["score"])

def check(response, gold, row): return 1.0

def scaled(rewards_B, group_B, *, scale): return scale * rewards_B
"""
OWN_LOSS = """
import torch
from dataclasses import dataclass
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.workers.config import PolicyLossConfig

@dataclass
class Mine(PolicyLossConfig):
    alpha: float = 1.0

def mine(log_prob, advantages, **rest):
    return -(log_prob * advantages).mean(), {"kl": 0.0}

POLICY_LOSS_REGISTRY["mine"] = mine
POLICY_LOSS_REGISTRY["named"] = lambda old, new, weights=None: None
POLICY_LOSS_REGISTRY["alone"] = lambda log_prob, **rest: log_prob.mean()
def of_mask(loss):
    return lambda log_prob, response_mask, rollout_is_weights, **rest: (
        loss(log_prob, response_mask, rollout_is_weights).mean(), {})

POLICY_LOSS_REGISTRY["selects"] = of_mask(lambda x, mask, w: x.clamp_(-1)[mask])
POLICY_LOSS_REGISTRY["weighted"] = of_mask(lambda x, mask, w: x * w)
POLICY_LOSS_REGISTRY["elsewhere"] = of_mask(lambda x, mask, w: x.to("cuda"))
POLICY_LOSS_REGISTRY["constant"] = of_mask(lambda x, mask, w: x.detach())
POLICY_LOSS_REGISTRY["steep"] = of_mask(lambda x, mask, w: (x - x.detach()).abs().sqrt())
POLICY_LOSS_REGISTRY["rows"] = lambda log_prob, **rest: (log_prob.mean(), {"kl": log_prob})
"""
ESTIMATOR = "from verl.trainer.ppo import core_algos\ncore_algos.register_adv_est('mine')({})\n"
MODULES = {
    "own": OWN,
    "own_loss": OWN_LOSS,
    "own_estimator": ESTIMATOR.format("core_algos.get_adv_estimator_fn('grpo')"),
    "own_boom": "raise ValueError('boom')",
}


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules of the user, in the PYTHONPATH."""
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.delitem(sys.modules, name, raising=False)
    for name in ("ADV_ESTIMATOR_REGISTRY", "POLICY_LOSS_REGISTRY"):
        monkeypatch.setattr(core_algos, name, {**getattr(core_algos, name)})


MINE = "recipe.advantage.name=own."
WEIGHT = "recipe.weights.name=own."
ESTIMATORS = "{MODEL}.external_lib=[own_estimator,recipe.actor.engine]"
LOSS = "{LOSS}=mine {A}.policy_loss._target_=own_loss"


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        # inputs that the run does not compute
        (f"{MINE}by_value", "values_BT is None"),
        (f"{WEIGHT}by_entropy", None),
        (f"{WEIGHT}by_entropy {{C}}.bypass_mode=true", "entropy_BT is None"),
        # arguments and results
        (f"{MINE}scaled recipe.advantage.arguments={{{{scale:inf}}}}", "NaN or infinite"),
        (f"{MINE}scaled recipe.advantage.arguments={{{{scale:2.0}}}}", None),
        # names and modules
        (f"{MINE}gone", "no function gone"),
        ("recipe.advantage.name=own_boom.f", "own_boom cannot be imported (ValueError: boom"),
        (
            "recipe.advantage.name=verl:mine {MODEL}.external_lib=own_estimator",
            "trainer.device=cpu",
        ),
        (f"recipe.advantage.name=verl:mine {ESTIMATORS}", None),
        # columns of its own templates, sources and results
        (f"{MINE}by_source recipe.reward.verifiers.sums=own.check", None),
        (f"{LOSS}.Mine {{A}}.policy_loss.alpha=2", None),
        (f"{LOSS}.Mine {{A}}.policy_loss.alhpa=2", "alhpa"),
        (f"{LOSS}.Mine {{LOSS}}=named", "argument 'old_log_prob'"),
        (f"{LOSS}.Mine {{LOSS}}=alone", "iteration over a 0-d tensor"),
        (f"{LOSS}.Mine {{LOSS}}=rows", "is not one number"),
        (f"{LOSS}.Mine {{LOSS}}=constant", None),  # noted: it may select tokens
        (f"{LOSS}.Mine {{A}}.clip_ratio=0.4", None),  # which it may read
        (f"{LOSS}.Mine {{LOSS}}=steep", "NaN or infinite"),
        (f"{LOSS}.Mine {{LOSS}}=selects", None),
        (f"{LOSS}.Mine {{LOSS}}=weighted {{C}}.rollout_is=token", None),
        (f"{LOSS}.Mine {{LOSS}}=elsewhere", None),  # noted: it may need other processes
        ("{A}.policy_loss._target_=own_loss.Mine", "has no effect"),  # loss_mode is vanilla
    ],
)
def test_what_a_user_wrote_is_imported_and_called_once(
    toy: Any, changes: str, named: str | None
) -> None:
    refused = errors(toy, changes)
    wanted = [] if named is None else [named.format(**SHORT)]
    assert len(refused) == len(wanted) and all(text in refused[0] for text in wanted), refused


def test_a_kl_loss_without_a_gradient_is_refused_and_no_other() -> None:
    """The expectation over all tokens, by hand: sum of p times the gradient of verl's estimator."""
    logits = torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.1, 0.2, 0.7], dtype=torch.float64).log()
    without = set()
    for name in get_args(verl_types.KLType):
        logprobs = logits.log_softmax(0)
        loss = (logprobs.exp().detach() * core_algos.kl_penalty(logprobs, reference, name)).sum()
        (gradient,) = torch.autograd.grad(loss, logits)
        without |= {name} if gradient.abs().max() < 1e-12 else set()
    assert without == set(NO_GRADIENT_KL)


AGENT = "{R}.agent.agent_loop"
CLASS = "recipe.rollout.workers.GroupedAgentLoopManager"


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ("{MODEL}.external_lib=no_such_module", "external_lib"),
        ("{MODEL}.external_lib=[own,recipe.actor.engin]", "external_lib"),
        ("{A}.optim.optimizer=NoSuchOptimizer", "optimizer"),
        ("{A}.optim.optimizer_impl=own {A}.optim.optimizer=scaled", None),
        ("{A}.optim.optimizer_impl=own", "optimizer"),
        ("critic.optim.optimizer=Gone", None),  # no critic
        (f"{GAE} critic.enable=true critic.optim.optimizer=Gone", "critic.optim.optimizer"),
        ("data.custom_cls.path=no/such/file.py data.custom_cls.name=X", "custom_cls.path"),
        ("data.custom_cls.path=OWN.py data.custom_cls.name=scaled", None),
        ("data.custom_cls.path=pkg://own data.custom_cls.name=Gone", "custom_cls.path"),
        (AGENT + "_manager_class=no.such.Class", "agent_loop_manager_class"),
        (AGENT + f"_manager_class={CLASS}x", "agent_loop_manager_class"),
        (AGENT + "_manager_class=own.scaled", None),
        (AGENT + "_config_path=gone.yaml", "agent_loop_config_path"),
        (AGENT + "_config_path=LOOPS.yaml", "agent_loop_config_path"),
        ("trainer.checkpoint_callback_class=own.Gone", "checkpoint_callback_class"),
        ("trainer.checkpoint_callback_class=own.scaled", None),
        ("{R}.router_config_path=gone.yaml", "router_config_path"),
        ("reward.reward_manager.module.path=gone.py", "reward_manager.module.path"),
        ("{A}.optim._target_=verl.workers.config.Gone", "optim._target_"),
        ("trainer.rollout_data_dir=made/by/the/run", None),
    ],
)
def test_what_a_key_names_exists(toy: Any, tmp_path: Path, changes: str, named: str | None) -> None:
    loops = tmp_path / "loops.yaml"
    loops.write_text("[{name: mine, _target_: own.Gone}]\n")
    changes = changes.replace("OWN.py", f"{tmp_path}/own.py").replace("LOOPS.yaml", str(loops))
    refused = errors(toy, changes, [names_exist])
    assert len(refused) == (named is not None), refused
    assert named is None or named in refused[0].partition(": ")[0]


@pytest.mark.usefixtures("own")
def test_a_package_for_gpus_may_be_missing_on_a_login_node(
    toy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_gpu.py").write_text("import flash_attn\n")
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    for gpus, count in ((0, 0), (1, 1)):
        monkeypatch.setattr(functions, "gpus_here", lambda gpus=gpus: gpus)
        monkeypatch.delitem(sys.modules, "needs_gpu", raising=False)
        assert len(errors(toy, "{MODEL}.external_lib=needs_gpu", [names_exist])) == count


# ------------------------------------------------------------------------- attention


@pytest.fixture
def gpu(tmp_path: Path) -> Any:
    config = copy.deepcopy(composed("grpo"))
    config.recipe.run_dir = str(tmp_path)
    return config


FLASH = "flash-attn flash-attn-3"


@pytest.mark.parametrize(
    ("packages", "capability", "changes", "wanted"),
    [
        ("", 9.0, "", "torch_varlen"),
        ("", 8.0, "{A}.fsdp_config.mixed_precision={{param_dtype:fp16}}", "torch_varlen"),
        ("", None, "", "torch_varlen"),  # a login node
        ("", 7.5, "", "sdpa"),
        ("", 7.5, f"{SOFT_CAP}=50", "eager"),
        ("", 9.0, "{MODEL}.use_remove_padding=false", "sdpa"),
        ("", 9.0, "{REF}.fsdp_config.mixed_precision={{param_dtype:fp32}}", "sdpa"),
        ("", 9.0, "trainer.device=cpu", "sdpa"),
        (FLASH, 9.0, "", "flash_attention_3"),
        (FLASH, 8.0, "", "flash_attention_2"),
        ("flash-attn-3", 10.0, "", "torch_varlen"),
        ("flash-attn-4", 9.0, "", "torch_varlen"),
        ("", 9.0, f"{ATTENTION}=flex_attention", "flex_attention"),
    ],
)
def test_null_is_what_the_machine_and_the_settings_allow(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, packages: str, capability: Any, changes: str,
    wanted: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(attention, "installed", packages.split().__contains__)
    monkeypatch.setattr(host, "compute_capability", lambda: capability)
    with changed(gpu, changes.format(**SHORT).split()):
        assert attention.planned(Setup(gpu))[0] == wanted


@pytest.mark.parametrize(
    ("broken", "chosen"),
    [("", "flash_attention_3"), ("flash", "torch_varlen"), ("flash torch_varlen", "sdpa")],
)
def test_the_first_start_chooses_and_a_resumed_run_keeps_it(
    gpu: Any, monkeypatch: pytest.MonkeyPatch, broken: str, chosen: str
) -> None:
    def tried(_: Any, name: str) -> str:
        return f"{name} failed" if any(map(name.startswith, broken.split())) else ""

    monkeypatch.setattr(attention, "installed", lambda _: True)
    monkeypatch.setattr(host, "compute_capability", lambda: 9.0)
    monkeypatch.setattr(attention, "tried", tried)
    resumed, other = copy.deepcopy(gpu), copy.deepcopy(gpu)
    (message,) = attention.settle(Setup(gpu))
    assert f"attention {chosen}: " in message and attention.settle(Setup(gpu)) == []
    assert message.count("failed") == {"": 0, "flash": 2}.get(broken, 3)
    assert [Setup(gpu).get(key) for key in attention.KEYS] == [chosen, chosen]
    folder = RunFolder(Path(gpu.recipe.run_dir))
    OmegaConf.save(gpu, folder.config)
    folder.metrics.touch()
    monkeypatch.setattr(attention, "tried", lambda *_: pytest.fail("tried again"))
    assert list(same_run(Setup(resumed))) == [] and attention.settle(Setup(resumed))
    assert [Setup(resumed).get(key) for key in attention.KEYS] == [chosen, chosen]
    OmegaConf.update(other, attention.ATTENTION, "flex_attention")
    assert attention.ATTENTION in "".join(same_run(Setup(other)))


def test_layers_with_an_adapter(toy: Any) -> None:
    modules = "{MODEL}.target_modules=[up_proj,v_proj] {MODEL}.exclude_modules=[v_proj]"
    assert errors(toy, LORA + modules) == []
    with changed(toy, modules.format(**SHORT).split()):
        assert adapted(Setup(toy)) == ["up_proj"]


def test_micro_batches_of_the_reference_model_are_of_its_own_ranks(toy: Any) -> None:
    """128 responses on 2 GPUs: 64 on a rank, but 128 where two ranks share a sequence."""
    refused = errors(toy, f"{TWO_GPUS} {REF_ULYSSES}")
    assert not [message for message in refused if "micro_batch" in message]


def test_a_second_run_in_a_ray_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter([ValueError("no such actor"), "the controller of another run"])
    get_actor = mock.Mock(side_effect=calls)
    monkeypatch.setattr(ray, "get_actor", get_actor)
    task_runner.refuse_shared_queue()
    with pytest.raises(RuntimeError, match="one Ray cluster per run"):
        task_runner.refuse_shared_queue()
    # The names that TransferQueue itself uses: a look-up under others would never refuse.
    source = inspect.getsource(transfer_queue.interface)
    assert 'ray.get_actor("TransferQueueController", namespace="transfer_queue")' in source
    get_actor.assert_called_with("TransferQueueController", namespace="transfer_queue")
