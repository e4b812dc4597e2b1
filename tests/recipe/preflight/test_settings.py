"""Bad settings and commands: exit code 1 or 2, a message that names the key, nothing started."""

import contextlib
import copy
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from changes import changed
from composed import composed

from recipe import train
from recipe.config import settings, verl_types
from recipe.config.base import CONFIG, base, flat, known_keys
from recipe.config.compose import compose_config
from recipe.config.verl import LOSS, SWITCHES
from recipe.errors import ConfigError
from recipe.preflight.checks import validate
from recipe.trainer import launch

A, R, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"

# Each is set in a valid configuration of the toy; the message must name the key.
SETTINGS = f"""
{R}.temperature=0           {R}.temperature=nan            {R}.n=1            {R}.top_p=1.5
{R}.top_k=0                 {R}.val_kwargs.temperature=-3  {R}.max_num_seqs=0 {R}.dtype=int8
{R}.gpu_memory_utilization=2        {R}.max_model_len=100  {R}.max_model_len=null
{R}.data_parallel_size=2    {R}.tensor_model_parallel_size=4       {R}.quantization=int4
{R}.agent.default_agent_loop=tool_agent     {R}.agent.agent_loop_manager_class=nowhere.Manager
trainer.total_training_steps=ten    trainer.total_training_steps=1.5 trainer.nnodes=-1
trainer.total_training_steps=null   trainer.n_gpus_per_node=3        trainer.device=tpu
trainer.save_freq=-2                trainer.max_actor_ckpt_to_keep=0 trainer.logger=tensorbord
trainer.resume_mode=disable         trainer.resume_mode=resume_path  trainer.resume_from_path=x
trainer.default_local_dir=/proc/x   trainer.v1.trainer_mode=separate_async
{MODEL}.tiled_mlp.enabled=true      {A}.use_prefix_grouper=true      {A}.checkpoint.async_save=true
{A}.checkpoint.save_contents=[model]        {A}.checkpoint.load_contents=null
data.truncation=left                data.train_batch_size=30         data.max_response_length=0
data.train_max_samples=0            data.train_files=''              data.val_files=['']
data.custom_cls.path=/nowhere.py    data.max_response_length=1000000000
{A}.ppo_epochs=0            {A}.ppo_micro_batch_size_per_gpu=48      {A}.optim.lr=inf
{A}.optim.lr=fast           {A}.optim.lr=1e6               {A}.optim.lr_warmup_steps=null
{A}.optim.lr_warmup_steps_ratio=2   {A}.optim.lr_scheduler_type=linear
{A}.optim.override_optimizer_config=true    {A}.optim.betas=[0.9,1.0]
{A}.fsdp_config.ulysses_sequence_parallel_size=nan         {A}.ulysses_sequence_parallel_size=2
{A}.clip_ratio_high=-0.2    {A}.clip_ratio_c=1             {A}.kl_loss_type=foo
{A}.loss_agg_mode=mean      {A}.policy_loss.loss_mode=ppo  {A}.loss_scale_factor=-1
{A}.use_dynamic_bsz=yes     {A}.grad_clip=0.1              {MODEL}.external_lib=nowhere
{MODEL}.tokenizer_path=x    {MODEL}.lora_rank=8            {MODEL}.lora_rank=-1
{MODEL}.fused_kernel_options.impl_backend=cuda             critic.optim.lr=0
reward.reward_manager.source=register       reward.reward_manager.module.path=/nowhere.py
reward.reward_manager.module.path=pkg://nowhere            custom_reward_function.path=x.py
critic.enable=true          distillation.enabled=true      ray_kwargs.ray_init.num_cpus=0
algorithm.adv_estimator=gae         algorithm.kl_penalty=full        algorithm.kl_ctrl.type=x
algorithm.filter_groups.metric=score        algorithm.rollout_correction.rollout_is=tokens
eval.temperature=hot        eval.benchmarks=3              eval.template=nope
recipe.keep_best=val/toy/accuracy/mean      recipe.reward.verifiers=mine.check
recipe.reward.verifiers={{toy:3}}           recipe.source_weights={{toy:0}}
recipe.seed=-1              recipe.seed=4294967296         recipe.seed=0.5
recipe.name=''              recipe.overlong_filter=1       recipe.save_rollouts_every=-1
recipe.augment.bank=/       recipe.augment.bank=/nowhere/bank.yaml   recipe.augment.mode=fixed
recipe.augment.templates=[] recipe.augment.templates=[qwen-math,qwen-math]
recipe.augment.templates=[qwen_math]        recipe.augment.weights=[1,-1,1,1]
recipe.augment.weights=[0,0,0,0]            recipe.augment.weights=[1,1]
recipe.rephrasings.count=2  recipe.rephrasings.ratio=both  recipe.one_question=[1]
recipe.advantage.name=gae   recipe.advantage.name=..       recipe.advantage.name=nowhere.f
recipe.advantage.name=os.path       recipe.advantage.name=os.path.join
recipe.advantage.arguments={{zzz:1}}        recipe.advantage.arguments=3
recipe.weights.name=cosine          recipe.weights.name=math.sqrt
recipe.history.floor=0.5    recipe.curriculum.target=2     recipe.guard.action=rollback
{A}.policy_loss.loss_mode=clipcov   reward_model.enable=true         {R}.mode=sync
""".split()
# (setting, other key that the message names)
NAMES_ANOTHER = [
    ("eval.benchmarks=[{path: x}]", "eval.benchmarks[0].name"),
    ("eval.benchmarks=[{name: amc, samples: 0}]", "eval.benchmarks[0].samples=0"),
    ("eval.benchmarks=[{name: amc, template: nope}]", "eval.benchmarks"),
    (f"{R}.name=sglang", "'vllm'"),
    (f"{A}.strategy=megatron", "fsdp2"),
    ("model_engine=megatron", "'dp'"),
    (f"{A}.kl_loss_type=full", "k3"),
    ("recipe.advantage.name=recipe.errors.nosuch", "recipe.errors has no function nosuch"),
]


@pytest.fixture(scope="module")
def toy(toy_config: Any) -> Any:
    return copy.deepcopy(toy_config)


CASES = [(s, s.partition("=")[0]) for s in SETTINGS] + NAMES_ANOTHER


@pytest.mark.parametrize(("setting", "named"), CASES, ids=lambda v: str(v)[:60])
def test_a_bad_value_is_refused(toy: Any, setting: str, named: str) -> None:
    key = setting.partition("=")[0]
    assert key in known_keys(), f"{key} is no key: the case tests nothing"
    with changed(toy, [setting]), pytest.raises(ConfigError) as refused:
        validate(toy)
    assert named in str(refused.value)


def test_the_configuration_of_these_cases_is_valid(toy: Any) -> None:
    validate(toy)


@pytest.mark.config
def test_several_bad_values_are_all_named() -> None:
    with pytest.raises(ConfigError) as refused:
        composed("toy", f"{A}.optim.lr=nan", "recipe.overlong_filter=maybe")
    assert [line.partition("=")[0] for line in str(refused.value).splitlines()] == [
        "recipe.overlong_filter",
        f"{A}.optim.lr",
    ]


def test_every_key_of_ours_has_a_type_and_a_meaning_and_every_typed_key_exists() -> None:
    ours = {key for key, _ in flat(base()) if key.startswith("recipe.")}
    assert {key for key in ours if "verifier_limits" not in key} <= set(settings.meanings())
    assert all(settings.meanings().values()) and "recipe.seed=42 " in settings.page()
    for end in verl_types.TYPES:
        assert any(f".{key}".endswith(f".{end}") for key in known_keys()), end
    for switch in SWITCHES:
        assert {switch.key, switch.read} <= known_keys(), switch


NAME = "recipe.weights.name"
CRITIC = "critic.enable=true"
KL = f"{A}.use_kl_loss={{}} {A}.kl_loss_coef=0.04"
OWN_LOSS = f"{A}.policy_loss._target_=my.Loss {A}.policy_loss.clip_cov_ratio=0.1"


@pytest.mark.config
@pytest.mark.parametrize(
    ("overrides", "switch"),
    [
        (f"{A}.kl_loss_coef=0.04", f"{A}.use_kl_loss=false"),
        ("recipe.guard={window:5}", "recipe.guard.action=off"),
        (f"{MODEL}.lora_alpha=32", f"{MODEL}.lora_rank=0"),
        ("method=cw_grpo recipe.weights.clip_cov.ratio=0.1", f"{NAME}=gaussian_covariance"),
        (f"method=sapo {A}.policy_loss.ppo_kl_coef=1", f"{LOSS}=sapo"),
        (f"{A}.ppo_max_token_len_per_gpu=512", f"{A}.use_dynamic_bsz=false"),
        (
            f"{A}.use_dynamic_bsz=true {A}.ppo_micro_batch_size_per_gpu=1",
            f"{A}.use_dynamic_bsz=true",
        ),
        (f"method=kl_cov {A}.clip_ratio_high=0.28", f"{LOSS}=kl_cov"),
        ("actor_rollout_ref.ref.fsdp_config.param_offload=true", f"{A}.use_kl_loss=false"),
        (f"{A}.optim.min_lr_ratio=0.1", f"{A}.optim.lr_scheduler_type=constant"),
        (f"{A}.profiler.enable=true", "global_profiler.steps=null"),
        (f"{CRITIC} critic.optim.min_lr_ratio=0.1", "critic.optim.lr_scheduler_type=constant"),
        ("algorithm.use_kl_in_reward=true algorithm.kl_ctrl.horizon=9", "kl_ctrl.type=fixed"),
        ("recipe.rephrasings.ratio=own", "recipe.rephrasings.count=0"),
        (f"{A}.loss_scale_factor=100", f"{A}.loss_agg_mode=seq-mean-token-mean"),
        ("algorithm.filter_groups.enable=true data.gen_batch_size=4", "groups.enable=true"),
        # Negative controls
        (f"{A}.use_kl_loss=false actor_rollout_ref.ref.fsdp_config.param_offload=true", None),
        (f"method=cispo {A}.clip_ratio_high=0.3", None),
        (f"{LOSS}=of_external_lib {A}.clip_ratio_high=0.3", None),
        (f"{CRITIC} critic.optim.lr_scheduler_type=cosine critic.optim.min_lr_ratio=0.1", None),
        (f"global_profiler.steps=[1] global_profiler.tool=torch {A}.profiler.enable=true", None),
        (KL.format("true"), None),
        (KL.format("false"), None),  # turned off in the same command
        (OWN_LOSS, None),
        ("method=cw_grpo recipe.weights.gaussian_covariance.preset=official_code", None),
    ],
)
def test_an_override_that_a_switch_turns_off_is_refused(overrides: str, switch: str | None) -> None:
    expected = f"no effect with .*{re.escape(str(switch))}\\."
    with pytest.raises(ConfigError, match=expected) if switch else contextlib.nullcontext():
        compose_config("toy_methods", overrides.split())


@pytest.mark.config
def test_the_loggers_are_verls() -> None:
    from verl.utils.tracking import Tracking

    assert set(get_args(verl_types.Logger)) == set(Tracking.supported_backend)


@pytest.mark.config
def test_keys_that_have_moved_are_gone_and_their_places_exist() -> None:
    for pattern, text in yaml.safe_load((CONFIG / "moved.yaml").read_text("utf-8")).items():
        assert "*" in pattern or pattern not in known_keys()
        named = re.findall(r"set ([a-z_]+\.[a-z_.]*[a-z_])(?![.*\w])", text)
        assert [key for key in named if key not in known_keys()] == [], text


# ------------------------------------------------------------------------- commands

# (arguments, exit code, what stderr names)
COMMANDS: list[tuple[str, int, str]] = [
    ("", 2, "name an example"),
    ("toy --multirun", 2, "--multirun"),
    ("tyo", 1, "did you mean toy"),
    ("toy model_engine=megatron", 1, "model_engine=megatron: "),
    ("toy trainer.total_training_step=3", 1, "did you mean trainer.total_training_steps"),
    ("toy +actor.use_dynamic_bsz=true", 1, "actor_rollout_ref.actor.use_dynamic_bsz"),
    ("toy recipe.method=cw_grpo", 1, "Write method=cw_grpo"),
    ("toy actor_rollout_ref.rollout.n_val=8", 1, "rollout.val_kwargs.n"),
    ("toy actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2", 1, "Megatron"),
    ("toy ~data.seed", 1, "deletes a key"),
    ("toy recipe.seed", 1, "form key=value"),
    ("toy recipe.seed=1,2", 1, "recipe.seed=1,2"),
    ("toy recipe=3", 1, "recipe=3: this is a section"),
    ("toy +hydra.run.dir=x", 1, "hydra.run.dir"),
    ("toy method=gropo", 1, "method/gropo"),
    ("toy machine=null", 1, "must be a string or a list"),
    ("toy +method=dapo", 1, "Multiple values for method"),
    ("toy recipe.name=${nope}", 1, "'nope' not found"),
    ("toy recipe.run_dir='runs/ü x' recipe.seed=-1", 1, "recipe.seed=-1"),
    ("toy recipe.run_dir=/dev/null/x", 1, "recipe.run_dir=/dev/null/x"),
    ("toy recipe.model_path=/nowhere/model", 1, "recipe.model_path=/nowhere/model"),
    ("toy recipe.model_path=null", 1, "recipe.model_path"),
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
    import shlex

    monkeypatch.chdir(tmp_path)
    try:
        assert train.main(shlex.split(command)) == code
    except SystemExit as error:  # argparse
        assert error.code == code
    stderr = capsys.readouterr().err
    assert named in stderr and "Traceback" not in stderr
    assert list(tmp_path.iterdir()) == []  # nothing was written


HEAD = "defaults: [recipe, _self_]\n"
FILES = {
    "recipe: {name: x": "config.yaml",
    "data: {seed: 3}\n": "section recipe",
    HEAD + "recipe: {name: x}\ndata: {train_batch_sise: 3}\n": "did you mean data.train_batch_size",
    HEAD: "recipe.name: not set",
    HEAD + "recipe: {name: x}\n": "trainer.total_training_steps: not set",
    HEAD + "recipe: {name: \xff\xfe}\n": "config.yaml",  # not UTF-8
}


@pytest.mark.config
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(("content", "named"), FILES.items())
def test_a_broken_example_is_refused(
    content: str, named: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_bytes(content.encode("latin-1"))
    assert train.main([str(tmp_path)]) == 1
    stderr = capsys.readouterr().err
    assert named in stderr and "Traceback" not in stderr


@pytest.mark.config
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize(
    ("key", "content"),
    [
        ("data.train_files", b"PAR1 torn"),
        ("data.val_files", b"{}"),
        ("recipe.augment.bank", b"\xff\xfe"),
    ],
)
def test_an_own_file_that_cannot_be_read(
    key: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own").write_bytes(content)
    run = f"recipe.run_dir={tmp_path}/run"
    assert train.main(["toy", f"{key}={tmp_path}/own", run]) == 1
    stderr = capsys.readouterr().err
    assert f"{tmp_path}/own" in stderr and "Traceback" not in stderr
