"""Bad settings are rejected by key; verl's key table; weights and verifiers by source."""

import contextlib
import copy
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from composed import changed, composed
from omegaconf import OmegaConf

from prompt_aug.questions import Question, make_question
from prompt_aug.verifiers import VerifierLimits
from recipe import train
from recipe.config import settings, verl, verl_types
from recipe.config.base import base, flat, known_keys
from recipe.config.compose import compose_config
from recipe.config.verl import LOSS, SWITCHES
from recipe.errors import ConfigError
from recipe.start.checks import validate
from recipe.start.questions import check_verifiers, counts_of, weighted
from recipe.start.rules import Setup
from recipe.trainer import launch

A, R, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"

# Each is set in a valid configuration of the toy; the message must name the key.
SETTINGS = f"""
{R}.temperature=0           {R}.n=1            {R}.top_p=1.5      {R}.max_model_len=100
{R}.data_parallel_size=2    {R}.tensor_model_parallel_size=4      {R}.mode=sync
{R}.agent.default_agent_loop=tool_agent     trainer.total_training_steps=1.5
trainer.n_gpus_per_node=3   trainer.save_freq=-2                  trainer.resume_mode=resume_path
{A}.checkpoint.save_contents=[model]        data.train_batch_size=30   data.train_files=''
data.max_response_length=1000000000         {A}.ppo_micro_batch_size_per_gpu=48
{A}.optim.lr=inf            {A}.optim.lr=1e6               {A}.optim.betas=[0.9,1.0]
{A}.clip_ratio_high=-0.2    {A}.policy_loss.loss_mode=clipcov     {A}.use_dynamic_bsz=yes
{MODEL}.lora_rank=8         custom_reward_function.path=x.py          {R}.name=sglang
critic.enable=true          distillation.enabled=true      algorithm.adv_estimator=gae
eval.template=nope          recipe.keep_best=val/toy/accuracy/mean
recipe.reward.verifiers=mine.check          recipe.source_weights={{toy:0}}
recipe.seed=4294967296      recipe.augment.bank=/nowhere/bank.yaml     recipe.augment.mode=fixed
recipe.augment.templates=[qwen-math,qwen-math]
recipe.advantage.name=os.path.join          recipe.advantage.arguments={{zzz:1}}
recipe.weights.name=cosine  recipe.history.weight=0
recipe.dynamic_sampling.on_exhausted=rollback   data.custom_cls.path=true
""".split()


@pytest.fixture(scope="module")
def toy(toy_config: Any) -> Any:
    return copy.deepcopy(toy_config)


CASES = [(s, s.partition("=")[0]) for s in SETTINGS]
CASES += [("eval.benchmarks=[{name: amc, samples: 0}]", "eval.benchmarks[0].samples=0")]


@pytest.mark.parametrize(("setting", "named"), CASES, ids=lambda v: str(v)[:60])
def test_a_bad_value_is_refused(toy: Any, setting: str, named: str) -> None:
    key = setting.partition("=")[0]
    assert key in known_keys(), f"{key} is no key: the case tests nothing"
    with changed(toy, [setting]), pytest.raises(ConfigError) as refused:
        validate(Setup(toy))
    assert named in str(refused.value)


def test_the_configuration_of_these_cases_is_valid(toy: Any) -> None:
    validate(Setup(toy))


def test_every_key_of_ours_has_a_type_and_a_meaning_and_every_typed_key_exists() -> None:
    ours = {key for key, _ in flat(base()) if key.startswith("recipe.")}
    meanings = {key: field.description for key, field in settings.fields()}
    assert {key for key in ours if "verifier_limits" not in key} <= meanings.keys()
    assert all(meanings.values()) and "recipe.seed=42 " in settings.page()
    for end in verl_types.TYPES:
        assert any(f".{key}".endswith(f".{end}") for key in known_keys()), end
    for switch in SWITCHES:
        assert {switch.key, switch.read} <= known_keys(), switch
    for pattern in verl.patterns(verl.KEYS):
        assert any(map(pattern.fullmatch, known_keys())), pattern


NAME = "recipe.weights.name"
CRITIC = "critic.enable=true"
KL = f"{A}.use_kl_loss={{}} {A}.kl_loss_coef=0.04"
OWN_LOSS = f"{A}.policy_loss._target_=my.Loss {A}.policy_loss.clip_cov_ratio=0.1"


@pytest.mark.config
@pytest.mark.parametrize(
    ("overrides", "switch"),
    [
        (f"{A}.kl_loss_coef=0.04", f"{A}.use_kl_loss=false"),
        ("trainer.critic_warmup=5", "critic.enable=null"),
        ("recipe.history={weight:5}", "recipe.history.enable=false"),
        ("method=cw_grpo recipe.weights.clip_cov.ratio=0.1", f"{NAME}=gaussian_covariance"),
        (f"method=kl_cov {A}.clip_ratio_high=0.28", f"{LOSS}=kl_cov"),
        (f"{CRITIC} critic.optim.min_lr_ratio=0.1", "critic.optim.lr_scheduler_type=constant"),
        (f"{A}.loss_scale_factor=100", f"{A}.loss_agg_mode=seq-mean-token-mean"),
        # Negative controls
        (f"{CRITIC} critic.optim.lr_scheduler_type=cosine critic.optim.min_lr_ratio=0.1", None),
        (KL.format("false"), None),  # turned off in the same command
        (OWN_LOSS, None),
        ("trainer.critic_warmup=0", None),  # the default
        ("method=cw_grpo recipe.weights.gaussian_covariance.preset=official_code", None),
    ],
)
def test_an_override_that_a_switch_turns_off_is_refused(overrides: str, switch: str | None) -> None:
    expected = f"no effect with .*{re.escape(str(switch))}\\."
    with pytest.raises(ConfigError, match=expected) if switch else contextlib.nullcontext():
        compose_config("toy_methods", overrides.split())


@pytest.mark.config
@pytest.mark.parametrize(
    "override",
    ["data.max_prompt_length=1k", f"{R}.max_num_seqs=1k", f"{A}.ppo_micro_batch_size_per_gpu=[1]"],
)
def test_a_value_is_checked_before_the_sizes_that_follow_from_it(override: str) -> None:
    with pytest.raises(ConfigError, match=rf"{override.partition('=')[0]}=.+: "):
        compose_config("toy", [override])


# ------------------------------------------------------------------------- keys
# verl's keys: hints for unknown ones, and those that must keep their defaults.


@pytest.mark.config
def test_a_hint_never_names_a_key_of_another_role() -> None:
    message = verl.unknown_key("actor_rollout_ref.actor.ppo_mini_batch_sise")
    assert "did you mean actor_rollout_ref.actor.ppo_mini_batch_size?" in message
    assert "did you mean" not in verl.unknown_key("actor_rollout_ref.ref.ppo_mini_batch_sise")


@pytest.mark.config
def test_a_key_without_effect_is_found_and_its_default_is_not() -> None:
    # actor.rollout_n has no effect, and follows rollout.n by default
    config = composed("grpo", "actor_rollout_ref.rollout.n=4").copy()
    assert config.actor_rollout_ref.actor.rollout_n == 4
    assert list(verl.changed_keys(config)) == []
    wrong = {
        "actor_rollout_ref.nccl_timeout": 60,
        "actor_rollout_ref.actor.optim.zero_indexed_step": False,
        "critic.optim.zero_indexed_step": False,
    }
    for key, value in wrong.items():
        OmegaConf.update(config, key, value)
    assert {key: value for key, value, _ in verl.changed_keys(config)} == wrong


# ------------------------------------------------------------------------- sources
# Data sources: rows by weight, by hand, and verifiers that are tried before a run.


def questions(**counts: int) -> list[Question]:
    return [
        make_question(text=f"{source} {i}?", answers=(str(i + 1),), source=source)
        for source, count in counts.items()
        for i in range(count)
    ]


@pytest.mark.parametrize(
    ("sizes", "weights", "rows"),
    [
        ({"a": 4, "b": 2}, None, {"a": 4, "b": 2}),
        ({"a": 4, "b": 2}, {"a": 3.0, "b": 1.0}, {"a": 6, "b": 2}),
        ({"a": 4, "b": 3}, {"a": 0.5, "b": 0.5}, {"a": 4, "b": 4}),  # one of b occurs twice
        ({"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 1, "c": 2}, {"a": 2, "b": 2, "c": 4}),
    ],
)
def test_rows_by_weight(sizes: dict, weights: Any, rows: dict[str, int]) -> None:
    made = weighted(questions(**sizes), weights)
    assert counts_of(made) == rows
    times = {q.uid: sum(row.uid == q.uid for row in made) for q in questions(**sizes)}
    assert min(times.values()) == 1 if weights else set(times.values()) == {1}
    for source in sizes:  # those of a source equally often, up to one
        of_source = [times[q.uid] for q in questions(**sizes) if q.source == source]
        assert max(of_source) - min(of_source) <= 1


def tried(**functions: str) -> dict[str, Any]:
    limits = VerifierLimits(cpu_seconds=0.5, memory_gib=0.1).model_dump()
    verifiers = {source: f"own_verifiers.{name}" for source, name in functions.items()}
    reward = {"verifiers": verifiers, "verifier_limits": limits, "extraction": "default"}
    return check_verifiers(OmegaConf.create(reward), questions(a=2, b=1))


@pytest.mark.config  # starts worker processes
@pytest.mark.parametrize(
    ("functions", "named"),
    [
        ({"a": "hangs"}, r"first row of a .* timeout \(cpu\)"),
        ({"c": "even"}, "no row of data.train_files or data.val_files .* Use one of a, b"),
        ({"a": "even", "b": "text_part"}, None),
    ],
)
def test_verifiers_are_called_on_the_first_row_of_their_source(
    functions: dict[str, str], named: str | None
) -> None:
    if named is None:
        assert tried(**functions).get("functions", {}).keys() == functions.keys()
        return
    with pytest.raises(ConfigError, match=rf"reward\.verifiers\.\w+=own_verifiers\..*{named}"):
        tried(**functions)


# ------------------------------------------------------------------------- commands

# (arguments, exit code, what stderr names)
COMMANDS: list[tuple[str, int, str]] = [
    ("", 2, "name an example"),
    ("tyo", 1, "did you mean toy"),
    ("toy model_engine=megatron", 1, "model_engine=megatron: "),
    ("toy trainer.total_training_step=3", 1, "did you mean trainer.total_training_steps"),
    ("toy +actor.use_dynamic_bsz=true", 1, "actor_rollout_ref.actor.use_dynamic_bsz"),
    ("toy recipe.method=cw_grpo", 1, "Write method=cw_grpo"),
    ("toy actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2", 1, "Megatron"),
    ("toy ~data.seed", 1, "deletes a key"),
    ("toy recipe.seed", 1, "form key=value"),
    ("toy +hydra.run.dir=x", 1, "hydra.run.dir"),
    ("toy method=gropo", 1, "method/gropo"),
    ("toy +method=dapo", 1, "Multiple values for method"),
    ("toy recipe.run_dir=/dev/null/x", 1, "recipe.run_dir=/dev/null/x"),
    ("toy recipe.model_path=/nowhere/model", 1, "recipe.model_path=/nowhere/model"),
    ("one_shot data.train_files=null", 1, "data.train_files"),
]


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A command in this process leaves its environment and its signals as they were."""
    monkeypatch.setattr(launch, "set_environment", lambda config: None)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.mark.config
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(("command", "code", "named"), COMMANDS, ids=str)
def test_a_bad_command_is_refused(
    command: str,
    code: int,
    named: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        assert train.main(shlex.split(command)) == code
    except SystemExit as error:  # argparse
        assert error.code == code
    stderr = capsys.readouterr().err
    assert named in stderr and "Traceback" not in stderr
    assert list(tmp_path.iterdir()) == []  # nothing was written
