"""Every example composes over the real schema, starts, and differs from its baseline as it says."""

import functools
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from omegaconf.errors import ConfigKeyError

from recipe.checks import data as preflight
from recipe.checks import verl as preflight_verl
from recipe.checks.algorithm import check_algorithm
from recipe.config.compose import CONFIG, EXAMPLES, compose_config
from recipe.errors import ConfigError

# Composing all of them twice through hydra takes a minute; they are read, none is trained.
pytestmark = pytest.mark.e2e

NAMES = sorted(str(p.parent.relative_to(EXAMPLES)) for p in EXAMPLES.rglob("config.yaml"))
METHODS = sorted(p.stem for p in (CONFIG / "method").glob("*.yaml"))
GPU = [name for name in NAMES if name in METHODS]
GROUPS = sorted(p for name in ("scale", "method") for p in (CONFIG / name).glob("*.yaml"))

ACTOR = "actor_rollout_ref.actor"
LOSS, MEAN = f"{ACTOR}.policy_loss", f"{ACTOR}.loss_agg_mode"
LOW, HIGH = f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high"
MODE, KL, ENTROPY = f"{LOSS}.loss_mode", f"{ACTOR}.use_kl_loss", f"{ACTOR}.entropy_coeff"
ADVANTAGE, COUNT = "recipe.advantage.name", "recipe.neighbours.count"
RATIO, FILTER = "recipe.neighbours.ratio", "algorithm.filter_groups.enable"
WEIGHTS, OVERLONG = "recipe.weights.name", "recipe.reward.overlong"
AUGMENT = {"recipe.augment.mode", "recipe.augment.templates", "recipe.reward.format_weight"}

# Follow from recipe.name.
IDENTITY = {
    "recipe.name",
    "recipe.run_dir",
    "trainer.experiment_name",
    "trainer.default_local_dir",
    "actor_rollout_ref.rollout.trace.experiment_name",
}
# Sections of workers that no run here has; verl copies settings of the actor into them.
IDLE = ("critic.", "distillation.")

# What the toy twin of a method changes in that of GRPO, and nothing else.
TOY = {
    "dapo": {f"{ACTOR}.clip_ratio_c", HIGH, MEAN, FILTER, f"{OVERLONG}.enable"},
    "prompt_aug": {HIGH, MEAN, *AUGMENT},
    "ta_grpo": {ADVANTAGE, COUNT},
    "ta_grpo_star": {ADVANTAGE, COUNT, RATIO},
    "grpo_ds": {FILTER},
    "cw_grpo": {WEIGHTS},
    "clip_cov": {MODE},
    "clip_cov_global": {WEIGHTS},
    "kl_cov": {MODE, f"{LOSS}.kl_cov_ratio", f"{LOSS}.ppo_kl_coef"},
    "dr_grpo": {ADVANTAGE, MEAN, f"{ACTOR}.loss_scale_factor"},
    "rloo": {ADVANTAGE},
    "maxrl": {ADVANTAGE},
    "gspo": {MODE, LOW, HIGH},
    "gmpo": {MODE, f"{LOSS}._target_", LOW, HIGH},
    "cispo": {MODE, MEAN, LOW},
    "sapo": {MODE},
    "one_shot": {ENTROPY, "recipe.one_question"},
    "entropy_only": {ADVANTAGE, ENTROPY},
    "hapo": {"recipe.history.enable"},
    "curriculum": {"recipe.curriculum.enable"},
}
TWINS = {(f"{name}/toy", "grpo/toy"): keys for name, keys in TOY.items()}
TWINS["dapo/toy", "grpo/toy"] = TOY["dapo"] | {f"{OVERLONG}.buffer"}  # of a shorter response
LIKE_GRPO = ("dr_grpo", "rloo", "maxrl", "gspo", "gmpo", "cispo", "sapo", "kl_cov")
PUBLISHED = {
    ("ta_grpo", "ta_grpo_star"): {ADVANTAGE, RATIO},
    ("ta_grpo", "grpo_ds"): {ADVANTAGE, COUNT, FILTER},
    ("dapo", "prompt_aug"): {
        *AUGMENT,
        "recipe.toy.templates",  # follows the templates; the toy world is off
        f"{ACTOR}.clip_ratio_c",
        FILTER,
        f"{OVERLONG}.enable",
    },
    ("cw_grpo", "clip_cov"): {WEIGHTS, MODE},
    ("cw_grpo", "clip_cov_global"): {WEIGHTS},
    ("one_shot", "entropy_only"): {
        ADVANTAGE,
        KL,
        f"{ACTOR}.optim.weight_decay",
        "trainer.total_training_steps",
    },
    ("clip_cov", "clip_cov_global"): {MODE, WEIGHTS},
    # The baseline of arXiv 2602.03190 has a KL term, and the mean over tokens as they do.
    ("dapo", "grpo"): TOY["dapo"] - {MEAN} | {KL},
    ("prompt_aug", "grpo"): TOY["prompt_aug"] - {MEAN} | {KL, "recipe.toy.templates"},
    ("one_shot", "grpo"): {
        *TOY["one_shot"],
        *("data.train_files", f"{ACTOR}.ppo_mini_batch_size", f"{ACTOR}.entropy_checkpointing"),
        f"{ACTOR}.fsdp_config.entropy_checkpointing",  # verl copies it
        *("actor_rollout_ref.rollout.temperature", "trainer.total_training_steps"),
    },
    # The rest are compared with GRPO as its own paper has it.
    **{(n, f"{n} method=grpo"): TOY[n] for n in (*LIKE_GRPO, "hapo", "curriculum")},
}
# Baselines that are no example but a command in a README: "NAME override ...".
DAPO_LOSS = (
    "prompt_aug recipe.augment.mode=fixed recipe.augment.templates=[qwen-math] "
    "recipe.reward.format_weight=0"
)
PUBLISHED |= {
    ("ta_grpo", "ta_grpo method=grpo"): {ADVANTAGE, COUNT},
    ("cw_grpo", "cw_grpo method=grpo"): {WEIGHTS},
    ("grpo_ds", "grpo_ds method=grpo"): {FILTER},
    ("ta_grpo method=grpo", "grpo_ds method=grpo"): set(),  # one baseline serves both
    ("prompt_aug", DAPO_LOSS): {*AUGMENT, "recipe.toy.templates"},
    ("dapo", DAPO_LOSS): {f"{ACTOR}.clip_ratio_c", FILTER, f"{OVERLONG}.enable"},
}

# (train_batch_size, mini-batch, rollout.n, prompt, response, steps), from the papers' own tables.
SIZES = {
    "prompt_aug": (128, 32, 8, 1024, 3072, 2720),  # arXiv 2602.03190
    "ta_grpo": (256, 128, 32, 512, 3072, 2 * (7498 // 256)),  # 2601.22478, Table 2; 4 x 8
    "cw_grpo": (12, 12, 12, 512, 4096, 100),  # 2605.11538, Table 5: 12 x 3 GPUs x 4 / 12
    "one_shot": (128, 128 // 8, 8, 1024, 3072, 2000),  # 2504.20571: 8 updates a step
}


@functools.cache
def composed(name: str, *overrides: str) -> Any:
    """The resolved configuration of an example; shared, so nobody may change it."""
    return compose_config(name, list(overrides))


def flat(node: Any, prefix: str = "") -> dict[str, Any]:
    """A nested mapping as {dotted key: value}."""
    if not isinstance(node, dict) or not node:
        return {prefix.rstrip("."): node}
    return {k: v for key, sub in node.items() for k, v in flat(sub, f"{prefix}{key}.").items()}


def differing(one: Any, other: Any) -> set[str]:
    """Dotted keys in which two configurations differ, names and idle workers aside."""
    a, b = (flat(OmegaConf.to_container(config)) for config in (one, other))
    missing = object()
    keys = {k for k in a.keys() | b.keys() if a.get(k, missing) != b.get(k, missing)}
    return {k for k in keys - IDENTITY if not k.startswith(IDLE)}


def test_every_method_has_an_example_a_readme_and_a_toy_twin() -> None:
    assert METHODS
    others = {"toy", "toy_bank", "math_smoke"}
    assert set(NAMES) == {*METHODS, *(f"{name}/toy" for name in METHODS)} | others
    assert set(TOY) == set(METHODS) - {"grpo"}
    for name in METHODS:
        text = (EXAMPLES / name / "README.md").read_text(encoding="utf-8")
        for command in (f"EXAMPLE={name} RUN=", f"-m recipe.train {name}/toy"):
            assert command in text, f"{name}/README.md does not have '{command}'"
        assert composed(name).recipe.name == name
        assert composed(f"{name}/toy").recipe.name == f"{name}_toy"


@pytest.mark.parametrize("name", NAMES)
def test_an_example_would_start(name: str) -> None:
    config = composed(name)
    preflight_verl.check_verl(config)
    preflight_verl.check_batches(config)
    preflight.check_recipe(config)
    preflight_verl.check_lengths(config)
    check_algorithm(config)
    assert config.trainer.device == ("cuda" if name in GPU else "cpu")


@pytest.mark.parametrize("name", GPU)
def test_an_example_would_start_on_two_nodes(name: str) -> None:
    config = OmegaConf.merge(composed(name), {"trainer": {"nnodes": 2}})
    if config.data.train_batch_size == 12:  # 9 rows a GPU: scale/open_rs is for one node
        with pytest.raises(ConfigError, match="does not divide the 9 rows"):
            preflight_verl.check_batches(config)
        return
    preflight_verl.check_batches(config)


def test_verl_converts_every_example() -> None:
    """verl's own dataclasses, and its own check at the start of a run; loss modes are known."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.trainer.ppo.utils import need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    for name in NAMES:
        config = composed(name)
        validate_config(
            config=config, use_reference_policy=need_reference_policy(config), use_critic=False
        )
        actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
        assert get_policy_loss_fn(actor.policy_loss.loss_mode)
        assert actor.clip_ratio_high == config.actor_rollout_ref.actor.clip_ratio_high
        assert rollout.n == actor.rollout_n == config.actor_rollout_ref.rollout.n
    with pytest.raises(ValueError, match="nope"):
        get_policy_loss_fn("nope")


def without_unknown_keys(body: Any) -> None:
    """Raise ConfigKeyError where a group file has a key that verl and the recipe do not know.

    Hydra lets a group add keys, and then the example that chooses it has them in its schema too.
    """
    schema = OmegaConf.create(OmegaConf.to_container(composed("toy")))
    OmegaConf.set_struct(schema, True)
    body.pop("defaults", None)
    OmegaConf.merge(schema, body)


@pytest.mark.parametrize("path", GROUPS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_a_group_has_no_unknown_key(path: Path) -> None:
    without_unknown_keys(OmegaConf.load(path))


def test_the_check_of_groups_sees_an_unknown_key() -> None:
    with pytest.raises(ConfigKeyError, match="clip_ratio_hihg"):
        without_unknown_keys(
            OmegaConf.create({"actor_rollout_ref": {"actor": {"clip_ratio_hihg": 0.28}}})
        )


@pytest.mark.parametrize(("pair", "keys"), [*TWINS.items(), *PUBLISHED.items()], ids=str)
def test_compared_runs_differ_in_the_studied_keys(pair: tuple[str, str], keys: set[str]) -> None:
    one, other = (composed(*command.split()) for command in pair)
    assert differing(one, other) == keys


def test_the_comparison_sees_one_more_key_and_one_less() -> None:
    baseline, keys = composed("grpo/toy"), TWINS["ta_grpo/toy", "grpo/toy"]
    more = composed("ta_grpo/toy", "actor_rollout_ref.rollout.temperature=0.9")
    assert differing(more, baseline) == keys | {"actor_rollout_ref.rollout.temperature"}
    less = composed("ta_grpo/toy", "recipe.advantage.name=grpo")
    assert differing(less, baseline) == keys - {ADVANTAGE}


@pytest.mark.parametrize(("name", "sizes"), SIZES.items())
def test_sizes_are_those_of_the_papers(name: str, sizes: tuple[int, ...]) -> None:
    config = composed(name)
    data, actor = config.data, config.actor_rollout_ref.actor
    assert (
        data.train_batch_size,
        actor.ppo_mini_batch_size,
        config.actor_rollout_ref.rollout.n,
        data.max_prompt_length,
        data.max_response_length,
        config.trainer.total_training_steps,
    ) == sizes
    assert actor.optim.lr == 1e-6
    assert config.recipe.seed == 42


def test_settings_of_the_papers_beside_the_sizes() -> None:
    grpo, prompt_aug, ta_grpo = map(composed, ("grpo", "prompt_aug", "ta_grpo"))
    for config, kl in ((grpo, True), (prompt_aug, False), (ta_grpo, True)):
        assert config.actor_rollout_ref.actor.use_kl_loss is kl
        assert config.actor_rollout_ref.actor.kl_loss_coef == 0.001
        assert config.actor_rollout_ref.rollout.temperature == 1.0
    assert prompt_aug.recipe.augment.templates is None  # all 13
    assert len(preflight.check_recipe(prompt_aug).names) == 13
    cw_grpo, one_shot = composed("cw_grpo"), composed("one_shot")
    assert cw_grpo.actor_rollout_ref.rollout.temperature == 0.7
    assert cw_grpo.actor_rollout_ref.actor.optim.lr_warmup_steps_ratio == 0.1
    assert cw_grpo.recipe.weights.gaussian_covariance.preset == "paper"
    assert one_shot.actor_rollout_ref.rollout.temperature == 0.6
    assert one_shot.actor_rollout_ref.actor.entropy_coeff == 0.001
    factor = composed("dr_grpo").actor_rollout_ref.actor.loss_scale_factor
    assert factor == composed("dr_grpo").data.max_response_length == 3072


def test_toy_twins_have_equal_numbers_of_responses() -> None:
    for name in METHODS:
        config = composed(f"{name}/toy")
        assert config.data.train_batch_size * config.actor_rollout_ref.rollout.n == 64
