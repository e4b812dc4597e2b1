"""A careless user's commands: exit code 1 or 2, one clear message, no traceback, nothing started.

`SETTINGS` are values, applied to a composed example and put through the same checks as a launch;
`COMMANDS` go through ``recipe.train``'s own entry. A case is (arguments, words of the message).
"""

import copy
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from composed import composed
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from recipe import train
from recipe.checks import validate
from recipe.checks.machine import check_gpus, check_loggers
from recipe.checks.same_run import check_same_run
from recipe.config.compose import known_keys
from recipe.config.schema import VERL
from recipe.errors import ConfigError
from recipe.run.folder import RunFolder
from recipe.trainer import launch

A, R = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"

SETTINGS: list[tuple[str, str]] = [
    # nothing would be learned, or nothing done
    (f"{R}.temperature=0", "greater than 0"),
    (f"{R}.temperature=-1", "greater than 0"),
    (f"{R}.temperature=nan", "finite number"),
    ("trainer.total_training_steps=0", "0 steps would be done"),
    ("trainer.total_training_steps=-5", "0 steps would be done"),
    ("trainer.total_training_steps=ten", "should be a whole number"),
    ("trainer.total_training_steps=1.5", "should be a whole number"),
    ("trainer.total_training_steps=null", "trainer.total_training_steps is not set"),
    ("data.max_response_length=0", "greater than or equal to 1"),
    ("data.max_prompt_length=-1", "greater than or equal to 1"),
    ("data.train_batch_size=0", "greater than or equal to 1"),
    (f"{R}.n=0", "greater than or equal to 1"),
    (f"{R}.n=1", "no baseline"),
    (f"{A}.ppo_epochs=0", "greater than or equal to 1"),
    ("trainer.total_epochs=0", "greater than or equal to 1"),
    # evaluation's defaults, and what other machines have
    ("eval.temperature=hot", "should be a number"),
    ("eval.temperature=-1", "greater than or equal to 0"),
    ("eval.benchmarks=3", "should be a list"),
    ("eval.benchmarks=[{path: x}]", "eval.benchmarks[0].name is not set"),
    ("eval.benchmarks=[{name: amc, sample: 4}]", "eval.benchmarks[0].sample"),
    ("eval.benchmarks=[{name: amc, samples: 0}]", "greater than or equal to 1"),
    ("eval.benchmarks=[{name: amc, template: nope}]", "eval.benchmarks: no template 'nope'"),
    ("eval.template=nope", "eval.template: no template 'nope' in the bank"),
    ("eval.max_model_len=1", "greater than or equal to 2"),
    ("eval.dtype=int8", "eval.dtype=int8"),
    ("eval.max_tokens=0", "greater than or equal to 1"),
    ("recipe.keep_best=nope", "should be val/SOURCE/accuracy"),
    ("recipe.keep_best=val/toy/accuracy/mean", "should be val/SOURCE/accuracy"),
    ("ray_kwargs.ray_init.num_cpus=0", "greater than or equal to 1"),
    # learning rates and clips
    (f"{A}.optim.lr=0", "greater than 0"),
    (f"{A}.optim.lr=-1e-6", "greater than 0"),
    (f"{A}.optim.lr=inf", "finite number"),
    (f"{A}.optim.lr=nan", "finite number"),
    (f"{A}.optim.lr=fast", "should be a number"),
    (f"{A}.optim.lr=1e6", "less than or equal to 1"),
    (f"{A}.optim.lr_warmup_steps=-2", "greater than or equal to -1"),
    (f"{A}.optim.lr_warmup_steps_ratio=2", "less than or equal to 1"),
    (f"{A}.optim.lr_scheduler_type=linear", "'constant' or 'cosine'"),
    (f"{A}.optim.weight_decay=-0.1", "greater than or equal to 0"),
    (f"{A}.optim.betas=[0.9]", "at least 2 items"),
    (f"{A}.optim.betas=[0.9,1.0]", "less than 1"),
    (f"{A}.optim.clip_grad=0", "greater than 0"),
    (f"{A}.clip_ratio_low=nan", "finite number"),
    (f"{A}.clip_ratio_high=-0.2", "greater than or equal to 0"),
    (f"{A}.clip_ratio_high=inf", "finite number"),
    (f"{A}.clip_ratio_c=1", "greater than 1"),
    (f"{A}.clip_ratio=0.3", "has no effect beside"),
    (f"{A}.kl_loss_coef=-0.001", "greater than or equal to 0"),
    (f"{A}.entropy_coeff=nan", "finite number"),
    (f"{A}.loss_agg_mode=mean", "'token-mean'"),
    (f"{A}.policy_loss.loss_mode=ppo", "known are vanilla"),
    (f"{A}.use_dynamic_bsz=yes please", "true or false"),
    # sizes
    ("data.train_batch_size=30", "is not a multiple of"),
    (f"{A}.ppo_mini_batch_size=0", "greater than or equal to 1"),
    (f"{A}.ppo_micro_batch_size_per_gpu=48", "does not divide the 64 rows"),
    (f"{R}.max_model_len=100", "silently cut responses"),
    (f"{R}.top_p=0", "greater than 0"),
    (f"{R}.top_p=1.5", "less than or equal to 1"),
    (f"{R}.gpu_memory_utilization=2", "less than or equal to 1"),
    (f"{R}.gpu_memory_utilization=0", "greater than 0"),
    (f"{R}.tensor_model_parallel_size=0", "greater than or equal to 1"),
    (f"{R}.tensor_model_parallel_size=4", "does not divide the 1 GPUs"),
    (f"{R}.name=sglang", "'vllm'"),
    (f"{R}.top_k=0", "would leave none"),
    (f"{R}.val_kwargs.n=0", "greater than or equal to 1"),
    (f"{R}.val_kwargs.temperature=-3", "greater than or equal to 0"),
    (f"{A}.strategy=fsdp9", "'fsdp' or 'fsdp2'"),
    ("data.val_max_samples=0", "would leave none"),
    ("data.train_max_samples=0", "would leave none"),
    ("data.val_batch_size=0", "greater than or equal to 1"),
    (f"{R}.max_num_seqs=0", "greater than or equal to 1"),
    (f"{R}.dtype=int8", "'float32'"),
    ("trainer.n_gpus_per_node=0", "greater than or equal to 1"),
    ("trainer.n_gpus_per_node=3", "does not divide over 3"),
    ("trainer.nnodes=-1", "greater than or equal to 1"),
    ("trainer.device=tpu", "'cpu' or 'cuda'"),
    ("trainer.save_freq=-2", "greater than or equal to -1"),
    ("trainer.save_freq=often", "should be a whole number"),
    ("trainer.max_actor_ckpt_to_keep=0", "greater than or equal to 1"),
    ("trainer.logger=[consol]", "'console'"),
    ("trainer.logger=tensorbord", "'tensorboard'"),
    ("trainer.resume_mode=disable", "resumed from its own last checkpoint"),
    # the recipe's own
    ("recipe.seed=-1", "greater than or equal to 0"),
    ("recipe.seed=4294967296", "less than 4294967296"),
    ("recipe.seed=0.5", "should be a whole number"),
    ("recipe.name=''", "must not be empty"),
    ("recipe.run_dir=''", "must not be empty"),
    ("recipe.run_dir='  '", "must not be empty"),
    ("recipe.model_path=''", "must not be empty"),
    ("data.train_files=''", "must not be empty"),
    ("data.val_files=['']", "must not be empty"),
    ("recipe.toy.cache=''", "must not be empty"),
    ("recipe.augment.bank=''", "must not be empty"),
    ("recipe.augment.bank=/nowhere/bank.yaml", "is missing"),
    ("recipe.worker_logs=maybe", "true or false"),
    ("recipe.worker_logs=1", "true or false"),
    ("recipe.min_free_gib=-1", "greater than or equal to 0"),
    ("recipe.save_rollouts_every=-1", "greater than or equal to 0"),
    ("recipe.save_tensors_every=x", "should be a whole number"),
    ("recipe.augment.mode=sometimes", "'per_question', 'per_rollout' or 'fixed'"),
    ("recipe.augment.mode=fixed", "wants one name"),
    ("recipe.augment.format=loose", "'strict' or 'published'"),
    ("recipe.augment.style=plain", "'auto', 'chat', 'raw' or 'bare'"),
    ("recipe.augment.templates=[]", "at least 1 item"),
    ("recipe.augment.templates=[qwen-math,qwen-math]", "listed twice"),
    ("recipe.augment.templates=[qwen_math]", "no template 'qwen_math'"),
    ("recipe.augment.templates=qwen-math", "should be a list"),
    ("recipe.augment.validation_template=nope", "The bank has: abel"),
    ("recipe.augment.weights=[1,-1,1,1]", "greater than or equal to 0"),
    ("recipe.augment.weights=[0,0,0,0]", "all weights are 0"),
    ("recipe.augment.weights=[1,nan,1,1]", "finite number"),
    ("recipe.augment.weights=[1,1]", "2 values for 4 templates"),
    ("recipe.reward.format_weight=-1", "greater than or equal to 0"),
    ("recipe.reward.overlong.buffer=0", "greater than or equal to 1"),
    ("recipe.reward.overlong.factor=0", "greater than 0"),
    ("recipe.rollout.poll_seconds=0", "greater than 0"),
    ("recipe.rephrasings.count=-1", "greater than or equal to 0"),
    ("recipe.rephrasings.count=2", "must be a multiple"),
    ("recipe.rephrasings.ratio=both", "'anchored' or 'own'"),
    ("recipe.advantage.name=gae", "recipe.advantage.name=gae"),
    ("recipe.advantage.name=''", "must not be empty"),
    ("recipe.advantage.name=..", "no dotted path"),
    ("recipe.advantage.name=nowhere.f", "must be in the PYTHONPATH"),
    ("recipe.advantage.name=os.path", "is not a function"),
    ("recipe.advantage.name=this_is.broken-name", "no dotted path"),
    ("recipe.advantage.name=os.path.join", "a call on a trial batch"),
    ("recipe.weights.name=math.sqrt", "a call on a trial batch"),
    ("reward.reward_manager.module.path=pkg://nowhere", "there is no module nowhere"),
    ("reward.reward_manager.module.path=/nowhere.py", "there is no such file"),
    ("reward.reward_manager.name=Nobody", "Nobody is not defined there"),
    (f"{R}.agent.agent_loop_manager_class=nowhere.Manager", "there is no module nowhere"),
    ("actor_rollout_ref.model.external_lib=nowhere", "there is no module nowhere"),
    ("recipe.advantage.arguments={zzz: 1}", "takes no zzz; its arguments are rewards_B"),
    ("recipe.advantage.arguments=3", "recipe.advantage.arguments=3"),
    ("recipe.weights.arguments={zzz: 1}", "has no effect with"),
    ("data.max_response_length=1000000000", "is less than"),
    ("recipe.augment.bank=/", "is a folder"),
    ("recipe.weights.name=cosine", "recipe.weights.name=cosine"),
    ("recipe.weights.clip_cov.ratio=0", "greater than 0"),
    ("recipe.dynamic_sampling.max_gen_batches=0", "greater than or equal to 1"),
    ("recipe.dynamic_sampling.on_exhausted=wait", "'train' or 'stop'"),
    ("recipe.history.weight=0", "greater than 0"),
    ("recipe.history.floor=0.5", "less than or equal to 0"),
    ("recipe.curriculum.candidates=0", "greater than or equal to 1"),
    ("recipe.curriculum.target=2", "less than or equal to 1"),
    ("recipe.curriculum.decay=0", "greater than 0"),
    ("recipe.one_question=-1", "recipe.one_question=-1"),
    ("recipe.one_question=[1]", "recipe.one_question=[1]"),
    # of verl, without effect or against what a run promises
    ("algorithm.adv_estimator=gae", "set recipe.advantage.name"),
    ("critic.enable=true", "no effect"),
    ("reward.reward_model.enable=true", "this project's grader"),
    ("trainer.v1.trainer_mode=separate_async", "must be recipe_sync"),
    ("trainer.v1.sampler.sync_refill_failed_groups=true", "no effect"),
    ("trainer.default_local_dir=/proc/x", "choose the folder of the run with recipe.run_dir"),
    ("trainer.default_local_dir=runs/other/checkpoints", "are in runs/toy/checkpoints"),
    ("data.gen_batch_size=7", "does not divide data.train_batch_size=16"),
    ("data.gen_batch_size=32", "does not divide data.train_batch_size=16"),
    ("data.gen_batch_size=0", "greater than or equal to 1"),
    ("trainer.total_epochs=2", "set trainer.total_training_steps"),
    ("trainer.val_only=true", "eval.sweep"),
    (f"{A}.grad_clip=0.1", "see actor_rollout_ref.actor.optim.clip_grad instead"),
    (f"{R}.response_length=4000", "is not data.max_response_length="),
    (f"{R}.prompt_length=4", "is not data.max_prompt_length="),
    (f"{A}.optim.lr_warmup_steps=null", "is not set"),
    (f"{A}.loss_scale_factor=100", "has no effect with"),
]


@pytest.fixture(scope="module")
def base(toy_config: Any) -> Any:
    return copy.deepcopy(toy_config)


@pytest.mark.parametrize(("setting", "words"), SETTINGS, ids=lambda v: str(v)[:60])
def test_a_bad_value_is_refused(base: Any, setting: str, words: str) -> None:
    override = OverridesParser.create().parse_override(setting)
    key = override.key_or_group
    assert key in known_keys(), f"{key} is no key: the case tests nothing"
    before = copy.deepcopy(OmegaConf.select(base, key))
    try:
        OmegaConf.update(base, key, override.value())
        with pytest.raises(ConfigError) as refused:
            validate(base)
    except Exception as error:  # BankError: also one of those that the command tells in one line
        assert type(error).__name__ == "BankError", error
        said = str(error)
    else:
        said = str(refused.value)
    finally:
        OmegaConf.update(base, key, before)
    assert words in said
    # The message names a key in full, and says something about no other section.
    assert any(name in said for name in (key, key.rpartition(".")[0])) or "bank" in said
    assert "from the last checkpoint" not in said


def test_checkpoints_may_be_where_the_run_folder_has_them(base: Any, tmp_path: Path) -> None:
    """However it is spelt, as ``recipe.train`` makes it absolute; or on another disk by a link."""
    config = copy.deepcopy(base)
    config.trainer.default_local_dir = str(Path("runs/toy/checkpoints").resolve())
    validate(config)
    (tmp_path / "disk").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoints").symlink_to(tmp_path / "disk")
    config.recipe.run_dir = str(tmp_path / "run")
    config.trainer.default_local_dir = str(tmp_path / "disk")  # resolved
    validate(config)


def test_questions_may_be_fetched_in_chunks_that_divide_a_step(base: Any) -> None:
    config = copy.deepcopy(base)
    for chunk in (1, 4, 16):
        config.data.gen_batch_size = chunk
        validate(config)
    config.algorithm.filter_groups.enable = True
    with pytest.raises(ConfigError, match=r"data\.gen_batch_size=16 has no effect"):
        validate(config)
    config.data.gen_batch_size = 1
    validate(config)


def test_what_is_refused_above_is_let_through_as_it_stands(base: Any) -> None:
    validate(base)


COMMANDS: list[tuple[list[str], int, str]] = [
    ([], 2, "name an example"),
    (["--lis"], 2, "unrecognized arguments"),
    (["toy", "--list", "--cfg"], 2, "not allowed with"),
    (["tyo"], 1, "did you mean toy"),
    ([""], 1, "no example ''"),
    (["/nowhere"], 1, "no example '/nowhere'"),
    (["toy", "trainer.total_training_step=3"], 1, "did you mean trainer.total_training_steps"),
    (["toy", "actor.use_dynamic_bsz=true"], 1, "as actor_rollout_ref.actor.use_dynamic_bsz"),
    (["toy", "+actor.use_dynamic_bsz=true"], 1, "as actor_rollout_ref.actor.use_dynamic_bsz"),
    (["toy", "recipe.neighbours.count=3"], 1, "renamed to recipe.rephrasings.count"),
    (["toy", "+recipe.mode=fixed"], 1, "no key 'recipe.mode', did you mean recipe.augment.mode"),
    (["toy", "++trainer.stepps=3"], 1, "no key 'trainer.stepps'"),
    (["toy", "+eval.temprature=1"], 1, "no key 'eval.temprature', did you mean eval.temperature"),
    (["toy", "~data.seed"], 1, "deletes a key"),
    (["toy", "recipe.seed"], 1, "not an override of the form key=value"),
    (["toy", "recipe.seed=1,2"], 1, "is a sweep"),
    (["toy", "recipe=3"], 1, "is a section"),
    (["toy", "recipe.augment=3"], 1, "is a section"),
    (["toy", "hydra.mode=MULTIRUN"], 1, "'hydra.mode=MULTIRUN': a command is one run"),
    (["toy", "hydra/launcher=basic"], 1, "a command is one run"),
    (["toy", "+hydra.run.dir=x"], 1, "a command is one run"),
    (["toy", "~hydra"], 1, "a command is one run"),
    (["toy", "--multirun"], 2, "--multirun: a command is one run"),
    (["-m", "toy"], 2, "--multirun: a command is one run"),
    (["toy", "method=gropo"], 1, "Could not find 'method/gropo'"),
    (["toy", "machine=tpu"], 1, "Could not find 'machine/tpu'"),
    (["toy", "recipe.name=${nope}"], 1, "'nope' not found"),
    (["toy", "recipe.seed=-1"], 1, "recipe.seed=-1"),
    (["toy", "recipe.augment.templates=[nope]"], 1, "no template 'nope'"),
    (["toy", "recipe.min_free_gib=1e9"], 1, "GiB free"),
    (["toy", "data.train_batch_size=100000000"], 1, "fewer than data.train_batch_size"),
    (["toy", "recipe.model_path=/nowhere/model"], 1, "no such folder, and no hub id"),
    (["toy", "recipe.model_path=."], 1, "there is no config.json in it"),
    (["toy", "recipe.toy.world=nope"], 1, "there is no nope.yaml"),
    (["toy", "recipe.run_dir=/dev/null/x"], 1, "cannot write there"),
    (["toy", "machine=null"], 1, "must be a string or a list"),
    (["toy", "recipe.run_dir=~/x"], 1, "not an override of the form key=value"),
    (["toy", "recipe.run_dir=runs/ü x", "recipe.seed=-1"], 1, "recipe.seed=-1"),
    (["toy", "+method=dapo"], 1, "Multiple values for method"),
    (["toy", "recipe.toy.enable=false"], 1, "recipe.model_path is not set"),
    (["toy", "data.train_files=/nowhere.parquet"], 1, "no such file"),
    (["one_shot", "data.train_files=null"], 1, "data.train_files"),
    (["toy", "method=one_shot"], 1, "give its uid"),
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
@pytest.mark.parametrize(("arguments", "code", "words"), COMMANDS, ids=str)
def test_a_bad_command_is_refused(
    arguments: list[str],
    code: int,
    words: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        assert train.main(arguments) == code
    except SystemExit as error:  # argparse
        assert error.code == code
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said
    assert code == 2 or said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []  # nothing was written


FILES = {
    "torn yaml": ("recipe: {name: x", "config.yaml"),
    "a tab": ("recipe:\n\tname: x\n", "config.yaml"),
    "no section recipe": ("data: {seed: 3}\n", "has to begin with `- recipe`"),
    "hydra's own section": (
        "hydra: {mode: MULTIRUN}\ndefaults: [recipe, _self_]\nrecipe: {name: x}\n",
        "config.yaml, section hydra: a command is one run",
    ),
    "a list": ("- recipe\n", "config.yaml"),
    "empty": ("", "has to begin with `- recipe`"),
    "a misspelt key": (
        "defaults: [recipe, _self_]\nrecipe: {name: x}\ndata: {train_batch_sise: 3}\n",
        "did you mean data.train_batch_size",
    ),
    "an unknown section": ("defaults: [recipe, _self_]\nrecipes: {name: x}\n", "no key 'recipes'"),
    "no name": ("defaults: [recipe, _self_]\n", "recipe.name is not set"),
    "no steps": (
        "defaults: [recipe, _self_]\nrecipe: {name: x}\n",
        "trainer.total_training_steps is not set",
    ),
    "an unknown base": ("defaults: [recipes, _self_]\n", "Could not"),
    "a value for a section": (
        "defaults: [recipe, _self_]\nrecipe: 3\n",
        "recipe=3: this is a section",
    ),
}


@pytest.mark.config
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("case", FILES)
def test_a_broken_example_is_refused_in_one_line(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, words = FILES[case]
    (tmp_path / "config.yaml").write_text(content)
    assert train.main([str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert words in said
    assert "Traceback" not in said
    assert said.count("\n") <= 2  # several values may be missing, a line each


@pytest.mark.config
@pytest.mark.usefixtures("quiet")
def test_an_example_that_is_not_utf8_is_refused(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "config.yaml").write_bytes(b"recipe: {name: \xff\xfe}\n")
    assert train.main([str(tmp_path)]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_gpu_run_wants_a_gpu(base: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    check_gpus(base)  # machine=cpu
    gpu = OmegaConf.merge(base, {"trainer": {"device": "cuda", "n_gpus_per_node": 8}})
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for found, words in ((0, "no GPU"), (4, "has 4: set it to 4")):
        monkeypatch.setattr("recipe.checks.machine.gpu_count", lambda found=found: found)
        with pytest.raises(ConfigError, match=words):
            check_gpus(gpu)
    monkeypatch.setattr("recipe.checks.machine.gpu_count", lambda: 8)
    check_gpus(gpu)
    monkeypatch.setattr("recipe.checks.machine.gpu_count", lambda: 0)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    check_gpus(gpu)  # the GPUs of another cluster


def test_wandb_wants_a_key(base: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = OmegaConf.merge(base, {"trainer": {"logger": ["console", "wandb"]}})
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    netrc = tmp_path / "netrc"
    monkeypatch.setenv("NETRC", str(netrc))
    check_loggers(base)
    with pytest.raises(ConfigError, match="wandb login"):
        check_loggers(wandb)
    netrc.write_text("machine example.com login user password p\n")
    with pytest.raises(ConfigError, match="wandb login"):
        check_loggers(wandb)
    netrc.write_text("machine api.wandb.ai login user password p\n")
    check_loggers(wandb)
    netrc.unlink()
    monkeypatch.setenv("WANDB_MODE", "offline")
    check_loggers(wandb)
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv("WANDB_API_KEY", "k")
    check_loggers(wandb)


def test_the_keys_of_verl_in_the_schema_exist() -> None:
    assert set(VERL) <= known_keys()


@pytest.mark.config
def test_the_loggers_are_verls() -> None:
    from typing import get_args

    from verl.utils.tracking import Tracking

    from recipe.config.schema import Logger

    assert set(get_args(Logger)) == set(Tracking.supported_backend)


@pytest.mark.config
def test_several_bad_values_are_all_named(capsys: Any) -> None:
    with pytest.raises(ConfigError) as refused:
        composed("toy", f"{A}.optim.lr=nan", "recipe.worker_logs=maybe")
    assert [line.partition("=")[0] for line in str(refused.value).splitlines()] == [
        "recipe.worker_logs",
        f"{A}.optim.lr",
    ]


OWN_FILES: dict[str, tuple[bytes, str]] = {
    "data.train_files": (b"PAR1 torn", "is not a readable parquet file"),
    "data.val_files": (b"{}", "is not a readable parquet file"),
    "recipe.augment.bank": (b"\xff\xfe", "is not UTF-8"),
}


@pytest.mark.config
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("key", OWN_FILES)
def test_an_own_file_is_read_before_a_toy_world_is_made(
    key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, words = OWN_FILES[key]
    (tmp_path / "own").write_bytes(content)
    run, cache = f"recipe.run_dir={tmp_path}/run", f"recipe.toy.cache={tmp_path}/toy"
    assert train.main(["toy", f"{key}={tmp_path}/own", run, cache]) == 1
    said = capsys.readouterr().err
    assert words in said and "Traceback" not in said
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


@pytest.mark.parametrize(
    ("module", "words"),
    [("def f(:\n", "SyntaxError"), ("raise ValueError('boom')\n", "ValueError: boom")],
)
def test_an_own_function_in_a_broken_module_is_refused(
    base: Any, module: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"broken_{words[:3].lower()}"
    (tmp_path / f"{name}.py").write_text(module)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = OmegaConf.merge(base, {"recipe": {"advantage": {"name": f"{name}.f"}}})
    with pytest.raises(ConfigError, match=f"{name} cannot be imported .{words}"):
        validate(config)


OWN = """
def scaled(rewards_B, group_B, *, scale): return scale * rewards_B
def shorter(rewards_B, group_B): return rewards_B[1:]
def power(logprobs_BT, advantages_BT, mask_BT, group_B, *, power): return mask_BT.double() ** power
"""


def test_an_own_function_is_called_once_before_the_run(
    base: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "called_once.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    cases: list[tuple[str, str, dict[str, Any], str | None]] = [
        ("advantage", "scaled", {}, "missing 1 required keyword-only argument: 'scale'"),
        ("advantage", "scaled", {"scale": float("inf")}, "must be finite"),
        ("advantage", "scaled", {"scale": 2.0}, None),
        ("advantage", "shorter", {}, r"shape \(15,\) .* shape \(16,\)"),
        ("weights", "power", {"power": 0.7}, None),
        ("weights", "power", {}, r"recipe\.weights\.arguments\.NAME=VALUE"),
    ]
    for section, name, arguments, words in cases:
        chosen = {"name": f"called_once.{name}", "arguments": arguments}
        config = OmegaConf.merge(base, {"recipe": {section: chosen}})
        if words is None:
            validate(config)
            continue
        with pytest.raises(ConfigError, match=words):
            validate(config)


@pytest.mark.parametrize("content", [b"recipe: {", b"\xff", b"- a\n"])
def test_a_run_folder_with_a_torn_record_is_refused(
    base: Any, content: bytes, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path)
    folder.config.write_bytes(content)
    folder.metrics.write_text("")
    with pytest.raises(ConfigError, match=r"choose another folder with recipe\.run_dir"):
        check_same_run(base, folder)
