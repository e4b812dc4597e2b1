"""What `recipe.train` refuses before Ray starts, and how it composes."""

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
    return copied


def questions(path: Path, count: int, text: str = "What is {i} + 1?") -> str:
    write_parquet(
        [
            make_question(text=text.format(i=i), answers=(str(i + 1),), source="t")
            for i in range(count)
        ],
        path,
    )
    return str(path)


class Characters:
    """A tokenizer whose tokens are characters."""

    chat_template = None
    all_special_tokens: tuple[str, ...] = ()
    bos_token = None

    def __call__(self, texts: list[str], add_special_tokens: bool) -> dict[str, list[list[int]]]:
        return {"input_ids": [[1] * len(t) for t in texts]}


def test_examples_compose_over_the_real_schema(config: Any) -> None:
    assert config.trainer.v1.trainer_mode == "recipe_sync"
    assert config.actor_rollout_ref.actor.policy_loss.loss_mode == "vanilla"
    assert config.trainer.device == "cpu"
    assert config.data.seed == config.actor_rollout_ref.rollout.seed == config.recipe.seed == 0
    other = compose_config("toy", ["recipe.seed=7", "machine=gpu"])  # the command line wins
    assert other.actor_rollout_ref.rollout.seed == 7
    assert other.trainer.device == "cuda"


@pytest.mark.config  # whole configurations through hydra: a second each
@pytest.mark.parametrize("machine", ["cpu", "gpu"])
def test_actor_and_reference_compute_in_the_same_precision(machine: str) -> None:
    """Else the KL term compares number formats: verl's default for the reference is bfloat16."""
    roles = compose_config("toy", [f"machine={machine}"]).actor_rollout_ref
    for key in ("dtype", "model_dtype", "mixed_precision"):
        assert roles.actor.fsdp_config.get(key) == roles.ref.fsdp_config.get(key)


@pytest.mark.config
@pytest.mark.parametrize("override", ["trainer.nope=1", "recipe.augment.modes=x", "machine=tpu"])
def test_unknown_keys_on_the_command_line_are_refused(override: str) -> None:
    with pytest.raises(ConfigError, match=r"no key|Could not find"):
        compose_config("toy", [override])


@pytest.mark.config
def test_unknown_keys_in_an_example_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "defaults: [recipe, {override machine: cpu}, _self_]\n"
        "recipe: {name: x}\ntrainer: {total_training_steps: 1}\ndata: {train_batch_sise: 3}\n"
    )
    with pytest.raises(ConfigError, match="train_batch_sise"):
        compose_config(str(tmp_path), [])


def test_unknown_example_names_the_known() -> None:
    with pytest.raises(ConfigError, match=r"known are .*toy"):
        compose_config("nothing", [])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"augment": {"mode": "fixed"}}, "wants one name"),
        ({"augment": {"weights": [1.0]}}, "1 values for 4 templates"),
        ({"reward": {"overlong": {"enable": True, "buffer": 500}}}, "is more than"),
    ],
)
def test_impossible_recipe_settings_are_refused(config: Any, change: dict, message: str) -> None:
    check_templates(config)
    with pytest.raises(ConfigError, match=message):
        check_templates(OmegaConf.merge(config, {"recipe": change}))


@pytest.mark.parametrize("mode", ["per_question", "per_rollout"])
def test_a_draw_among_one_template_is_refused(config: Any, mode: str) -> None:
    one = {"recipe": {"augment": {"mode": mode, "templates": ["qwen-math"]}}}
    with pytest.raises(ConfigError, match=f"mode={mode} has one template to draw from, qwen-math"):
        check_templates(OmegaConf.merge(config, one))
    two = {"recipe": {"augment": {"mode": mode, "templates": ["qwen-math", "open-r1"]}}}
    check_templates(OmegaConf.merge(config, two))


def test_unknown_templates_are_refused_with_the_known(config: Any) -> None:
    for key in ("templates", "validation_template"):
        value = ["openr1"] if key == "templates" else "openr1"
        with pytest.raises(ConfigError, match="open-r1"):
            check_templates(OmegaConf.merge(config, {"recipe": {"augment": {key: value}}}))


def test_data_is_checked_and_long_questions_are_named(config: Any, tmp_path: Path) -> None:
    short, prompts = questions(tmp_path / "a.parquet", 40), Prompts.from_section({})
    long = make_question(text="x" * 5000, answers=("1",), source="t")
    write_parquet([long], tmp_path / "b.parquet")
    with open_dict(config):
        config.data.train_files = [short, str(tmp_path / "b.parquet")]
        config.data.val_files = [short]
        config.data.max_prompt_length = 1000
    report = data.prepare_data(config, prompts, Characters())
    assert report["train"]["questions"] == 40
    assert [d["uid"] for d in report["train"]["dropped"]] == [long.uid]
    assert report["train"]["dropped"][0]["length"] > 5000
    assert report["test"]["dropped"] == []


def test_own_system_prompts_do_not_replace_several_templates(config: Any, tmp_path: Path) -> None:
    made = [make_question(text=f"{n}?", answers=("1",), source="t", system="S") for n in range(40)]
    write_parquet(made, tmp_path / "a.parquet")
    with open_dict(config):
        config.data.train_files = config.data.val_files = [str(tmp_path / "a.parquet")]
        config.data.max_prompt_length = 1000
    with pytest.raises(ConfigError, match="40 questions have a system prompt, which would replace"):
        data.prepare_data(config, Prompts.from_section({}), Characters())
    config.recipe.augment.system = "template"
    data.prepare_data(config, Prompts.from_section({"system": "template"}), Characters())


def test_questions_that_changed_since_the_first_step_are_refused(
    config: Any, tmp_path: Path
) -> None:
    def prepare(numbers: range, rephrasings: tuple[str, ...] = ()) -> None:
        rows = [make_question(text=f"{n}?", answers=(str(n),), source="t") for n in numbers]
        write_parquet([dataclasses.replace(q, rephrasings=rephrasings) for q in rows], path)
        now = copy.deepcopy(config)
        with open_dict(now):
            now.data.train_files, now.data.val_files = [str(path)], [first]
            now.data.max_prompt_length = 1000
        write_json(
            folder.data_manifest, data.prepare_data(now, Prompts.from_section({}), Characters())
        )

    path, folder = tmp_path / "a.parquet", RunFolder(Path(config.recipe.run_dir))
    first = questions(tmp_path / "v.parquet", 20)
    prepare(range(39))
    prepare(range(40))  # no step was done: nothing is mixed
    kept = folder.data("train").read_bytes()
    folder.metrics.write_text('{"step": 1}\n')
    prepare(range(40))
    for numbers, rephrasings in (
        (range(41), ()),
        (range(39, -1, -1), ()),  # another order, the same questions
        (range(40), ("the same?",)),
    ):
        with pytest.raises(ConfigError, match=r"data\.train_files: the questions are not those"):
            prepare(numbers, rephrasings)
        assert folder.data("train").read_bytes() == kept
    before = read_json(folder.data_manifest)
    del before["train"]["digest"]  # of a run that began before there was one
    write_json(folder.data_manifest, before)
    prepare(range(41))


def test_the_best_by_what_no_validation_writes_is_refused(config: Any, tmp_path: Path) -> None:
    path = questions(tmp_path / "a.parquet", 40)  # of the source t
    with open_dict(config):
        config.data.train_files, config.data.val_files = [path], [path]
        config.data.max_prompt_length = 1000
        config.recipe.keep_best = "val/tt/accuracy"
    with pytest.raises(ConfigError, match=r"a validation on data.val_files writes val/t/accuracy$"):
        data.prepare_data(config, Prompts.from_section({}), Characters())
    config.recipe.keep_best = "val/t/accuracy"
    config.data.train_files = config.data.val_files = [path]
    data.prepare_data(config, Prompts.from_section({}), Characters())


@pytest.mark.parametrize("case", ["missing", "unset", "few", "all_long", "no_answer", "empty"])
def test_bad_data_is_refused(config: Any, tmp_path: Path, case: str) -> None:
    import pandas

    good = questions(tmp_path / "good.parquet", 40)
    bad, limit = str(tmp_path / "bad.parquet"), 2000
    if case == "few":
        questions(tmp_path / "bad.parquet", 3)
    elif case == "all_long":
        questions(tmp_path / "bad.parquet", 40)
        limit = 10
    elif case == "empty":
        pandas.read_parquet(good).iloc[:0].to_parquet(bad)
    elif case == "no_answer":
        table = pandas.read_parquet(good)
        table.at[2, "reward_model"] = {"style": "rule", "ground_truth": ""}
        table.at[2, "extra_info"] = {**table.at[2, "extra_info"], "answers": []}
        table.to_parquet(bad)
    with open_dict(config):
        config.data.train_files = None if case == "unset" else [bad]
        config.data.val_files, config.data.max_prompt_length = [good], limit
    messages = {
        "missing": "no such file",
        "unset": "data.train_files is not set",
        "few": "3 training questions are fewer",
        "all_long": "all 40 questions are longer",
        "no_answer": "row 2",
        "empty": "no rows",
    }
    with pytest.raises((ConfigError, ValueError), match=messages[case]):
        data.prepare_data(config, Prompts.from_section({}), Characters())


def test_a_curriculum_wants_as_many_questions_as_it_looks_at(config: Any) -> None:
    data.check_enough(16, config)  # a batch
    with open_dict(config):
        config.recipe.curriculum.enable = True
    with pytest.raises(ConfigError, match="63 training questions are fewer than the 64"):
        data.check_enough(63, config)
    data.check_enough(64, config)
    with open_dict(config):  # every batch that is asked for again is chosen from four
        config.algorithm.filter_groups.enable = True
        config.recipe.dynamic_sampling.max_gen_batches = 3
    with pytest.raises(ConfigError, match="191 training questions are fewer than the 192"):
        data.check_enough(191, config)
    data.check_enough(192, config)


def test_a_limit_on_the_samples_counts(config: Any) -> None:
    with open_dict(config):
        config.data.train_max_samples = 15
    with pytest.raises(ConfigError, match="15 training questions are fewer"):
        data.check_enough(40, config)
    config.data.train_max_samples = 16
    data.check_enough(40, config)


@pytest.mark.config
def test_a_method_that_wants_a_value_says_which() -> None:
    with pytest.raises(ConfigError, match=r"recipe\.one_question: the method is about one"):
        check_templates(compose_config("toy", ["method=one_shot"]))
    check_templates(compose_config("toy", ["method=one_shot", "recipe.one_question=3"]))


@pytest.mark.parametrize(
    ("optim", "free"),
    [
        ({"lr_warmup_steps_ratio": 0.0}, True),
        ({"lr_warmup_steps": 10, "lr_warmup_steps_ratio": 0.1}, True),  # verl takes the steps
        ({"lr_warmup_steps_ratio": 0.1}, False),
        ({"lr_scheduler_type": "cosine"}, False),
    ],
)
def test_a_run_goes_on_for_longer_unless_its_learning_rate_would_jump(
    config: Any, tmp_path: Path, optim: dict[str, Any], free: bool
) -> None:
    before = OmegaConf.merge(config, {"actor_rollout_ref": {"actor": {"optim": optim}}})
    (tmp_path / "config.yaml").write_text(OmegaConf.to_yaml(before, resolve=True))
    (tmp_path / "metrics.jsonl").write_text("")
    longer = OmegaConf.merge(before, {"trainer": {"total_training_steps": 99}})
    if free:
        check_same_run(longer, RunFolder(tmp_path))
    else:
        with pytest.raises(ConfigError, match=r"trainer\.total_training_steps"):
            check_same_run(longer, RunFolder(tmp_path))


def test_room_and_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_folder_of_another_experiment_is_refused(config: Any, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    check_same_run(config, folder)
    folder.config.write_text(OmegaConf.to_yaml(config, resolve=True))
    check_same_run(config, folder)
    changed = OmegaConf.merge(config, {"actor_rollout_ref": {"actor": {"optim": {"lr": 1.0}}}})
    check_same_run(changed, folder)  # no step was done: nothing is mixed up
    folder.metrics.write_text("")
    longer = OmegaConf.merge(config, {"trainer": {"total_training_steps": 99}})
    check_same_run(longer, folder)  # going on for longer is the same experiment
    less = {"rollout": {"gpu_memory_utilization": 0.3}, "actor": {"ppo_max_token_len_per_gpu": 512}}
    check_same_run(OmegaConf.merge(config, {"actor_rollout_ref": less}), folder)
    with pytest.raises(ConfigError, match=r"actor_rollout_ref\.actor\.optim\.lr"):
        check_same_run(changed, folder)


def test_a_finished_run_is_left_alone(config: Any, tmp_path: Path) -> None:
    with open_dict(config):
        config.trainer.default_local_dir = str(tmp_path)
    tracker = tmp_path / "latest_checkpointed_iteration.txt"
    assert not launch.finished(config)
    tracker.write_text(str(config.trainer.total_training_steps - 1))
    assert not launch.finished(config)
    tracker.write_text(str(config.trainer.total_training_steps))
    assert launch.finished(config)


def test_a_finished_run_without_checkpoints_is_left_alone(config: Any, tmp_path: Path) -> None:
    with open_dict(config):
        config.trainer.default_local_dir = str(tmp_path / "checkpoints")
        config.recipe.run_dir = str(tmp_path)
        config.trainer.total_training_steps = 2
    for step in (1, 2):
        assert not launch.finished(config)
        run_folder.append_metrics(tmp_path, step, {})
    assert not launch.finished(config)  # its last checkpoint is still to come
    config.trainer.save_freq = -1
    assert launch.finished(config)


@pytest.mark.config
def test_a_refused_command_says_one_thing_and_starts_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "recipe.train", "toy", f"recipe.run_dir={tmp_path}/r"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY")}
    done = subprocess.run(
        [*command, "recipe.augment.templates=[nope]"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert "no template 'nope'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "r" / "config.yaml").exists()


def test_a_run_starts_its_own_ray_unless_told_where_one_is(
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


def test_a_missing_data_file_is_refused_before_the_toy_world_is_built(
    config: Any, tmp_path: Path
) -> None:
    built = tmp_path / "toy"
    with open_dict(config):
        config.actor_rollout_ref.model.path = str(built / "model")
        # will be made: fine
        config.data.train_files = config.data.val_files = [str(built / "train.parquet")]
    data.check_files(config, built)
    with open_dict(config):
        config.data.val_files = str(tmp_path / "none.parquet")
    with pytest.raises(ConfigError, match=r"val_files: .*none\.parquet: no such file"):
        data.check_files(config, built)


def test_a_folder_that_has_lost_its_tokenizer_is_refused(config: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    data.check_model_folder(str(tmp_path))
    with open_dict(config):
        config.actor_rollout_ref.model.path = str(tmp_path)
    with pytest.raises(ConfigError, match=r"recipe\.model_path: .* gives no token"):
        data.load_tokenizer(config)


@pytest.mark.config
@pytest.mark.parametrize("place", ["file/run", "in_use"])
def test_a_folder_that_cannot_be_had_is_one_clear_line(
    place: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(launch, "set_environment", lambda config: None)
    (tmp_path / "file").write_text("")
    held = lock(tmp_path / "in_use")
    with held:
        assert train.main(["toy", f"recipe.run_dir={tmp_path / place}"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert ("cannot write" if place == "file/run" else "in use by") in said


@pytest.mark.parametrize("already_over", [False, True])
def test_the_death_of_rays_head_ends_the_run_with_a_reason(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, already_over: bool
) -> None:
    """At the end of a run its death is no accident: `over` is set before it."""
    monkeypatch.setattr(launch, "LOOK", 0.05)
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
        assert "no step was done" in said[0]
        assert read_json(RunFolder(Path(config.recipe.run_dir)).end)["code"] == 1
