"""Every example and README command composes, would start, and differs from others as stated."""

import re
from pathlib import Path
from typing import Any

import pytest
from composed import composed
from method_runs import toy_command
from omegaconf import OmegaConf
from page_commands import SHOWN, command_of, fenced_lines

from recipe.config.base import flat
from recipe.config.compose import EXAMPLES, example_names, group_names
from recipe.run.folder import RunFolder
from recipe.start.attention import planned
from recipe.start.checks import validate
from recipe.start.resume import same_run
from recipe.start.rules import Setup

pytestmark = pytest.mark.config

NAMES = example_names()
METHODS = group_names("method")
# method -> its command in the table of examples/README.md
ROW = re.compile(r"^\| \[?(\w+)\b.* \| `([^`]+)` \| [^|]*\|$", re.MULTILINE)
COMMAND = dict(ROW.findall((EXAMPLES / "README.md").read_text("utf-8")))
ON_MATH = "math_methods method="
STAR, GRPO_DS, DR_GRPO = (COMMAND[name] for name in ("ta_grpo_star", "grpo_ds", "dr_grpo"))

ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
TEMPLATES, STEPS = "recipe.augment.templates", "trainer.total_training_steps"
LOSS, MEAN = f"{ACTOR}.policy_loss", f"{ACTOR}.loss_agg_mode"
LOW, HIGH = f"{ACTOR}.clip_ratio_low", f"{ACTOR}.clip_ratio_high"
MODE, KL, ENTROPY = f"{LOSS}.loss_mode", f"{ACTOR}.use_kl_loss", f"{ACTOR}.entropy_coeff"
ARGUMENTS = {"recipe.advantage.arguments", "recipe.advantage.arguments.alpha"}
EXPONENTS = {f"recipe.advantage.arguments{part}" for part in ("", ".positive", ".negative")}
SHARE = {"recipe.weights.arguments", "recipe.weights.arguments.ratio"}
SCALE = f"{ACTOR}.loss_scale_factor"
ADVANTAGE, COUNT = "recipe.advantage.name", "recipe.rephrasings.count"
RATIO, FILTER = "recipe.rephrasings.ratio", "algorithm.filter_groups.enable"
WEIGHTS = "recipe.weights.name"
CW = {WEIGHTS, "recipe.weights.gaussian_covariance.gradient"}
SAMPLES = {
    f"actor_rollout_ref.{place}" for place in ("rollout.n", "actor.rollout_n", "ref.rollout_n")
}
PUNISHED = {"recipe.reward.overlong.enable", "recipe.reward.overlong.factor"}
AUGMENT = {"recipe.augment.mode", TEMPLATES, "recipe.reward.format_weight"}

# {command: settings of the paper or its authors, or of our layer beside it}
SETTINGS: dict[str, dict[str, Any]] = {
    "ta_grpo": {"recipe.augment.instruction": "user", "recipe.reward.extraction": "strict"},
    GRPO_DS: {f"{ROLLOUT}.n": 8, TEMPLATES: ["ta-grpo"]},
    "cw_grpo": {
        **{"recipe.augment.style": "chat", "recipe.augment.format": "published"},
        **{KL: True, f"{ACTOR}.kl_loss_coef": 0.04, f"{ROLLOUT}.max_model_len": 4096},
        TEMPLATES: ["cw-grpo"],
        **{f"{ROLLOUT}.temperature": 0.7, f"{ACTOR}.optim.lr_warmup_steps_ratio": 0.1},
        "recipe.weights.gaussian_covariance.preset": "paper",
    },
    "prompt_aug published=prompt_aug": {
        "recipe.augment.format": "published",
        "recipe.reward.extraction": "last_number",
        "eval.extraction": "strict",
        TEMPLATES: None,
    },
    "grpo published=prompt_aug": {TEMPLATES: ["qwen-math"], KL: True},
    "ta_grpo published=corrected": {
        "recipe.augment.instruction": "system",
        "recipe.augment.bank": None,
        "recipe.reward.extraction": "default",
        **{KL: True, f"{ACTOR}.kl_loss_coef": 0.001, f"{ROLLOUT}.temperature": 1.0},
    },
    f"{ON_MATH}grpo_ds scale=math_train published=corrected": {f"{ROLLOUT}.n": 32},
    "cw_grpo published=corrected": {
        "recipe.augment.format": "strict",
        "recipe.augment.style": "raw",
        **{KL: False, f"{ROLLOUT}.max_model_len": 4608},
    },
    "prompt_aug": {
        "recipe.augment.format": "strict",
        "recipe.reward.extraction": "default",
        **{TEMPLATES: None, KL: False, f"{ROLLOUT}.temperature": 1.0},
    },
    "grpo": {KL: True, f"{ACTOR}.kl_loss_coef": 0.001, f"{ROLLOUT}.temperature": 1.0},
    "one_shot": {
        **{f"{ROLLOUT}.temperature": 0.6, ENTROPY: 0.001, TEMPLATES: ["one-shot"]},
        **{"recipe.augment.bank": "papers", "recipe.reward.extraction": "strict"},
    },
    DR_GRPO: {SCALE: 3072, "data.max_response_length": 3072},
    "hapo scale=open_rs": {"recipe.history.weight": 1.0, "recipe.reward.format_weight": 0.0},
}
SIZE_KEYS = (
    *("data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size", f"{ROLLOUT}.n"),
    *("data.max_prompt_length", "data.max_response_length", "trainer.total_training_steps"),
    *(f"{ACTOR}.optim.lr", "recipe.seed"),
)
for name, sizes in {  # from the papers' tables
    "prompt_aug": (128, 32, 8, 1024, 3072, 2720),  # arXiv 2602.03190
    "ta_grpo": (256, 128, 32, 512, 3072, 2 * (7498 // 256)),  # 2601.22478, Table 2; 4 x 8
    "cw_grpo": (12, 12, 12, 512, 4096, 100),  # 2605.11538, Table 5: 12 x 3 GPUs x 4 / 12
    "one_shot": (128, 128 // 8, 8, 1024, 3072, 2000),  # 2504.20571: 8 updates a step
}.items():
    SETTINGS[name] |= dict(zip(SIZE_KEYS, (*sizes, 1e-6, 42), strict=True))

# Names and their consequences.
IDENTITY = {
    "recipe.name",
    "recipe.method",
    "recipe.run_dir",
    "trainer.experiment_name",
    "trainer.default_local_dir",
    "actor_rollout_ref.rollout.trace.experiment_name",
}
# Sections of unused workers; verl copies settings of the actor into them.
IDLE = ("critic.", "distillation.")

# The micro-batches of clip_cov; no other loss there depends on them.
SIX_ROWS = f"{ACTOR}.use_dynamic_bsz=false {ACTOR}.ppo_micro_batch_size_per_gpu=6 "
SIX_ROWS += f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu=6"
OPEN_CLIP = (LOW, HIGH, f"{ACTOR}.clip_ratio_c")

# All keys that a method changes in GRPO on the toy task.
TOY = {
    "dapo": {f"{ACTOR}.clip_ratio_c", HIGH, MEAN, FILTER, *PUNISHED},
    "prompt_aug": {HIGH, MEAN, *AUGMENT},
    "ta_grpo": {ADVANTAGE, COUNT},
    "ta_grpo_star": {ADVANTAGE, COUNT, RATIO},
    "grpo_ds": {FILTER},
    "cw_grpo": CW,
    "clip_cov": {MODE, *OPEN_CLIP},
    "clip_cov_global": {WEIGHTS, *OPEN_CLIP},
    "kl_cov": {MODE, f"{LOSS}.kl_cov_ratio", f"{LOSS}.ppo_kl_coef"},
    "dr_grpo": {ADVANTAGE, MEAN, SCALE},
    "seed_grpo": {ADVANTAGE, *ARGUMENTS, MEAN, SCALE},
    "rloo": {ADVANTAGE},
    "maxrl": {ADVANTAGE},
    "gspo": {MODE, LOW, HIGH},
    "gmpo": {MODE, f"{LOSS}._target_", LOW, HIGH},
    "cispo": {MODE, MEAN, LOW},
    "sapo": {MODE},
    "luspo": {MODE, LOW, HIGH, MEAN},
    "vespo": {MODE, f"{LOSS}._target_", MEAN},
    "fipo": {MODE, f"{LOSS}._target_", f"{ACTOR}.clip_ratio_c", HIGH, MEAN, FILTER, *PUNISHED},
    "one_shot": {ENTROPY, "recipe.one_question"},
    "entropy_only": {ADVANTAGE, ENTROPY},
    "hapo": {"recipe.history.enable"},
    "curriculum": {"recipe.curriculum.enable"},
    "ppo": {ADVANTAGE, *(f"recipe.advantage.arguments{part}" for part in ("", ".gamma", ".lam"))},
    "pcl": {"recipe.curriculum.enable", "recipe.curriculum.value_model"},
    "prompt_aug_gdpo": {ADVANTAGE, HIGH, MEAN, *AUGMENT},
    "unlikeliness": {ADVANTAGE, "recipe.advantage.arguments", "recipe.advantage.arguments.beta"},
    "grpo_lead": {ADVANTAGE, *ARGUMENTS},
    "asym_grpo": {ADVANTAGE, *EXPONENTS},
    "sdpo": {ADVANTAGE, MODE, MEAN, LOW, HIGH},
    "balanced": {WEIGHTS, MEAN},
    "high_entropy": {WEIGHTS, *SHARE, f"{ACTOR}.clip_ratio_c", HIGH, MEAN, FILTER, *PUNISHED},
}
BASELINE = "toy_methods method=grpo"
ON_TOY = {(" ".join(toy_command(name)), BASELINE): keys for name, keys in TOY.items()}
DAPO_LOSS = (
    "prompt_aug recipe.augment.mode=fixed recipe.augment.templates=[qwen-math] "
    "recipe.reward.format_weight=0"
)
PUBLISHED = {
    ("ta_grpo", "ta_grpo method=grpo"): {ADVANTAGE, COUNT},
    ("cw_grpo", "cw_grpo method=grpo"): CW,
    (GRPO_DS, "ta_grpo method=grpo published=grpo_ds"): {FILTER},
    ("prompt_aug", DAPO_LOSS): {*AUGMENT},
    ("dapo", DAPO_LOSS): {f"{ACTOR}.clip_ratio_c", FILTER, *PUNISHED},
    ("ta_grpo", STAR): {ADVANTAGE, RATIO},
    ("ta_grpo", GRPO_DS): {ADVANTAGE, COUNT, FILTER, *SAMPLES},  # Table 1: 8 responses
    ("dapo", "prompt_aug"): {*AUGMENT, f"{ACTOR}.clip_ratio_c", FILTER, *PUNISHED},
    (f"cw_grpo {SIX_ROWS}", "clip_cov"): {*CW, MODE, *OPEN_CLIP},
    ("one_shot", COMMAND["entropy_only"]): {ADVANTAGE, KL, f"{ACTOR}.optim.weight_decay", STEPS},
    # The baseline of arXiv 2602.03190 has a KL term and a token mean.
    ("dapo", "grpo"): TOY["dapo"] - {MEAN} | {KL},
    ("prompt_aug", "grpo"): TOY["prompt_aug"] - {MEAN} | {KL},
    (DR_GRPO, f"{DR_GRPO.split()[0]} method=grpo"): TOY["dr_grpo"],  # GRPO as in its own paper
    ("kl_cov", "kl_cov method=grpo"): TOY["kl_cov"],
}


def differing(first: Any, second: Any) -> set[str]:
    """Return the keys in which two configurations differ, except names and idle workers."""
    a, b = (dict(flat(OmegaConf.to_container(config))) for config in (first, second))
    missing = object()
    keys = {k for k in a.keys() | b.keys() if a.get(k, missing) != b.get(k, missing)}
    return {k for k in keys - IDENTITY if not k.startswith(IDLE)}


def test_every_method_has_a_row_whose_command_trains_it() -> None:
    assert set(METHODS) == set(COMMAND) == {*TOY, "grpo"}
    assert len(Setup(composed("prompt_aug")).bank) == 13
    for name, command in COMMAND.items():
        config = composed(*command.split())
        assert (config.recipe.name, config.recipe.method) == (name, name)
        assert config.trainer.device == "cuda"
        assert composed(*toy_command(name)).recipe.name == f"toy_{name}"


STARTED = sorted({*NAMES, *COMMAND.values()})


@pytest.mark.parametrize("name", STARTED)
def test_an_example_would_start(name: str) -> None:
    config = composed(*name.split())
    validate(Setup(config))
    assert config.trainer.save_freq > 0, "export, sweep and report would show the start model alone"
    assert config.trainer.test_freq > 0
    attention = {"cuda": "torch_varlen", "cpu": "sdpa"}[config.trainer.device]
    assert planned(Setup(config))[0] == attention  # with the packages of our locks


def test_verl_converts_every_example() -> None:
    """Dataclasses, validation at the start of a run, and loss modes are verl's."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.trainer.ppo.utils import need_reference_policy
    from verl.utils.config import omega_conf_to_dataclass, validate_config

    for name in STARTED:
        config = composed(*name.split())
        validate_config(
            config=config, use_reference_policy=need_reference_policy(config), use_critic=False
        )
        actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
        rollout = omega_conf_to_dataclass(config.actor_rollout_ref.rollout)
        assert get_policy_loss_fn(actor.policy_loss.loss_mode)
        assert actor.clip_ratio_high == config.actor_rollout_ref.actor.clip_ratio_high
        assert rollout.n == actor.rollout_n == config.actor_rollout_ref.rollout.n


COMPARED = [*ON_TOY.items(), *PUBLISHED.items()]


# Explicit ids: the order of a set differs between the workers of a test run.
@pytest.mark.parametrize(
    ("pair", "keys"), COMPARED, ids=[" and ".join(pair) for pair, _ in COMPARED]
)
def test_compared_runs_differ_in_the_studied_keys(pair: tuple[str, str], keys: set[str]) -> None:
    first, second = (composed(*command.split()) for command in pair)
    assert differing(first, second) == keys


@pytest.mark.parametrize("command", SETTINGS)
def test_settings_are_those_of_the_papers(command: str) -> None:
    config = composed(*command.split())
    assert {key: OmegaConf.select(config, key) for key in SETTINGS[command]} == SETTINGS[command]


READMES = [EXAMPLES.parent / "README.md", *sorted(EXAMPLES.rglob("README.md"))]


def trainings(text: str) -> list[tuple[str, ...]]:
    """Return example and overrides of the training commands in fenced blocks.

    Not those of the short form with --model, which tests/recipe/machine/test_sizes.py expands.
    """
    result = [command_of(line) for line in fenced_lines(text) if SHOWN.search(line)]
    commands = [
        command.arguments for command in result if command and command.name == "recipe.train"
    ]
    return [arguments for arguments in commands if "--model" not in arguments]


TRAININGS = list(dict.fromkeys(c for p in READMES for c in trainings(p.read_text("utf-8"))))


@pytest.mark.parametrize("command", TRAININGS, ids=" ".join)
def test_a_training_of_a_readme_would_start(command: tuple[str, ...]) -> None:
    config = composed(*command)
    validate(Setup(config))
    assert config.trainer.total_training_steps > 0


def test_commands_that_share_a_run_folder_are_one_run(tmp_path: Path) -> None:
    first, folder = dict[str, Any](), RunFolder(tmp_path)
    folder.metrics.touch()
    for config in (composed(*command) for command in TRAININGS):
        before = first.setdefault(config.recipe.run_dir, config)
        OmegaConf.save(before, folder.config)
        moved = OmegaConf.merge(config, {"recipe": {"run_dir": str(tmp_path)}})
        assert list(same_run(Setup(moved))) == []
