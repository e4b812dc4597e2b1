"""Questions, run folders and machines: what is refused, and what the checked files hold."""

import dataclasses
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pandas
import pytest
from composed import SHORT, composed
from omegaconf import OmegaConf, open_dict
from tokenizers import AddedToken

from prompt_aug.base.files import write_json, write_lines, write_text
from prompt_aug.prepare.__main__ import main as prepare_command
from prompt_aug.prompts import Prompts
from prompt_aug.questions import Question, held_out_of, make_question, manifest_of, write_parquet
from recipe.errors import ConfigError
from recipe.machine import host
from recipe.run.checkpoints import TRACKER
from recipe.run.folder import RunFolder
from recipe.start import data
from recipe.start import questions as prepared
from recipe.start.dry_run import checkpoints, describe, hours
from recipe.start.functions import own_functions
from recipe.start.machine import BUCKET, MACHINE, cache, environment, gpus, room, save_seconds
from recipe.start.resume import own_folder, same_functions, same_prompts, same_run, unlike
from recipe.start.rules import Rule, Setup, messages

MODEL = "Qwen/Qwen2.5-Math-1.5B"
MATH_1B = f"recipe.model_path={MODEL}"


@pytest.fixture
def config(toy_config: Any, tmp_path: Path) -> Any:
    copied = toy_config.copy()
    copied.recipe.run_dir, copied.data.max_prompt_length = str(tmp_path / "run"), 1000
    return copied


def changed(config: Any, *changes: str) -> Setup:
    """`config` with changes ``key=value key=value``, keys as abbreviated in the rules."""
    settings = " ".join(changes).format(**SHORT).split()
    return Setup(OmegaConf.merge(config, OmegaConf.from_dotlist(settings)))


def question(text: str) -> Question:
    return make_question(text=text, answers=("1",), source="t")


def written(path: Path, rows: list[Question]) -> str:
    write_parquet(rows, path)
    return str(path)


def questions(path: Path, count: int) -> str:
    return written(path, [question(f"What is {i} + 1?") for i in range(count)])


class Characters:
    """A tokenizer whose tokens are characters."""

    chat_template = None
    added_tokens_decoder: ClassVar[dict[int, AddedToken]] = {}
    bos_token = None

    def __call__(self, texts: list[str], add_special_tokens: bool) -> dict[str, list[list[int]]]:
        return {"input_ids": [[1] * len(t) for t in texts]}


class Thinking(Characters):
    """Like DeepSeek-R1-Distill's, whose chat template opens a ``<think>`` tag."""

    chat_template = "opens <think>"
    added_tokens_decoder: ClassVar = {0: AddedToken("<|im_end|>", special=True)}

    def apply_chat_template(self, chat: list[dict[str, str]], **_: object) -> str:
        return "".join(turn["content"] for turn in chat) + "<think>\n"


def prepare(
    config: Any, train: Any, validation: Any = None, tokenizer: Any = None, **augment: Any
) -> dict[str, Any]:
    config.data.train_files, config.data.val_files = train, validation or train
    config.recipe.augment.update(augment)
    setup = Setup(config)
    setup.prompts = Prompts.from_section(augment)
    return prepared.prepare_data(setup, tokenizer or Characters())


@pytest.mark.config
@pytest.mark.parametrize("machine", ["cpu", "gpu"])
def test_actor_and_reference_compute_in_the_same_precision(machine: str) -> None:
    """Else the KL term compares number formats: verl's default for the reference is bfloat16."""
    roles = composed("toy", f"machine={machine}").actor_rollout_ref
    for key in ("dtype", "model_dtype", "mixed_precision"):
        assert roles.actor.fsdp_config.get(key) == roles.ref.fsdp_config.get(key)


# ------------------------------------------------------------------------- questions


@pytest.mark.config  # starts a worker process
def test_long_questions_are_dropped_and_named(config: Any, tmp_path: Path) -> None:
    short = questions(tmp_path / "a.parquet", 40)
    long = make_question(text="x" * 5000, answers=("2",), source="long")
    config.recipe.reward.verifiers = {"long": "own_verifiers.even"}  # no row of it is left
    report = prepare(config, [short, written(tmp_path / "b.parquet", [long])], [short])
    assert report["train"]["questions"] == 40 and report["test"]["dropped"] == []
    (dropped,) = report["train"]["dropped"]
    assert dropped["uid"] == long.uid and dropped["length"] > 5000
    assert report["verifiers"]["functions"].keys() == {"long"}


def test_questions_that_changed_since_the_first_step_are_refused(
    config: Any, tmp_path: Path
) -> None:
    def run(numbers: range, rephrasings: tuple[str, ...] = ()) -> None:
        rows = [dataclasses.replace(question(f"{n}?"), rephrasings=rephrasings) for n in numbers]
        write_json(folder.data_manifest, prepare(config.copy(), [written(path, rows)], [first]))

    path, folder = tmp_path / "a.parquet", RunFolder(Path(config.recipe.run_dir))
    first = questions(tmp_path / "v.parquet", 20)
    run(range(39))
    run(range(40))  # no step was done: nothing is mixed
    kept = folder.data("train").read_bytes()
    folder.metrics.write_text('{"step": 1}\n')
    run(range(40))
    for numbers, rephrasings in (
        (range(41), ()),
        (range(39, -1, -1), ()),  # another order, the same questions
        (range(40), ("the same?",)),
    ):
        with pytest.raises(ConfigError, match=r"data\.train_files: the questions are not those"):
            run(numbers, rephrasings)
        assert folder.data("train").read_bytes() == kept


def held_out(folder: Path) -> str:
    return written(folder / "held_out.parquet", [question("3 + 4?")])


@pytest.mark.parametrize("chosen", [{"keep_best": "val/t/accuracy"}, {}])
def test_validation_on_training_questions(
    config: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], chosen: dict[str, Any]
) -> None:
    path, held = questions(tmp_path / "a.parquet", 40), held_out(tmp_path)
    config = OmegaConf.merge(config, {"recipe": chosen})
    prepare(config.copy(), [path], [held])
    assert "not held out" not in capsys.readouterr().out
    if chosen:
        (name,) = chosen
        with pytest.raises(ConfigError, match=rf"^recipe\.{name}.*: needs .* 40 of 41 questions"):
            prepare(config.copy(), [path], [path, held])
        config.recipe.one_question = 0
        prepare(config, [path], [path, held])
        config.recipe.keep_best = "val/nowhere/accuracy"
        with pytest.raises(ConfigError, match=r"nowhere/accuracy: no validation .*val/t/accuracy"):
            prepare(config, [path], [path])
    else:
        prepare(config, [path], [path, held])
    assert f"data.val_files: {1 if chosen else 40} of 41 questions" in capsys.readouterr().out


def test_repeated_validation_rows_are_samples_of_one_question(config: Any, tmp_path: Path) -> None:
    train, n = questions(tmp_path / "a.parquet", 40), config.actor_rollout_ref.rollout.val_kwargs.n
    first = question("3 + 4?")
    second = dataclasses.replace(question("3 + 5?"), split="validation")  # as prepare holds out
    rows = [first, second, first, first]
    report = prepare(config, [train], [written(tmp_path / "v.parquet", rows)])["test"]
    assert (report["questions"], report["rows_of_source"]) == (2, {"t": 2})
    assert report["digest"] == prepared.questions_digest(rows)  # so that a run of before can resume
    table = pandas.read_parquet(config.data.val_files[0])
    assert list(table["__rollout_n__"]) == [3 * n, n]
    assert [extra["split"] for extra in table["extra_info"]] == ["test", "validation"]


def test_a_question_with_a_special_token_is_named(config: Any, tmp_path: Path) -> None:
    rows, single = [question(f"{n}?") for n in range(40)], {"templates": ["abel"]}
    rows[3] = dataclasses.replace(rows[3], rephrasings=("x<|im_end|>",))
    rows[5] = question("a<|im_end|>b")
    rows[7] = dataclasses.replace(rows[7], earlier=(("system", "<|im_end|>"),))
    path = written(tmp_path / "a.parquet", rows)
    named = rf"row 5 \(question {rows[5].uid}\): <\|im_end\|>, row 7"
    text = rf"^data\.train_files={path}: .*\(found: 2\): {named}"
    with pytest.raises(ConfigError, match=text):
        prepare(config, [path], tokenizer=Thinking(), **single)
    config.recipe.rephrasings.count = 1
    for system, count in (("row", 3), ("template", 2)):
        with pytest.raises(ConfigError, match=rf"\(found: {count}\): row 3 "):
            prepare(config, [path], tokenizer=Thinking(), system=system, **single)


def test_questions_that_are_all_too_long_are_refused(config: Any, tmp_path: Path) -> None:
    path, config.data.max_prompt_length = questions(tmp_path / "a.parquet", 40), 10
    with pytest.raises(ConfigError, match=r"data\.max_prompt_length=10: all 40"):
        prepare(config, [path])


CURRICULUM, SAMPLING = "recipe.curriculum.enable=true", "algorithm.filter_groups.enable=true"


@pytest.mark.parametrize(
    ("changes", "enough", "named"),
    [
        ("", 16, "data.train_batch_size"),
        (SAMPLING, 16, "data.train_batch_size"),
        (CURRICULUM, 64, "recipe.curriculum.candidates"),  # a batch is chosen from four
        (
            f"{CURRICULUM} {SAMPLING} recipe.dynamic_sampling.max_gen_batches=3",
            192,
            "recipe.dynamic_sampling.max_gen_batches",
        ),
    ],
)
def test_too_few_questions_for_a_step(config: Any, changes: str, enough: int, named: str) -> None:
    setup = changed(config, changes)
    assert list(data.too_few(enough, setup)) == []
    assert named in "".join(data.too_few(enough - 1, setup))
    setup.data.train_max_samples = enough - 1
    assert named in "".join(data.too_few(10_000, setup))


def test_a_missing_data_file_is_refused(config: Any, tmp_path: Path) -> None:
    assert list(data.files(Setup(config))) == []
    config.data.val_files = str(tmp_path / "none.parquet")
    (errors,) = data.files(Setup(config))
    assert errors.startswith(f"data.val_files={tmp_path}/none.parquet")
    assert "--validation N" in errors


def test_a_training_file_beside_questions_held_out_of_another_is_refused(
    config: Any, tmp_path: Path
) -> None:
    def prepared(name: str, *options: str, first: int = 0) -> Path:
        out, source = tmp_path / name, tmp_path / f"{name}.jsonl"
        rows = [{"question": f"{i} + {i}?", "answer": str(2 * i)} for i in range(first, first + 9)]
        write_lines(source, rows)
        assert prepare_command([str(source), str(out), "--no-benchmarks", *options]) == 0
        config.data.train_files, config.data.val_files = str(out), [str(held_out_of(out))]
        return out

    def errors() -> list[str]:
        return [text.partition("=")[0] for text in data.one_preparation(Setup(config))]

    held = ("--validation", "3")
    out, other = prepared("a.parquet", *held), prepared("b.parquet", *held, first=50)
    assert errors() == []
    shutil.copy(held_out_of(out), held_out_of(other))
    assert errors() == ["data.val_files"]
    prepared("b.parquet", *held, first=50)
    shutil.copy(held_out_of(other), tmp_path / "mine.parquet")  # a person's own
    shutil.copy(held_out_of(out), tmp_path / "own.validation.parquet")
    config.data.val_files = [str(tmp_path / "mine.parquet")]
    assert errors() == []
    prepared("a.parquet", first=20)  # again, without --validation
    assert errors() == ["data.val_files"]
    manifest_of(out).unlink()  # interrupted
    assert errors() == ["data.val_files"]
    manifest_of(held_out_of(out)).unlink()
    assert errors() == []


@pytest.mark.parametrize("key", ["train_files", "val_files"])
def test_golds_that_are_records_need_a_verifier(config: Any, tmp_path: Path, key: str) -> None:
    gold = {"reward_model": {"ground_truth": {"cases": [1, 2]}}}
    rows = [{"data_source": "code", "prompt": f"Write {i}.", **gold} for i in range(40)]
    pandas.DataFrame(rows).to_parquet(tmp_path / "code.parquet")
    files = {"train_files": questions(tmp_path / "a.parquet", 40), "val_files": held_out(tmp_path)}
    files[key] = str(tmp_path / "code.parquet")
    with pytest.raises(ConfigError, match=rf"data\.{key}: 40 .*verifiers\.code"):
        prepare(config, *files.values())
    with open_dict(config):
        config.recipe.reward.verifiers = {"code": "no_such_module.check"}
    with pytest.raises(ConfigError, match="no_such_module"):  # the verifier is asked
        prepare(config, *files.values())


LISTED = '{"weight_map": {"a": "a.bin", "b": "b.bin"}}'
WEIGHTS: list[tuple[dict[str, str], str]] = [
    ({"model.safetensors": "w"}, ""),
    ({}, "no weights"),
    ({"pytorch_model.bin.index.json": LISTED, "a.bin": "", "b.bin": ""}, ""),
    ({"pytorch_model.bin.index.json": LISTED, "a.bin": ""}, "b.bin"),
    # A download of safetensors alone has the index of the others.
    ({"pytorch_model.bin.index.json": LISTED, "model.safetensors": ""}, ""),
    ({"model.safetensors": "version https://git-lfs.github.com/spec/v1\noid"}, "git lfs pull"),
    ({"model.safetensors": "w", "config.json": '{"model_type": "qwen2"}'}, '"architectures": ['),
]


@pytest.mark.parametrize(("files", "named"), WEIGHTS)
def test_a_model_folder_without_its_weights_is_refused(
    files: dict[str, str], named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = '{"architectures": ["Qwen2ForCausalLM"]}'
    for name, content in {"config.json": config, **files}.items():
        write_text(tmp_path / "my" / "model" / name, content)
    for model in (str(tmp_path / "my" / "model"), "my/model"):  # the second may also be a hub id
        errors = "\n".join(data.model_folder(model))
        assert named in errors and bool(errors) == bool(named)


# ------------------------------------------------------------------------- resuming


def begun(config: Any, folder: Path) -> RunFolder:
    """A run folder of `config` in which a step was done."""
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(OmegaConf.to_yaml(config, resolve=True))
    (folder / "metrics.jsonl").write_text("")
    return RunFolder(folder)


TWO_RANKS = "trainer.n_gpus_per_node=2 trainer.nnodes=2"
LONGER, COSINE = "trainer.total_training_steps=99", "{A}.optim.lr_scheduler_type=cosine"
CLIP_COV, MICRO = "{LOSS}=clip_cov", "{A}.ppo_micro_batch_size_per_gpu=8"
# Changes that make another experiment; a message names five keys.
OTHER = [
    "recipe.rephrasings.count=1 {A}.fsdp_config.model_dtype=bf16 {R}.quantization=fp8",
    "data.train_files=[x] {LOSS}=clip_cov {A}.optim.lr=1.0 {R}.temperature=0.5",
    "data.train_batch_size=32 recipe.augment.mode=per_rollout",
    "data.dataloader_num_workers=7",  # torchdata asserts
    "critic.enable=true critic.cliprange_value=0.1",
]
# Changes that leave the experiment what it is.
SAME = """
recipe.name=other recipe.dynamic_sampling.max_gen_batches=3 transfer_queue.enable=false
data.filter_overlong_prompts_workers=7 {R}.max_num_seqs=7 {R}.max_num_batched_tokens=999
{A}.ppo_micro_batch_size_per_gpu=8 {A}.ppo_max_token_len_per_gpu=512
trainer.n_gpus_per_node=2 trainer.nnodes=2 critic.fsdp.param_offload=true
{R}.gpu_memory_utilization=0.3 {R}.agent.num_workers=3 {A}.fsdp_config.param_offload=true
{A}.fsdp_config.optimizer_offload=true {R}.tensor_model_parallel_size=2 {R}.enforce_eager=true
global_profiler.tool=torch reward.num_workers=3 eval.temperature=1.0 critic.cliprange_value=0.1
trainer.val_before_train=true trainer.save_freq=1 trainer.test_freq=1
trainer.logger=[console,tensorboard] trainer.total_training_steps=99
{MODEL}.override_config.attn_implementation=null
{A}.fsdp_config.use_no_sync_for_gradient_accumulation=true
"""  # no critic reads its setting


COVARIANCE = "recipe.weights.gaussian_covariance"


def test_a_run_resumes_as_the_same_experiment(config: Any) -> None:
    others = [changed(config, changes) for changes in OTHER]
    assert list(same_run(others[0])) == []  # there is no run yet
    run = begun(config, Path(config.recipe.run_dir))
    assert list(same_run(Setup(config))) == list(same_run(changed(config, SAME))) == []
    for changes, setup in zip(OTHER, others, strict=True):
        (errors,) = same_run(setup)
        keys = [text.partition("=")[0] for text in changes.format(**SHORT).split()]
        assert [key for key in keys if key not in errors] == []
    method = changed(config, OTHER[1], "recipe.method=cw_grpo")
    assert "there" in "".join(same_run(method)).partition("recipe.method=cw_grpo")[2]
    run.metrics.unlink()
    assert list(same_run(others[0])) == []  # no step was done: nothing is mixed
    run.checkpoint(1).mkdir(parents=True)  # the metrics are lost, the checkpoint is not
    assert len(list(same_run(others[0]))) == 1 and list(same_run(Setup(config))) == []
    run.config.unlink()
    assert len(list(same_run(Setup(config)))) == 1  # nothing says which run it is


@pytest.mark.parametrize("old_is_there", [True, False])
def test_a_run_moved_with_its_files_resumes(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old_is_there: bool
) -> None:
    """To another checkout and run folder. The same place with other content is another model."""
    checkouts = [tmp_path / "one", tmp_path / "two"]
    for checkout in checkouts:
        for name in ("models/start/config.json", "models/other/config.json", "runs/a/data.parquet"):
            write_text(checkout / name, name.replace("other", "start"))
    values = [
        f"actor_rollout_ref.model.path={{0}}/models/{name} recipe.run_dir={{0}}/runs/a "
        "data.train_files=[{0}/runs/a/data.parquet]"
        for name in ("start", "other")
    ]
    same, other = [[text.format(checkout) for text in values] for checkout in checkouts][1]
    before = changed(config, values[0].format(checkouts[0])).config
    begun(before, checkouts[1] / "runs" / "a")
    if not old_is_there:
        checkouts[0].rename(tmp_path / "gone")
    monkeypatch.setattr(host, "ROOT", checkouts[1])
    assert list(same_run(changed(config, same))) == []
    assert unlike(before, changed(config, same).config) == []
    assert len(list(same_run(changed(config, other)))) == (not old_is_there)
    write_text(checkouts[1] / "models/start/config.json", "another")
    assert len(list(same_run(changed(config, same)))) == old_is_there


def test_a_run_older_than_the_gradient_through_weights_goes_on_without_it(config: Any) -> None:
    detached = "recipe.weights.name=gaussian_covariance {W}.gradient=detached"
    before = changed(config, detached.format(W=COVARIANCE)).config
    run = begun(before, Path(config.recipe.run_dir))
    text = run.config.read_text()
    run.config.write_text("".join(x for x in text.splitlines(True) if "gradient: det" not in x))
    assert run.config.read_text() != text
    assert list(same_run(Setup(before))) == []
    through = detached.replace("detached", "through").format(W=COVARIANCE)
    assert "gradient" in "".join(same_run(changed(config, through)))


def test_a_checkpoint_keeps_its_mesh_on_as_many_ranks(config: Any) -> None:
    folder, size = Path(config.recipe.run_dir), "{A}.fsdp_config.fsdp_size="
    before = changed(config, TWO_RANKS, f"trainer.default_local_dir={folder}/checkpoints").config
    run = begun(before, folder)
    record = run.checkpoint(1) / "actor" / "fsdp_config.json"
    record.parent.mkdir(parents=True)
    write_text(run.checkpoints / TRACKER, "1")
    for saved, now, text in (
        ({"world_size": 4}, 2, True),
        ({"world_size": 2}, 2, False),
        ({"world_size": 4}, 4, False),  # all GPUs, as -1
        ({"world_size": 4, "fsdp_size": 2}, 2, False),  # divided since
        ({"world_size": 4, "fsdp_size": 2}, 4, True),
    ):
        write_json(record, {"FSDP_version": 2, **saved})
        errors = list(same_run(changed(before, f"{size}{now}")))
        assert len(errors) == text
        assert all(f"fsdp_size={now}: the checkpoint of as many" in text for text in errors)


@pytest.mark.parametrize(
    ("before", "now", "named"),
    [
        # A run may be made longer unless its learning rate would jump.
        ("{A}.optim.lr_warmup_steps_ratio=0.0", LONGER, None),
        # verl takes the steps
        ("{A}.optim.lr_warmup_steps=10 {A}.optim.lr_warmup_steps_ratio=0.1", LONGER, None),
        ("{A}.optim.lr_warmup_steps_ratio=0.1", LONGER, "trainer.total_training_steps"),
        (COSINE, LONGER, "trainer.total_training_steps"),
        # Epochs end it after 2 x 24 steps, and a resumed one ends there too.
        (f"{COSINE} {LONGER} trainer.total_epochs=2", "", None),
        (f"{COSINE} {LONGER} trainer.total_epochs=2", "trainer.total_epochs=3", "total_epochs"),
        # Micro-batches stay with a loss that depends on them.
        (CLIP_COV, MICRO, MICRO.partition("=")[0]),
    ],
)
def test_what_a_resumed_run_may_change(
    config: Any, before: str, now: str, named: str | None
) -> None:
    original = changed(config, before).config
    begins = original.copy()
    begins.trainer.total_training_steps = prepared.last_step(begins, 24)
    folder = begun(begins, Path(config.recipe.run_dir))
    write_json(folder.data_manifest, {"train": {"steps_per_epoch": 24}})
    errors = "".join(same_run(changed(original, now)))
    assert bool(errors) == bool(named) and (named or "").format(**SHORT) in errors


def test_a_bank_that_changed_since_the_first_step_is_refused(config: Any, tmp_path: Path) -> None:
    def write(user: str) -> None:
        bank.write_text(f"templates: {{mine: {{category: mine, user: '{user}'}}}}")

    bank, folder = tmp_path / "bank.yaml", RunFolder(Path(config.recipe.run_dir))
    augment = f"recipe.augment.bank={bank} recipe.augment.templates=[mine] "
    augment += "recipe.augment.validation_template=mine"
    write("Solve: {question}")
    changed(config, augment).prompts.write(folder.prompts)
    write("Solve it: {question}")
    assert list(same_prompts(changed(config, augment))) == []
    folder.metrics.write_text('{"step": 1}\n')
    errors = "".join(same_prompts(changed(config, augment)))
    assert errors.startswith(f"recipe.augment.bank={bank}: the templates mine ")
    write("Solve: {question}")
    assert list(same_prompts(changed(config, augment))) == []
    folder.prompts.unlink()  # the check does not vanish with its file
    assert "prompts.yaml" in "".join(same_prompts(changed(config, augment)))


def test_a_function_that_changed_since_the_first_step_is_refused(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, file = RunFolder(Path(config.recipe.run_dir)), tmp_path / "rated.py"
    monkeypatch.syspath_prepend(str(tmp_path))
    file.write_text("def check(response, gold, row): return 1.0\n")
    own = changed(config, "recipe.advantage.name=rated.mine recipe.reward.verifiers.t=rated.check")
    before = own_functions(own)
    assert list(before) == ["rated.check", "rated.mine"] and own_functions(Setup(config)) == {}
    module = changed(config, "actor_rollout_ref.model.external_lib=[rated,recipe.actor.engine]")
    assert list(own_functions(module)) == ["rated.module"]  # of own estimators
    write_json(folder.data_manifest, {"own_functions": before})
    file.write_text("def check(response, gold, row): return 0.0\n")
    assert list(same_functions(own)) == []
    folder.metrics.write_text('{"step": 1}\n')
    (text,) = same_functions(own)
    assert "the file of rated.check, rated.mine has changed" in text
    folder.data_manifest.unlink()
    assert str(folder.data_manifest) in "".join(same_functions(own))


# ------------------------------------------------------------------------- the machine


@pytest.mark.parametrize("folder", ["/proc/x", "FILE/x"])
def test_caches_that_cannot_be_made_are_named(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    """Also for root, who may write anywhere."""
    (tmp_path / "file").touch()
    bad, setup = folder.replace("FILE", str(tmp_path / "file")), Setup(config)
    monkeypatch.delenv("HF_DATASETS_CACHE", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HOME", bad)
    assert [text.startswith(f"HF_HOME={bad}: ") for text in cache(setup)] == [True]
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "new"))
    assert list(cache(setup)) == []
    monkeypatch.setenv("HF_DATASETS_CACHE", bad)
    assert [text.startswith(f"HF_DATASETS_CACHE={bad}: ") for text in cache(setup)] == [True]


def test_a_logger_whose_file_a_resume_overwrites_is_refused(config: Any) -> None:
    rules = [check for check in MACHINE if isinstance(check, Rule)]
    for logger, count in (("[console]", 0), ("[console,file]", 1)):
        assert len(messages(rules, changed(config, f"trainer.logger={logger}"))) == count


def test_the_disk_holds_the_next_checkpoint(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saves = Path(config.recipe.run_dir) / "checkpoints"  # not made yet
    disk = tmp_path / "disk"  # another one, with 3 GB more

    def fill(free: float) -> None:
        def usage(path: Path) -> Any:
            return SimpleNamespace(free=free + 3e9 * path.is_relative_to(disk))

        monkeypatch.setattr("shutil.disk_usage", usage)

    def setup(every: int, more: str = "") -> Setup:
        changes = f"trainer.save_freq={every} trainer.default_local_dir={saves.resolve()} {more}"
        return changed(config, MATH_1B, changes)

    def refused(free: float, every: int, more: str = "") -> bool:
        fill(free)
        return bool(list(room(setup(every, more))))

    # 12 bytes for each of the 1,543,714,304 parameters of tests/recipe/machine/test_sizes.py
    assert refused(18.4e9, 10) and not refused(18.6e9, 10)
    assert refused(1e9, -1)  # logs
    saves.mkdir(parents=True)
    (saves / TRACKER).write_text("10")
    assert refused(18.4e9, 10) and not refused(18.6e9, 10)
    assert not refused(18.4e9, 10, "trainer.total_training_steps=10")  # all are done
    for step in (5, 10):  # a kill after the save of step 10 has left the older one
        (saves / f"global_step_{step}").mkdir()
    last = "trainer.max_actor_ckpt_to_keep=1"
    assert not refused(18.4e9, 10, last) and refused(18.4e9, 10)
    assert refused(18.4e9, 10, f"{last} recipe.keep_best=val/t/accuracy")  # may be the older one
    (saves / "global_step_5").rename(saves / ".deleted_5")
    assert not refused(18.4e9, 10)
    (saves / ".deleted_5").rename(saves / "global_step_15")  # a kill in its save
    assert not refused(18.4e9, 10)
    (saves / TRACKER).unlink()
    assert refused(18.4e9, 10)
    (saves / "global_step_15").rmdir()
    saves.rename(disk)
    saves.symlink_to(disk)
    assert not refused(15.6e9, 10) and refused(15.4e9, 10) and refused(1e9, -1)
    planned = setup(10, f"actor_rollout_ref.model.path={MODEL}")
    for free, text in ((15.6e9, ""), (15.4e9, "MORE THAN THE 18 GB FREE")):
        fill(free)
        assert ("MORE THAN" in checkpoints(planned, 10)) == bool(text)
        assert text in checkpoints(planned, 10)
    assert save_seconds(setup(10)) == pytest.approx(185.2, abs=0.1)  # at 0.1 GB/s


def test_only_a_link_for_checkpoints_may_be_in_a_new_run_folder(config: Any) -> None:
    run = RunFolder(Path(config.recipe.run_dir))
    run.root.mkdir()
    run.checkpoints.symlink_to("/dev/shm")
    assert list(own_folder(Setup(config))) == []
    (run.root / "notes.txt").touch()
    assert "notes.txt" in "".join(own_folder(Setup(config)))
    (run.root / "notes.txt").unlink()
    run.checkpoints.unlink()
    run.checkpoints.mkdir()
    assert "checkpoints is there" in "".join(own_folder(Setup(config)))


def test_a_gpu_run_needs_its_gpus(
    config: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    setup = changed(config, "trainer.device=cuda trainer.n_gpus_per_node=8")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for count, key in ((8, ""), (4, "trainer.n_gpus_per_node=8"), (0, "trainer.device=cuda")):
        monkeypatch.setattr("recipe.start.machine.gpu_count", lambda count=count: count)
        assert [text.partition(":")[0] for text in gpus(setup)] == ([key] if key else [])
        assert list(gpus(Setup(config))) == []  # machine=cpu
    setup.here = False  # planned for another machine
    assert list(gpus(setup)) == []
    assert "note: not on this machine: trainer.device=cuda" in capsys.readouterr().err
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")  # a GPU beside the environment of setup.sh
    assert list(gpus(Setup(config))) == []
    assert "note: on the CPU" in capsys.readouterr().err
    setup.here = True
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert list(gpus(setup)) == []  # the GPUs of another cluster


@pytest.mark.parametrize(
    ("cuda", "program", "variables", "words"),
    [
        (13000, "gcc", {}, ""),
        (None, "clang", {}, ""),  # without a library `gpus` reports that there is no GPU
        (12080, "gcc", {}, "trainer.device=cuda: CUDA 12.8 580"),
        (13000, "cc", {}, "trainer.device=cuda: compiler gcc"),
        (13000, "gcc", {"CC": "/no/such/cc"}, "trainer.device=cuda: compiler /no/such/cc"),
        (13000, "mycc", {"CC": "mycc"}, ""),
        (13000, "gcc", {"VERL_PLATFORM": "cpu"}, "trainer.device=cuda VERL_PLATFORM=cpu:"),
    ],
)
def test_a_gpu_run_needs_a_driver_a_compiler_and_its_platform(
    config: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    cuda: int | None,
    program: str,
    variables: dict[str, str],
    words: str,
) -> None:
    (tmp_path / program).touch(0o755)
    usual = {"PATH": str(tmp_path), "CC": "", "VERL_PLATFORM": ""}
    for name, value in {**usual, **variables}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(host, "driver_cuda", lambda: cuda)
    setup = changed(config, "trainer.device=cuda")
    refused = list(environment(setup))
    assert len(refused) == bool(words) and all(x in refused[0] for x in words.split())
    setup.here = False
    assert list(environment(setup)) == list(environment(Setup(config))) == []


def test_another_verl_is_rejected_and_a_small_shared_memory_noted(
    config: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(host, "installed", lambda name: "0.9.2")
    monkeypatch.setattr(host, "free_gib", lambda folder: 0.0625)
    assert [text.partition(":")[0] for text in environment(Setup(config))] == ["verl=0.9.2"]
    assert "/dev/shm: 0.06 GiB" in capsys.readouterr().err
    large = changed(config, f"{BUCKET}=65")  # MB, but the toy has fewer
    assert [text.partition(":")[0] for text in environment(large)] == ["verl=0.9.2"]
    monkeypatch.setattr("recipe.start.machine.known_shape", lambda model: None)
    assert [text.partition(":")[0] for text in environment(large)] == ["verl=0.9.2", "/dev/shm"]


# ------------------------------------------------------------------------- dry run
# What ``--dry-run`` says of the disk, by hand: 12 bytes for each of 1,543,714,304 parameters.


@pytest.mark.parametrize(
    ("last", "every", "best", "text"),
    [
        # 90 and 95, and a third while it is not yet whole
        (2, None, None, "of which 2 are kept; 18.52 GB each, at most 55.6 GB in all"),
        (2, 40, "val/x/accuracy", "of which 5 are kept; 18.52 GB each, at most 111.1 GB in all"),
        # nothing is ever deleted, so the best needs no room of its own
        (20, None, "val/x/accuracy", "10, one every 10 steps; 18.52 GB each, at most 185.2 GB"),
    ],
)
def test_kept_checkpoints(
    config: Any, last: int, every: int | None, best: str | None, text: str
) -> None:
    config.trainer.save_freq, config.trainer.max_actor_ckpt_to_keep = 10, last
    config.recipe.keep_every, config.recipe.keep_best = every, best
    config.recipe.model_path = MODEL
    assert text in checkpoints(Setup(config), steps=95)
    assert checkpoints(Setup(config), steps=90).startswith("9, one every 10 steps")


def test_hours_are_those_of_the_run_folder(toy_config: Any, tmp_path: Path) -> None:
    config = toy_config.copy()
    config.recipe.run_dir = str(tmp_path)
    assert hours(Setup(config), 24) == ""
    steps = "".join(f'{{"step": {i}, "timing_s/step": {i}}}\n' for i in (1, 2, 9))
    (tmp_path / "metrics.jsonl").write_text(steps)
    assert hours(Setup(config), 1800) == "1, at 2.0 s a step as in the run folder"


def test_the_steps_are_those_of_the_limited_questions(toy_config: Any, tmp_path: Path) -> None:
    config = toy_config.copy()
    config.recipe.augment.format = "published"
    with open_dict(config):
        config.recipe.run_dir = str(tmp_path / "run")
        config.data.train_batch_size = config.actor_rollout_ref.actor.ppo_mini_batch_size = 4
        config.data.train_max_samples, config.data.max_prompt_length = 8, 1000
        config.trainer.total_epochs, config.trainer.total_training_steps = 1, 24
    text = describe(Setup(config))
    assert "8 for training (0 too long), 64 for validation" in text and "first prompt" in text
    assert re.search(r"steps +2 \(1 epochs\)\n", text) and re.search("updates +1 ", text)
    assert "MORE HELD OUT" in text
    assert " 64 to come" in text
    assert list(tmp_path.iterdir()) == []
    assert "Jul" not in text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("", {"steps": "60 (0.117 epochs)", "attention": "sdpa, as set"}),
        ("recipe.history.enable=true recipe.history.weight=0.7", {"reward": "0.7"}),
        ("algorithm.use_kl_in_reward=true algorithm.kl_ctrl.kl_coef=0.02", {"reward": "0.02 x KL"}),
        (
            "recipe.curriculum.enable=true recipe.curriculum.target=0.3",
            {"questions": "1 in 4", "steps": "0.469 epochs"},
        ),
        ("trainer.total_training_steps=10240", {"steps": "(20 epochs)"}),
        ("trainer.total_training_steps=10752", {"steps": "21 epochs, MORE THAN 20"}),
        (
            "recipe.one_question=3 trainer.total_training_steps=10752",
            {"questions": "question 3 of 2048", "steps": "10752"},
        ),
        # The question in the hint's words has 93 tokens, of 160.
        ("recipe.advantage.name=sdpo", {"hint": "at most 67 tokens"}),
    ],
)
def test_the_parts_of_a_method_are_named(
    monkeypatch: pytest.MonkeyPatch, settings: str, words: dict[str, str]
) -> None:
    """2,048 questions in batches of 4."""
    record: dict[str, Any] = {"questions": 2048, "dropped": [], "steps_per_epoch": 512}
    report = {"train": record, "test": {"questions": 64, "dropped": []}}
    monkeypatch.setattr("recipe.start.dry_run.prepare_data", lambda *_: report)
    text = describe(changed(composed("toy_methods"), settings))
    lines = dict(re.findall(r"^(\w+) +(.+)$", text, re.MULTILINE))
    assert all(part in lines[name] for name, part in words.items()), text
    assert ("hint" in lines) == ("hint" in words) and "MORE HELD" not in text
    assert ("MORE THAN" in text) == ("MORE THAN" in str(words))


def test_a_dry_run_shows_the_day_that_the_chat_template_writes(
    toy_config: Any, tmp_path: Path
) -> None:
    config, start = toy_config.copy(), tmp_path / "start"
    shutil.copytree(config.actor_rollout_ref.model.path, start)
    template = start / "chat_template.jinja"
    template.write_text("{{ strftime_now('%d %B %Y') }}" + template.read_text())
    config.actor_rollout_ref.model.path = str(start)
    text = describe(Setup(config))
    assert re.search(r"date +always 26 Jul 2024\n", text) and "\n26 July 2024" in text
