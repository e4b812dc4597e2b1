"""`recipe.train` up to the start of Ray: composition, checks of settings and data, the launch."""

import copy
import dataclasses
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pandas
import pytest
from omegaconf import OmegaConf, open_dict

from prompt_aug.base.files import lock, read_json, write_json
from prompt_aug.prompts import Prompts
from prompt_aug.questions import make_question, write_parquet
from recipe import train
from recipe.checks import data
from recipe.checks.data import check_templates
from recipe.checks.machine import check_port, check_room
from recipe.checks.same_run import check_same_run
from recipe.config.compose import compose_config
from recipe.errors import ConfigError
from recipe.run import folder as run_folder
from recipe.run import processes
from recipe.run.folder import RunFolder
from recipe.trainer import launch


@pytest.fixture
def config(toy_config: Any, tmp_path: Path) -> Any:
    copied = copy.deepcopy(toy_config)
    with open_dict(copied):
        copied.recipe.run_dir = str(tmp_path / "run")
        copied.data.max_prompt_length = 1000
    return copied


def questions(path: Path, numbers: Any, rephrasings: tuple[str, ...] = (), **more: Any) -> str:
    made = [make_question(text=f"{n}?", answers=(str(n),), source="t", **more) for n in numbers]
    write_parquet([dataclasses.replace(q, rephrasings=rephrasings) for q in made], path)
    return str(path)


class Characters:
    """A tokenizer whose tokens are characters."""

    chat_template = None
    all_special_tokens: tuple[str, ...] = ()
    bos_token = None

    def __call__(self, texts: list[str], add_special_tokens: bool) -> dict[str, list[list[int]]]:
        return {"input_ids": [[1] * len(t) for t in texts]}


def prepare(config: Any, train_files: Any, val_files: Any, section: Any = None) -> dict[str, Any]:
    """The report of `prepare_data`, which writes the files of a copy of `config`."""
    now = copy.deepcopy(config)
    with open_dict(now):
        now.data.train_files, now.data.val_files = train_files, val_files
    return data.prepare_data(now, Prompts.from_section(section or {}), Characters())


# Composition.


def test_examples_compose_over_verls_schema(config: Any) -> None:
    assert config.trainer.v1.trainer_mode == "recipe_sync"
    assert config.actor_rollout_ref.actor.policy_loss.loss_mode == "vanilla"
    assert config.trainer.device == "cpu"
    assert config.data.seed == config.actor_rollout_ref.rollout.seed == config.recipe.seed == 0
    other = compose_config("toy", ["recipe.seed=7", "machine=gpu"])  # the command line wins
    assert other.actor_rollout_ref.rollout.seed == 7
    assert other.trainer.device == "cuda"


@pytest.mark.config  # whole configurations through hydra: a second each
@pytest.mark.parametrize("machine", ["cpu", "gpu"])
def test_actor_and_reference_have_the_same_precision(machine: str) -> None:
    """Otherwise the KL term compares number formats: verl's default for the reference is bf16."""
    roles = compose_config("toy", [f"machine={machine}"]).actor_rollout_ref
    for key in ("dtype", "model_dtype", "mixed_precision"):
        assert roles.actor.fsdp_config.get(key) == roles.ref.fsdp_config.get(key)


@pytest.mark.config
@pytest.mark.parametrize(
    ("example", "override", "named"),
    [
        ("toy", "trainer.nope=1", "trainer.nope"),
        ("toy", "recipe.augment.modes=x", "modes"),
        ("toy", "machine=tpu", "tpu"),
        ("nothing", "", r"nothing.*toy"),
        ("mine", "", "train_batch_sise"),
    ],
)
def test_unknown_keys_and_examples_are_rejected(
    tmp_path: Path, example: str, override: str, named: str
) -> None:
    if example == "mine":
        example = str(tmp_path)
        (tmp_path / "config.yaml").write_text(
            "defaults: [recipe, {override machine: cpu}, _self_]\nrecipe: {name: x}\n"
            "trainer: {total_training_steps: 1}\ndata: {train_batch_sise: 3}\n"
        )
    with pytest.raises(ConfigError, match=named):
        compose_config(example, [override] if override else [])


# Settings.


@pytest.mark.parametrize(
    ("section", "change", "named"),
    [
        ("augment", {"mode": "fixed"}, "mode=fixed"),
        ("augment", {"weights": [1.0]}, "1 values for 4 templates"),
        ("augment", {"mode": "per_question", "templates": ["qwen-math"]}, "mode=per_question"),
        ("augment", {"mode": "per_rollout", "templates": ["qwen-math"]}, "mode=per_rollout"),
        ("augment", {"templates": ["openr1"]}, "open-r1"),
        ("augment", {"validation_template": "openr1"}, "open-r1"),
        ("reward", {"overlong": {"enable": True, "buffer": 500}}, "buffer"),
    ],
)
def test_impossible_templates_and_rewards_are_rejected(
    config: Any, section: str, change: dict, named: str
) -> None:
    check_templates(config)
    two = {"mode": "per_rollout", "templates": ["qwen-math", "open-r1"]}
    check_templates(OmegaConf.merge(config, {"recipe": {"augment": two}}))
    with pytest.raises(ConfigError, match=named):
        check_templates(OmegaConf.merge(config, {"recipe": {section: change}}))


@pytest.mark.config
def test_a_method_names_its_missing_value() -> None:
    with pytest.raises(ConfigError, match=r"recipe\.one_question"):
        check_templates(compose_config("toy", ["method=one_shot"]))
    check_templates(compose_config("toy", ["method=one_shot", "recipe.one_question=3"]))


@pytest.mark.parametrize(
    ("changes", "enough"),
    [
        ({}, 16),  # a batch
        ({"data": {"train_max_samples": 16}}, 16),
        ({"recipe": {"curriculum": {"enable": True}}}, 64),  # four candidates for each
        (
            {  # each of the three batches that may be requested is chosen from four
                "recipe": {
                    "curriculum": {"enable": True},
                    "dynamic_sampling": {"max_gen_batches": 3},
                },
                "algorithm": {"filter_groups": {"enable": True}},
            },
            192,
        ),
    ],
)
def test_a_step_needs_enough_questions(config: Any, changes: dict, enough: int) -> None:
    changed = OmegaConf.merge(config, changes)
    data.check_enough(enough, changed)
    with pytest.raises(ConfigError, match=f"{enough - 1} training questions .*{enough}"):
        data.check_enough(enough - 1, changed)
    few = OmegaConf.merge(changed, {"data": {"train_max_samples": enough - 1}})
    with pytest.raises(ConfigError, match=f"{enough - 1} training questions"):
        data.check_enough(1000, few)


# Data.


def test_long_questions_are_dropped_and_named(config: Any, tmp_path: Path) -> None:
    short = questions(tmp_path / "a.parquet", range(40))
    long = make_question(text="x" * 5000, answers=("1",), source="t")
    write_parquet([long], tmp_path / "b.parquet")
    report = prepare(config, [short, str(tmp_path / "b.parquet")], [short])
    assert report["train"]["questions"] == 40
    (dropped,) = report["train"]["dropped"]
    assert dropped["uid"] == long.uid and dropped["length"] > 5000
    assert report["test"]["dropped"] == []


def test_system_prompts_of_questions_do_not_replace_templates(config: Any, tmp_path: Path) -> None:
    path = [questions(tmp_path / "a.parquet", range(40), system="S")]
    with pytest.raises(ConfigError, match="40 questions have a system prompt"):
        prepare(config, path, path)
    config.recipe.augment.system = "template"
    prepare(config, path, path, {"system": "template"})


def test_questions_changed_since_the_first_step_are_rejected(config: Any, tmp_path: Path) -> None:
    path, folder = tmp_path / "a.parquet", RunFolder(Path(config.recipe.run_dir))
    first = questions(tmp_path / "v.parquet", range(20))

    def run(numbers: Any, *rephrasings: str) -> None:
        report = prepare(config, [questions(path, numbers, rephrasings)], [first])
        write_json(folder.data_manifest, report)

    run(range(39))
    run(range(40))  # before the first step anything may change
    kept = folder.data("train").read_bytes()
    folder.metrics.write_text('{"step": 1}\n')
    run(range(40))
    for changed in ((range(41),), (range(39, -1, -1),), (range(40), "the same?")):
        with pytest.raises(ConfigError, match=r"data\.train_files"):
            run(*changed)
        assert folder.data("train").read_bytes() == kept
    before = read_json(folder.data_manifest)
    del before["train"]["digest"]  # a run of an older version
    write_json(folder.data_manifest, before)
    run(range(41))


def test_keep_best_must_be_written_by_a_validation(config: Any, tmp_path: Path) -> None:
    path = [questions(tmp_path / "a.parquet", range(40))]  # of the source t
    config.recipe.keep_best = "val/tt/accuracy"
    with pytest.raises(ConfigError, match=r"val/t/accuracy"):
        prepare(config, path, path)
    config.recipe.keep_best = "val/t/accuracy"
    prepare(config, path, path)


@pytest.mark.parametrize(
    ("case", "named"),
    [
        ("missing", "no such file"),
        ("unset", "data.train_files"),
        ("few", "3 training questions"),
        ("all_long", "all 40 questions"),
        ("no_answer", "row 2"),
        ("empty", "no rows"),
    ],
)
def test_bad_data_is_rejected(config: Any, tmp_path: Path, case: str, named: str) -> None:
    good, bad = questions(tmp_path / "good.parquet", range(40)), str(tmp_path / "bad.parquet")
    if case in ("few", "all_long"):
        questions(tmp_path / "bad.parquet", range(3 if case == "few" else 40))
        config.data.max_prompt_length = 1000 if case == "few" else 10
    elif case == "empty":
        pandas.read_parquet(good).iloc[:0].to_parquet(bad)
    elif case == "no_answer":
        table = pandas.read_parquet(good)
        table.at[2, "reward_model"] = {"style": "rule", "ground_truth": ""}
        table.at[2, "extra_info"] = {**table.at[2, "extra_info"], "answers": []}
        table.to_parquet(bad)
    with pytest.raises((ConfigError, ValueError), match=named):
        prepare(config, None if case == "unset" else [bad], [good])


def test_a_missing_data_file_is_rejected_before_the_toy_world_is_built(
    config: Any, tmp_path: Path
) -> None:
    built = tmp_path / "toy"
    with open_dict(config):
        config.actor_rollout_ref.model.path = str(built / "model")
        # will be made: allowed
        config.data.train_files = config.data.val_files = [str(built / "train.parquet")]
        data.check_files(config, built)
        config.data.val_files = str(tmp_path / "none.parquet")
    with pytest.raises(ConfigError, match=r"val_files: .*none\.parquet"):
        data.check_files(config, built)


def test_a_model_folder_without_a_tokenizer_is_rejected(config: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    data.check_model_folder(str(tmp_path))
    with open_dict(config):
        config.actor_rollout_ref.model.path = str(tmp_path)
    with pytest.raises(ConfigError, match=r"recipe\.model_path"):
        data.load_tokenizer(config)


# The run folder and the machine.


@pytest.mark.parametrize(
    ("before", "change", "rejected"),
    [
        ({}, {"actor_rollout_ref": {"actor": {"optim": {"lr": 1.0}}}}, r"actor\.optim\.lr"),
        ({}, {"actor_rollout_ref": {"rollout": {"gpu_memory_utilization": 0.3}}}, ""),
        ({}, {"actor_rollout_ref": {"actor": {"ppo_max_token_len_per_gpu": 512}}}, ""),
        # More steps continue the same experiment, unless the learning rate would jump.
        ({"lr_warmup_steps_ratio": 0.0}, {"trainer": {"total_training_steps": 99}}, ""),
        (
            {"lr_warmup_steps": 10, "lr_warmup_steps_ratio": 0.1},  # verl takes the steps
            {"trainer": {"total_training_steps": 99}},
            "",
        ),
        (
            {"lr_warmup_steps_ratio": 0.1},
            {"trainer": {"total_training_steps": 99}},
            r"trainer\.total_training_steps",
        ),
        (
            {"lr_scheduler_type": "cosine"},
            {"trainer": {"total_training_steps": 99}},
            r"trainer\.total_training_steps",
        ),
    ],
)
def test_a_folder_continues_only_the_same_experiment(
    config: Any, tmp_path: Path, before: dict, change: dict, rejected: str
) -> None:
    folder = RunFolder(tmp_path)
    first = OmegaConf.merge(config, {"actor_rollout_ref": {"actor": {"optim": before}}})
    changed = OmegaConf.merge(first, change)
    check_same_run(changed, folder)
    folder.config.write_text(OmegaConf.to_yaml(first, resolve=True))
    check_same_run(changed, folder)  # before the first step anything may change
    folder.metrics.write_text("")
    check_same_run(first, folder)
    if rejected:
        with pytest.raises(ConfigError, match=rejected):
            check_same_run(changed, folder)
    else:
        check_same_run(changed, folder)


def test_disk_and_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_room(tmp_path, 0.0)
    with pytest.raises(ConfigError, match="min_free_gib"):
        check_room(tmp_path, 1e9)
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write"):
        check_room(tmp_path / "file" / "run", 0.0)
    check_port()

    def refuse(*_: Any) -> None:
        raise OSError(98, "Address already in use")

    monkeypatch.setattr("socket.socket.bind", refuse)
    with pytest.raises(ConfigError, match="no free TCP port"):
        check_port()


def test_a_finished_run_is_not_started(config: Any, tmp_path: Path) -> None:
    with open_dict(config):
        config.trainer.default_local_dir = config.recipe.run_dir = str(tmp_path)
        config.trainer.total_training_steps = 2
    for step in (1, 2):
        assert not launch.finished(config)
        run_folder.append_metrics(tmp_path, step, {})
        (tmp_path / "latest_checkpointed_iteration.txt").write_text(str(step - 1))
    assert not launch.finished(config)  # the last checkpoint is missing
    config.trainer.save_freq = -1
    assert launch.finished(config)  # and without checkpoints the last line counts
    config.trainer.save_freq = 1
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("2")
    assert launch.finished(config)


@pytest.mark.config
def test_a_rejected_command_prints_one_message_and_starts_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "recipe.train", "toy", f"recipe.run_dir={tmp_path}/r"]
    done = subprocess.run(
        [*command, "recipe.augment.templates=[nope]"],
        **{"capture_output": True, "text": True, "timeout": 120},
        env={k: v for k, v in os.environ.items() if not k.startswith("RAY")},
    )
    assert done.returncode == 1
    assert "no template 'nope'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "r" / "config.yaml").exists()


@pytest.mark.config
@pytest.mark.parametrize(
    ("place", "named"), [("file/run", "cannot write"), ("in_use", "in use by")]
)
def test_an_unusable_folder_is_one_line(
    place: str,
    named: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "set_environment", lambda config: None)
    (tmp_path / "file").write_text("")
    with lock(tmp_path / "in_use"):
        assert train.main(["toy", f"recipe.run_dir={tmp_path / place}"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and named in said


# The launch.


def test_a_run_starts_its_own_ray_unless_an_address_is_set(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("VERL_PLATFORM", "cpu")
    own = copy.deepcopy(config)
    launch.set_ray(own)
    assert own.ray_kwargs.ray_init.address == "local"
    assert own.ray_kwargs.ray_init.log_to_driver is True  # into logs/train.log
    assert own.ray_kwargs.ray_init.runtime_env.env_vars.VERL_PLATFORM == "cpu"
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    launch.set_ray(config)
    assert config.ray_kwargs.ray_init.get("address") is None


@pytest.mark.parametrize("already_over", [False, True])
def test_the_death_of_rays_head_ends_the_run_with_a_reason(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, already_over: bool
) -> None:
    """At the end of a run, marked by `over`, its death is expected."""
    monkeypatch.setattr(launch, "POLL", 0.05)
    said, ended, over = list[str](), list[int](), threading.Event()
    shutil.copy("/bin/sleep", tmp_path / "gcs_server")
    environment = {**os.environ, "RECIPE_RUN_DIR": config.recipe.run_dir}
    head = subprocess.Popen([tmp_path / "gcs_server", "60"], env=environment)
    arguments = (config, said.append, over, ended.append)
    watch = threading.Thread(target=launch.watch_head, args=arguments, daemon=True)
    try:
        while not processes.heads(config.recipe.run_dir):
            time.sleep(0.02)
        watch.start()
        time.sleep(0.3)
        assert watch.is_alive() and not ended
        if already_over:
            over.set()
    finally:
        head.kill()
        head.wait()
    watch.join(20)
    assert ended == ([] if already_over else [1])
    if not already_over:
        assert "Ray's head process (gcs_server) has ended" in said[0]
        assert read_json(RunFolder(Path(config.recipe.run_dir)).end)["code"] == 1
