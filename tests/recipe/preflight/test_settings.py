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
from recipe.config import settings, switches, verl_types
from recipe.config.base import CONFIG, base, flat, known_keys
from recipe.config.compose import compose_config
from recipe.config.verl import unknown_key
from recipe.errors import ConfigError
from recipe.preflight.checks import validate
from recipe.trainer import launch

A, R, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"

# Each is set in a valid configuration of the toy; the message must name the key.
SETTINGS = f"""
{R}.temperature=0           {R}.temperature=-1             {R}.temperature=nan
{R}.n=0                     {R}.n=1                        {R}.top_p=0
{R}.top_p=1.5               {R}.top_k=0                    {R}.name=sglang
{R}.val_kwargs.n=0          {R}.val_kwargs.temperature=-3  {R}.max_num_seqs=0
{R}.dtype=int8              {R}.gpu_memory_utilization=2   {R}.gpu_memory_utilization=0
{R}.max_model_len=100       {R}.prompt_length=4            {R}.response_length=4000
{R}.data_parallel_size=0    {R}.pipeline_model_parallel_size=x
{R}.tensor_model_parallel_size=0                           {R}.tensor_model_parallel_size=4
{R}.full_determinism=true   {R}.agent.default_agent_loop=tool_agent
trainer.total_training_steps=0      trainer.total_training_steps=-5  trainer.total_epochs=0
trainer.total_training_steps=ten    trainer.total_training_steps=1.5 trainer.nnodes=-1
trainer.total_training_steps=null   trainer.n_gpus_per_node=0        trainer.n_gpus_per_node=3
trainer.device=tpu                  trainer.save_freq=-2             trainer.save_freq=often
trainer.max_actor_ckpt_to_keep=0    trainer.logger=[consol]          trainer.logger=tensorbord
trainer.resume_mode=disable         trainer.resume_mode=resume_path  trainer.val_only=true
trainer.default_local_dir=/proc/x   trainer.default_local_dir=runs/other/checkpoints
trainer.v1.trainer_mode=separate_async      trainer.v1.sampler.sync_refill_failed_groups=true
trainer.balance_batch=false       
{MODEL}.tiled_mlp.enabled=true      {A}.use_prefix_grouper=true      {R}.multi_turn.enable=true
{R}.nnodes=2                        {R}.checkpoint_engine.backend=nccl
actor_rollout_ref.hybrid_engine=false       data.truncation=left     {R}.trace.backend=weave
reward.sandbox_fusion.url=http://x  {R}.enable_rollout_routing_replay=true
data.max_response_length=0          data.max_response_length=1000000000 data.max_prompt_length=-1
data.train_batch_size=0             data.train_batch_size=30         data.gen_batch_size=0
data.val_max_samples=0
data.train_max_samples=0            data.val_batch_size=0            data.train_files=''
data.val_files=['']                 data.custom_cls.path=/nowhere.py
{A}.ppo_epochs=0            {A}.ppo_mini_batch_size=0      {A}.ppo_micro_batch_size_per_gpu=48
{A}.optim.lr=0              {A}.optim.lr=-1e-6             {A}.optim.lr=inf
{A}.optim.lr=nan            {A}.optim.lr=fast              {A}.optim.lr=1e6
{A}.optim.lr_warmup_steps=-2        {A}.optim.lr_warmup_steps=null   {A}.optim.clip_grad=0
{A}.checkpoint.save_contents=null   {A}.optim.override_optimizer_config=true
{A}.checkpoint.load_contents=1      {A}.fsdp_config.ulysses_sequence_parallel_size=nan
{A}.optim.lr_warmup_steps_ratio=2   {A}.optim.lr_scheduler_type=linear
{A}.optim.weight_decay=-0.1         {A}.optim.betas=[0.9]            {A}.optim.betas=[0.9,1.0]
{A}.optim.total_training_steps=500  data.tool_config_path=tools.yaml
{A}.clip_ratio_low=nan      {A}.clip_ratio_high=-0.2       {A}.clip_ratio_high=inf
{A}.clip_ratio_c=1          {A}.kl_loss_coef=-0.001
{A}.entropy_coeff=nan       {A}.loss_agg_mode=mean         {A}.policy_loss.loss_mode=ppo
{A}.loss_scale_factor=-1    {A}.use_dynamic_bsz=yes        {A}.strategy=fsdp9
{A}.grad_clip=0.1           {A}.checkpoint.async_save=true {A}.checkpoint.save_contents=[model]
{A}.ulysses_sequence_parallel_size=2        {MODEL}.external_lib=nowhere
{MODEL}.trust_remote_code=true      {MODEL}.custom_chat_template=x     {MODEL}.tokenizer_path=x
{MODEL}.hf_config_path=x
{MODEL}.lora_rank=8         {MODEL}.lora_adapter_path=x    {MODEL}.lora.merge=true
{MODEL}.fused_kernel_options.impl_backend=cuda          {R}.quantization=int4
{MODEL}.lora_rank=-1        {MODEL}.lora_alpha=0           {MODEL}.lora.rank=8
{R}.agent.agent_loop_manager_class=nowhere.Manager
reward.reward_model.enable=true     reward.reward_manager.module.path=pkg://nowhere
reward.reward_manager.source=register       reward.reward_manager.module.path=/nowhere.py
reward.custom_reward_function.path=x.py     custom_reward_function.path=x.py
critic.loss_agg_mode=mean    critic.optim.lr=0              critic.fsdp.model_dtype=int8
critic.enable=true          distillation.enabled=true      ray_kwargs.ray_init.num_cpus=0
algorithm.adv_estimator=gae         algorithm.norm_adv_by_std_in_grpo=false
algorithm.kl_penalty=full           algorithm.kl_ctrl.type=x         {A}.kl_loss_type=foo
algorithm.filter_groups.metric=score        algorithm.rollout_correction.rollout_is=tokens
recipe.advantage.group=row
eval.temperature=hot        eval.temperature=-1            eval.benchmarks=3
eval.template=nope          eval.max_model_len=1           eval.dtype=int8
eval.max_tokens=0
recipe.keep_best=nope       recipe.keep_best=val/toy/accuracy/mean
recipe.reward.verifiers=mine.check          recipe.reward.verifier_limits.cpu_seconds=0
recipe.reward.verifiers={{toy:3}}           eval.verifiers=mine.check
recipe.source_weights=2                     recipe.source_weights={{toy:0}}
recipe.seed=-1              recipe.seed=4294967296         recipe.seed=0.5
recipe.name=''              recipe.run_dir=''              recipe.model_path=''
recipe.toy.cache=''         recipe.overlong_filter=maybe   recipe.overlong_filter=1
recipe.toy.world=1          recipe.save_rollouts_every=-1  recipe.save_tensors_every=x
recipe.augment.bank=''      recipe.augment.bank=/          recipe.augment.bank=/nowhere/bank.yaml
recipe.augment.mode=sometimes       recipe.augment.mode=fixed        recipe.augment.format=loose
recipe.augment.style=plain          recipe.augment.templates=[]
recipe.augment.templates=[qwen-math,qwen-math]      recipe.augment.templates=[qwen_math]
recipe.augment.templates=qwen-math          recipe.augment.validation_template=nope
recipe.augment.weights=[1,-1,1,1]   recipe.augment.weights=[0,0,0,0]
recipe.augment.weights=[1,nan,1,1]  recipe.augment.weights=[1,1]
recipe.reward.format_weight=-1      recipe.reward.overlong.buffer=0
recipe.reward.overlong.factor=0     recipe.rollout.poll_seconds=0
recipe.rephrasings.count=-1         recipe.rephrasings.count=2
recipe.rephrasings.ratio=both
recipe.advantage.name=gae   recipe.advantage.name=''       recipe.advantage.name=..
recipe.advantage.name=nowhere.f     recipe.advantage.name=os.path
recipe.advantage.name=this_is.broken-name   recipe.advantage.name=os.path.join
recipe.advantage.arguments={{zzz:1}}        recipe.advantage.arguments=3
recipe.weights.name=cosine          recipe.weights.name=math.sqrt
recipe.weights.clip_cov.ratio=0
recipe.dynamic_sampling.max_gen_batches=0   recipe.dynamic_sampling.on_exhausted=wait
reward_model.reward_manager=dapo    algorithm.use_pf_ppo=true        {R}.over_sample_rate=1
algorithm.filter_groups.max_num_gen_batches=3                        {R}.val_kwargs.do_sample=true
trainer.v1.sampler.custom_sampler.path=x    trainer.resume_from_path=x       {R}.do_sample=false
{R}.do_sample=0             algorithm.norm_adv_by_std_in_grpo=0
{A}.checkpoint.load_contents=[model]
recipe.guard.action=rollback
recipe.history.weight=0     recipe.history.floor=0.5       recipe.curriculum.candidates=0
recipe.curriculum.target=2  recipe.curriculum.decay=0      recipe.one_question=-1
recipe.one_question=[1]     {R}.max_model_len=null
{A}.policy_loss.loss_mode=clipcov   data.return_raw_chat=false       reward_model.enable=true
{R}.mode=sync               {R}.pipeline_model_parallel_size=2     {R}.multi_turn.max_user_turns=3
""".split()
# (setting, other key that the message names)
NAMES_ANOTHER = [
    ("eval.benchmarks=[{path: x}]", "eval.benchmarks[0].name"),
    ("eval.benchmarks=[{name: amc, sample: 4}]", "eval.benchmarks[0].sample"),
    ("eval.benchmarks=[{name: amc, samples: 0}]", "eval.benchmarks[0].samples=0"),
    ("eval.benchmarks=[{name: amc, template: nope}]", "eval.benchmarks"),
    ("reward.reward_manager.name=Nobody", "reward.reward_manager.module.path"),
    ("recipe.run_dir='  '", "recipe.run_dir"),
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
def test_another_engine_is_refused_by_its_reason() -> None:
    with pytest.raises(ConfigError, match="model_engine=megatron: "):
        composed("toy", "model_engine=megatron")


@pytest.mark.config
def test_several_bad_values_are_all_named() -> None:
    with pytest.raises(ConfigError) as refused:
        composed("toy", f"{A}.optim.lr=nan", "recipe.overlong_filter=maybe")
    assert [line.partition("=")[0] for line in str(refused.value).splitlines()] == [
        "recipe.overlong_filter",
        f"{A}.optim.lr",
    ]


def test_every_key_of_ours_has_a_type_and_every_typed_key_exists() -> None:
    ours = {key for key, _ in flat(base()) if key.startswith("recipe.")}
    assert {key for key in ours if "verifier_limits" not in key} <= set(settings.meanings())
    for end in verl_types.TYPES:
        assert any(f".{key}".endswith(f".{end}") for key in known_keys()), end
    for switch in switches.SWITCHES:
        assert {switch.key, switch.read} <= known_keys(), switch


def test_the_page_of_settings_has_a_meaning_for_each() -> None:
    assert all(text for text in settings.meanings().values())
    assert "recipe.seed=42 " in settings.page()


NAME = "recipe.weights.name"
CRITIC = "critic.enable=true"
KL = f"{A}.use_kl_loss={{}} {A}.kl_loss_coef=0.04"
OWN_LOSS = f"{A}.policy_loss._target_=my.Loss {A}.policy_loss.clip_cov_ratio=0.1"


@pytest.mark.config
@pytest.mark.parametrize(
    ("overrides", "switch"),
    [
        (f"{A}.kl_loss_coef=0.04", f"{A}.use_kl_loss=false"),
        (f"{A}.kl_loss_type=k3", f"{A}.use_kl_loss=false"),
        ("recipe.guard.window=5", "recipe.guard.action=off"),
        ("recipe.guard={window:5}", "recipe.guard.action=off"),
        (f"{MODEL}.lora_alpha=32", f"{MODEL}.lora_rank=0"),
        ("method=cw_grpo recipe.weights.clip_cov.ratio=0.1", f"{NAME}=gaussian_covariance"),
        (f"method=sapo {A}.policy_loss.ppo_kl_coef=1", f"{switches.LOSS}=sapo"),
        (f"{A}.ppo_max_token_len_per_gpu=512", f"{A}.use_dynamic_bsz=false"),
        (
            f"{A}.use_dynamic_bsz=true {A}.ppo_micro_batch_size_per_gpu=1",
            f"{A}.use_dynamic_bsz=true",
        ),
        (f"method=kl_cov {A}.clip_ratio_high=0.28", f"{switches.LOSS}=kl_cov"),
        (f"method=gspo {A}.clip_ratio_c=10", f"{switches.LOSS}=gspo"),
        ("actor_rollout_ref.ref.fsdp_config.param_offload=true", f"{A}.use_kl_loss=false"),
        (f"{A}.optim.min_lr_ratio=0.1", f"{A}.optim.lr_scheduler_type=constant"),
        (f"{A}.data_loader_seed=3", f"{A}.shuffle=false"),
        (f"{A}.profiler.enable=true", "global_profiler.steps=null"),
        ("global_profiler.tool=torch", "global_profiler.steps=null"),
        (f"{CRITIC} critic.optim.min_lr_ratio=0.1", "critic.optim.lr_scheduler_type=constant"),
        (f"{CRITIC} critic.profiler.enable=true", "global_profiler.steps=null"),
        ("algorithm.use_kl_in_reward=true algorithm.kl_ctrl.horizon=9", "kl_ctrl.type=fixed"),
        ("skip.rollout_tq.steps=[1]", "skip.rollout_tq.enable=false"),
        ("recipe.rephrasings.ratio=own", "recipe.rephrasings.count=0"),
        ("recipe.advantage.group=rephrasing", "recipe.rephrasings.count=0"),
        (f"{A}.loss_scale_factor=100", f"{A}.loss_agg_mode=seq-mean-token-mean"),
        ("algorithm.filter_groups.enable=true data.gen_batch_size=4", "groups.enable=true"),
        ("data.custom_cls.name=Mine", "data.custom_cls.path=null"),
        (f"{R}.cudagraph_capture_sizes=[1,2]", f"{R}.enforce_eager=true"),
        # Negative controls
        (f"{A}.use_kl_loss=false actor_rollout_ref.ref.fsdp_config.param_offload=true", None),
        (f"method=cispo {A}.clip_ratio_high=0.3", None),
        (f"{switches.LOSS}=of_external_lib {A}.clip_ratio_high=0.3", None),
        (f"{CRITIC} critic.optim.lr_scheduler_type=cosine critic.optim.min_lr_ratio=0.1", None),
        (f"global_profiler.steps=[1] global_profiler.tool=torch {A}.profiler.enable=true", None),
        (f"{A}.ppo_micro_batch_size_per_gpu=32", None),
        (KL.format("true"), None),
        (KL.format("false"), None),  # turned off in the same command
        (OWN_LOSS, None),
        (f"{MODEL}.lora_rank=8 {MODEL}.lora_alpha=32", None),
        ("method=cw_grpo recipe.weights.gaussian_covariance.preset=official_code", None),
        (f"method=sapo {A}.tau_pos=2", None),
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


@pytest.mark.parametrize(
    "key",
    [
        "actor_rollout_ref.rollout.prefix_strategy",
        "actor_rollout_ref.actor.engine.tp",
        "data.reward_impl_version",
        "trainer.rejection_sample",
        "algorithm.use_sft",
    ],
)
def test_a_key_of_nobody_gets_no_hint(key: str) -> None:
    assert "did you mean" not in unknown_key(key)


# ------------------------------------------------------------------------- commands

# (arguments, exit code, what stderr names)
COMMANDS: list[tuple[str, int, str]] = [
    ("", 2, "name an example"),
    ("--lis", 2, "unrecognized arguments"),
    ("toy --list --cfg", 2, "not allowed with"),
    ("tyo", 1, "did you mean toy"),
    ("''", 1, "no example ''"),
    ("/nowhere", 1, "no example '/nowhere'"),
    ("toy trainer.total_training_step=3", 1, "did you mean trainer.total_training_steps"),
    ("toy actor.use_dynamic_bsz=true", 1, "actor_rollout_ref.actor.use_dynamic_bsz"),
    ("toy +actor.use_dynamic_bsz=true", 1, "actor_rollout_ref.actor.use_dynamic_bsz"),
    ("toy recipe.method=cw_grpo", 1, "Write method=cw_grpo"),
    ("toy recipe.neighbours.count=3", 1, "recipe.rephrasings.count"),
    ("toy +recipe.mode=fixed", 1, "did you mean recipe.augment.mode"),
    ("toy ++trainer.stepps=3", 1, "'trainer.stepps'"),
    ("toy trainer.stepps=3 recipe.sede=1", 1, "'recipe.sede', did you mean recipe.seed"),
    ("toy actor_rollout_ref.rollout.n_val=8", 1, "rollout.val_kwargs.n"),
    ("toy actor_rollout_ref.model.torch_dtype=bfloat16", 1, "actor.fsdp_config.model_dtype"),
    ("toy critic.model.fsdp_config.param_offload=true", 1, "set critic.fsdp.param_offload"),
    ("toy critic.model.fsdp_config.grad_offload=true", 1, "FSDP offloads gradients with"),
    ("toy actor_rollout_ref.rollout.n_agent=5", 1, "set actor_rollout_ref.rollout.n"),
    ("toy +trainer.remove_previous_ckpt_in_save=true", 1, "trainer.max_actor_ckpt_to_keep"),
    ("toy +reward.reward_kwargs.overlong_buffer_cfg.len=512", 1, "recipe.reward.overlong.buffer"),
    ("toy actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2", 1, "Megatron"),
    ("toy +eval.temprature=1", 1, "did you mean eval.temperature"),
    ("toy ~data.seed", 1, "deletes a key"),
    ("toy recipe.seed", 1, "form key=value"),
    ("toy recipe.seed=1,2", 1, "recipe.seed=1,2' is a sweep"),
    ("toy recipe=3", 1, "recipe is a section"),
    ("toy recipe.augment=3", 1, "recipe.augment=3"),
    ("toy hydra.mode=MULTIRUN", 1, "'hydra.mode=MULTIRUN'"),
    ("toy hydra/launcher=basic", 1, "hydra/launcher"),
    ("toy +hydra.run.dir=x", 1, "hydra.run.dir"),
    ("toy ~hydra", 1, "'~hydra'"),
    ("toy --multirun", 2, "--multirun"),
    ("-m toy", 2, "--multirun"),
    ("toy method=gropo", 1, "method/gropo"),
    ("toy machine=tpu", 1, "machine/tpu"),
    ("toy machine=null", 1, "must be a string or a list"),
    ("toy +method=dapo", 1, "Multiple values for method"),
    ("toy recipe.name=${nope}", 1, "'nope' not found"),
    ("toy recipe.seed=-1", 1, "recipe.seed=-1"),
    ("toy recipe.run_dir='runs/ü x' recipe.seed=-1", 1, "recipe.seed=-1"),
    ("toy recipe.run_dir=~/x", 1, "form key=value"),
    ("toy recipe.run_dir=/dev/null/x", 1, "recipe.run_dir=/dev/null/x"),
    ("toy data.train_batch_size=100000000", 1, "data.train_batch_size"),
    ("toy recipe.model_path=/nowhere/model", 1, "recipe.model_path=/nowhere/model"),
    ("toy recipe.model_path=.", 1, "config.json"),
    ("toy recipe.toy.world=nope", 1, "recipe.toy.world=nope"),
    ("toy recipe.toy.enable=false", 1, "recipe.model_path"),
    ("toy data.train_files=/nowhere.parquet", 1, "data.train_files=/nowhere.parquet"),
    ("one_shot data.train_files=null", 1, "data.train_files"),
    ("toy method=one_shot", 1, "recipe.one_question"),
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
    said = capsys.readouterr().err
    assert named in said and "Traceback" not in said
    assert list(tmp_path.iterdir()) == []  # nothing was written


HEAD = "defaults: [recipe, _self_]\n"
FILES = {
    "recipe: {name: x": "config.yaml",
    "recipe:\n\tname: x\n": "config.yaml",
    "data: {seed: 3}\n": "section recipe",
    f"hydra: {{mode: MULTIRUN}}\n{HEAD}recipe: {{name: x}}\n": "config.yaml, section hydra",
    "- recipe\n": "config.yaml",
    "": "section recipe",
    HEAD + "recipe: {name: x}\ndata: {train_batch_sise: 3}\n": "did you mean data.train_batch_size",
    HEAD + "recipes: {name: x}\n": "no key 'recipes'",
    HEAD: "recipe.name: not set",
    HEAD + "recipe: {name: x}\n": "trainer.total_training_steps: not set",
    "defaults: [recipes, _self_]\n": "Could not",
    HEAD + "recipe: 3\n": "recipe=3",
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
    said = capsys.readouterr().err
    assert named in said and "Traceback" not in said


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
def test_an_own_file_is_read_before_a_toy_world_is_made(
    key: str, content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own").write_bytes(content)
    run, cache = f"recipe.run_dir={tmp_path}/run", f"recipe.toy.cache={tmp_path}/toy"
    assert train.main(["toy", f"{key}={tmp_path}/own", run, cache]) == 1
    said = capsys.readouterr().err
    assert f"{tmp_path}/own" in said and "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["own"]
