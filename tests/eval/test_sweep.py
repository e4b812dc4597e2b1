"""The command, its checkpoints and settings: rejected options, shared work, exports."""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from fake_engine import FakeEngine, reference

from eval import sweep, workers
from eval.ask.benchmarks import BenchmarkRequest, LoadedBenchmark
from eval.ask.checkpoints import find, from_model, verify
from eval.ask.session import Session
from eval.ask.settings import Settings, differences, folder_name, from_run, presets, shared_identity
from prompt_aug.base.errors import UserError
from prompt_aug.base.files import digests, lock, read_json, read_lines, write_json
from prompt_aug.prompts import FORM
from prompt_aug.templates import load_bank
from recipe.run.processes import is_dead


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
    fake = FakeEngine(lambda request: rf"\boxed{{{request.question + 1}}}")
    monkeypatch.setattr(sweep, "Session", lambda settings: Session(settings, fake.open, reference))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return fake


@pytest.fixture
def run(model: Path, tmp_path: Path, make_benchmark: Callable[..., LoadedBenchmark]) -> Path:
    """Steps 1, 2, 3 exported; two benchmarks, of 3 questions and of 2."""
    made = [make_benchmark("toy", questions=3), make_benchmark("other", questions=2)]
    folder = tmp_path / "run"
    for step in (1, 2, 3):
        target = folder / "hf" / f"step_{step}"
        shutil.copytree(model, target)
        (target / "model.safetensors").write_bytes(b"weights %d" % step)
        finish(target, step)
    listed = ", ".join(f"{{name: {b.name}, path: {b.path}, samples: 1}}" for b in made)
    (folder / "config.yaml").write_text(
        f"eval: {{max_tokens: 8, benchmarks: [{listed}]}}\ntrainer: {{total_training_steps: 3}}\n"
    )
    return folder


def scores(run: Path, step: int) -> dict[str, Any]:
    (path,) = run.glob(f"eval/*/step_{step}/scores.json")
    return dict(read_json(path))


def test_a_run_is_swept_with_one_engine_and_again_with_none(
    run: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep.main([str(run)]) == 0
    assert engine.starts == 1
    output = capsys.readouterr().out
    assert output.count("toy: accuracy 1.0000 +- 0.0000 (3 of 3 questions") == 3
    assert "--max-tokens" not in output
    assert sorted(set(engine.models)) == [str(run / "hf" / f"step_{s}") for s in (1, 2, 3)]
    assert set(scores(run, 2)["benchmarks"]) == {"toy", "other"}
    for file in run.glob("eval/*/step_1/toy/scores.json"):
        write_json(file, read_json(file) | {"truncation_rate": 1 / 3})
    assert sweep.main([str(run)]) == 0
    assert engine.starts == 1 and len(engine.requests) == 15
    output = capsys.readouterr().out
    assert output.count("--max-tokens=8: 33% of the responses were truncated. Raise it") == 1


def test_items_of_another_worker_are_skipped(
    run: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep.main([str(run), "--steps", "3", "--max-questions", "1"]) == 0
    (settings,) = (run / "eval").glob("*-*")
    with lock(settings / "step_2" / "toy"):
        assert sweep.main([str(run)]) == 0
        assert "1 items are with other workers: step_2 toy" in capsys.readouterr().out
        assert set(scores(run, 2)["benchmarks"]) == {"other"}
    assert sweep.main([str(run)]) == 0
    assert set(scores(run, 2)["benchmarks"]) == {"toy", "other"}


def test_a_damaged_export_is_found_before_an_engine_starts(
    run: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "hf" / "step_3" / "tokenizer.json").unlink()
    assert sweep.main([str(run)]) == 1
    assert engine.starts == 0
    assert "step_3" in (error := capsys.readouterr().err) and "tokenizer.json is missing" in error
    assert not list(run.glob("eval/**/scores.json"))


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ([], 2, "--model"),
        (["RUN", "--workers", "2", "--tensor-parallel", "2"], 2, "need 4 GPUs, this machine"),
        (["RUN", "--tensor-parallel", "4"], 2, "--tensor-parallel=4: need 4 GPUs"),
        (["RUN", "--steps", "77,78"], 1, "[77, 78]"),
        (["RUN", "--verifier", "toy=nowhere.check"], 1, "there is no module nowhere"),
        (["RUN", "--verifier", "tyo=nowhere.check"], 2, "no question has this data_source"),
        (["RUN", "--benchmark", "toy=nowhere.parquet"], 1, "nowhere.parquet"),
        (["RUN", "--benchmark", "a/bench.yaml"], 1, "bench=a/bench.yaml"),
        (["RUN", "--benchmark", "scores.json=q.parquet"], 1, "NAME=q.parquet"),
        (["RUN", "--samples", "32", "--temperature", "0"], 2, "--temperature 1"),
        (["RUN", "--benchmark", "toy=q.parquet:4", "--temperature=0"], 2, "--temperature 1"),
    ],
)
def test_a_wrong_option_is_rejected_before_an_engine_starts(
    run: Path, engine: FakeEngine, capsys: Any, arguments: list[str], code: int, message: str
) -> None:
    try:
        result = sweep.main([str(run) if a == "RUN" else a for a in arguments])
    except SystemExit as end:  # by the parser
        result = end.code
    error = capsys.readouterr().err
    assert result == code and message in error and "Traceback" not in error
    assert engine.starts == 0


def test_a_preset_overrides_the_run_and_options_override_the_preset(
    run: Path, engine: FakeEngine
) -> None:
    config = run / "config.yaml"
    config.write_text(config.read_text().replace("max_tokens: 8", "max_tokens: 8, top_k: 7"))
    command = [str(run), "--preset", "paper_ta_grpo", "--samples", "2", "--max-tokens", "5"]
    assert sweep.main([*command, "--steps", "1"]) == 0
    (path,) = run.glob("eval/*/settings.json")
    settings = read_json(path)
    assert (settings["temperature"], settings["top_p"], settings["max_tokens"]) == (0.6, 0.95, 5)
    assert settings["top_k"] == 0
    assert len(engine.requests) == 2 * 5


def test_dry_run_prints_settings_and_first_prompts(
    run: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep.main([str(run), "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "max_tokens: 8" in out and "other: what is 0 + 1?" in out
    assert engine.starts == 0 and not list(run.glob("eval/**/*"))


def test_models_are_evaluated_side_by_side_if_their_names_differ(
    run: Path, engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every run's exports have the same names."""
    models = [f"--model={run / 'hf' / f'step_{step}'}" for step in (1, 2)]
    command = [f"--benchmark=toy={tmp_path / 'toy.parquet'}", "--out", str(tmp_path / "out")]
    assert sweep.main([*command, *models]) == 0
    before = {path: path.read_bytes() for path in (tmp_path / "out").glob("*/*/scores.json")}
    same_name = shutil.copytree(run / "hf" / "step_2", tmp_path / "another_run" / "step_1")
    assert sweep.main([*command, f"--model={same_name}"]) == 1
    assert "another model named step_1" in capsys.readouterr().err
    assert all(path.read_bytes() == content for path, content in before.items())


@pytest.mark.parametrize(("option", "code"), [("--watch", 0), ("--export", 0), ("--export", 1)])
def test_each_export_is_evaluated_while_the_next_is_made(
    run: Path, engine: FakeEngine, monkeypatch: Any, capsys: Any, option: str, code: int
) -> None:
    """Until the last step (--watch) or the end of the export, which may fail at one of them."""
    later, export = run / "hf" / "step_3", SimpleNamespace(returncode=None)
    export.poll = lambda: 0 if option == "--watch" else export.returncode
    later.rename(run / "not_yet")
    waited, started = list[float](), list[list[str]]()

    def wait(seconds: float) -> None:
        waited.append(seconds)
        assert set(engine.models) == {str(run / "hf" / f"step_{step}") for step in (1, 2)}
        if len(waited) == 2:
            (run / "not_yet").rename(later)
            export.returncode = code

    def start(command: list[str]) -> SimpleNamespace:
        started.append(command)
        return export

    monkeypatch.setattr(sweep, "time", SimpleNamespace(sleep=wait))
    monkeypatch.setattr(workers, "subprocess", SimpleNamespace(Popen=start))
    assert sweep.main([str(run), option]) == code
    assert len(waited) == 2 and engine.starts == 1
    assert set(scores(run, 3)["benchmarks"]) == {"toy", "other"}
    assert started == [[*started[0][:1], "-m", "recipe.export", str(run)]] * len(started)
    assert len(started) == (3 if option == "--watch" else 1)
    notes = capsys.readouterr().out.count("; the training does not run here. Its")
    assert notes == (option == "--watch")


# ------------------------------------------------------------------------- workers
# Processes with a fake engine each, on the GPUs 5 and 7.


def results(evaluation: Path) -> dict[str, list[str]]:
    """Grades and samples by item, in any order; without the heads, which name the engines."""
    made: dict[str, list[str]] = {}
    for path in evaluation.glob("*/*/*/*.jsonl"):
        lines = made.setdefault(str(path.parent.relative_to(evaluation)), [])
        lines += [line for line in path.read_text().splitlines() if '"engine"' not in line]
    return {item: sorted(lines) for item, lines in made.items()}


@pytest.mark.config
@pytest.mark.parametrize("mode", ["", "die", "hang"])  # a worker is killed; their parent is
def test_two_workers_make_the_samples_of_one(
    run: Path, engine: FakeEngine, monkeypatch: Any, capfd: Any, mode: str
) -> None:
    assert sweep.main([str(run), "--out", str(run / "one")]) == 0
    helper = str(Path(__file__).parents[1] / "helpers" / "fake_engine.py")
    monkeypatch.setattr(workers, "COMMAND", (sys.executable, helper, str(run / "started")))
    monkeypatch.setattr(workers, "gpus_here", lambda: 2)  # as in the helper's processes
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,7")
    monkeypatch.setenv("MODE", mode)
    (run / "started").mkdir()
    if mode == "hang":
        with subprocess.Popen([*workers.COMMAND, str(run), "--workers", "2"]) as parent:
            while len(started := list((run / "started").iterdir())) < 2:
                assert parent.poll() is None
                time.sleep(0.02)
            both = [psutil.Process(int(path.name)) for path in started]
            assert not any(map(is_dead, both))
            parent.kill()
        while not all(map(is_dead, both)):
            time.sleep(0.02)
    again = ["--workers", "2"] if mode != "hang" else []
    assert sweep.main([str(run), *again]) == 0
    assert results(run / "eval") == results(run / "one") and len(results(run / "one")) == 6
    heads = [read_lines(path)[0] for path in run.glob("eval/*/*/*/samples-*.jsonl")]
    used = {head["engine"]["device"] for head in heads} - {"5,7"}  # of this process
    assert used == {"": {"5", "7"}, "die": {"7"}, "hang": set()}[mode]
    output = capfd.readouterr().out
    assert ("1 of 2 workers failed (exit codes [-9])" in output) == (mode == "die")


# ------------------------------------------------------------------------- checkpoints
# Which exports are finished, and that they are the exported files.


FILES = {"config.json": b"{}", "tokenizer.json": b"tokens", "chat_template.jinja": b"chat"}


def finish(folder: Path, step: int) -> None:
    files = digests(list(folder.iterdir()), folder)
    write_json(folder / "manifest.json", {"step": step, "files": files})


def export(run: Path, step: int, *, done: bool = True, weights: bytes = b"weights") -> Path:
    folder = run / "hf" / f"step_{step}"
    folder.mkdir(parents=True)
    for name, content in {**FILES, "model.safetensors": weights}.items():
        (folder / name).write_bytes(content)
    if done:
        finish(folder, step)
    return folder


def test_only_exports_with_a_manifest_are_finished(tmp_path: Path) -> None:
    for step in (10, 2, 30):
        export(tmp_path, step, done=step != 30)
    (tmp_path / "hf" / ".step_40.tmp").mkdir()
    result = find(tmp_path)
    assert [checkpoint.step for checkpoint in result] == [2, 10]
    with pytest.raises(UserError, match=r"\[11\].*\[2, 10\]"):
        find(tmp_path, [10, 11])
    (tmp_path / "checkpoints" / "global_step_30").mkdir(parents=True)
    for steps, remedy in (([10, 30], r"recipe\.export"), ([10, 31], r"\[30\] are saved")):
        with pytest.raises(UserError, match=remedy):
            find(tmp_path, steps)
    with pytest.raises(UserError, match=r"recipe\.export"):
        find(tmp_path / "empty")


def test_a_manifest_may_name_weights_elsewhere(tmp_path: Path) -> None:
    model = export(tmp_path / "other", 7)
    files = read_json(model / "manifest.json")["files"]
    for step, path in enumerate((str(model), "../../../other/hf/step_7", "some/model")):
        record = {"step": step, "model_path": path, "files": files}
        write_json(tmp_path / "run" / "hf" / f"step_{step}" / "manifest.json", record)
    result = find(tmp_path / "run")
    assert [Path(checkpoint.model) for checkpoint in result[:2]] == [model, model]
    # A hub id has no files to verify.
    assert result[2].identity == {"model": "some/model", "commit": None}
    for checkpoint in result:
        verify(checkpoint)


def test_other_weights_have_another_identity(tmp_path: Path) -> None:
    folders = {name: export(tmp_path / name, 1) for name in "ab"}
    changed = from_model(str(export(tmp_path / "c", 1, weights=b"v")))
    first, same = (from_model(str(folder)) for folder in folders.values())
    assert first.files == same.files and first.identity == same.identity != changed.identity
    (folders["b"] / "model.safetensors").unlink()
    with pytest.raises(UserError, match=rf"--model={folders['b']}: .*no weights"):
        from_model(str(folders["b"]))


def test_a_missing_changed_or_added_file_is_rejected(tmp_path: Path) -> None:
    folder, name = export(tmp_path, 10), "chat_template.jinja"
    (checkpoint,) = find(tmp_path)
    verify(checkpoint)
    (folder / name).unlink()
    with pytest.raises(UserError, match=f"{name} is missing"):
        verify(checkpoint)
    (folder / name).write_bytes(FILES[name][1:] + b".")
    with pytest.raises(UserError, match=f"{name} has changed"):
        verify(checkpoint)
    (folder / name).write_bytes(FILES[name])
    (folder / "special_tokens_map.json").write_text("{}")
    with pytest.raises(UserError, match=r"special_tokens_map\.json was added"):
        verify(checkpoint)


# ------------------------------------------------------------------------- settings
# Settings of an evaluation: their sources, and which of them make two evaluations differ.


def test_settings_come_from_the_run(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(
        "recipe: {augment: {bank: my.yaml}}\n"
        "eval: {template: open-r1, temperature: 0.6, max_tokens: 64, max_model_len: null,\n"
        "  benchmarks: [{name: toy, path: t.parquet, samples: 4}]}\n"
    )
    request = BenchmarkRequest(name="toy", path="t.parquet", samples=4)
    given = {"template": "open-r1", "bank": "my.yaml", "temperature": 0.6, "max_tokens": 64}
    assert from_run(tmp_path) == Settings(benchmarks=(request,), **given)


def test_settings_that_change_no_response_share_a_folder_but_another_template_does_not() -> None:
    template, first = load_bank()["qwen-math"], Settings()
    old = shared_identity(first, template)
    assert folder_name(old) == "qwen-math-t0-dd9f109b"  # another name would sample old runs again
    assert Settings.model_fields.keys() - old.keys() == {
        *"benchmarks samples max_questions extraction verifiers verifier_limits".split(),
        *"bank gpu_memory_utilization tensor_parallel reload".split(),
    }
    assert differences(old, shared_identity(first.replaced(min_p=0.1), template)) == [
        "min_p: 0.0 -> 0.1"
    ]
    changed = template.model_copy(update={"system": "Something else."})
    result = differences(old, shared_identity(first, changed))
    assert [line.split(":")[0] for line in result] == ["template_sha256"]


def test_stops_and_the_system_prompt_become_part_of_every_template() -> None:
    plain, base = Settings().prompts(), Settings(template="open-r1").prompts()
    changed = Settings(stop=("\n\n",), system_prompt="Be short.").prompts()
    assert {template.system for template in changed.bank.values()} == {"Be short."}
    for name, template in plain.bank.items():
        assert changed.bank[name].stop == (*template.stop, "\n\n")
    assert (plain.form.system, changed.form.system) == ("row", "template")  # also over a row's own
    assert base.bank == plain.bank


def test_a_preset_leaves_no_setting_of_the_protocol_to_the_run() -> None:
    sampling = {"extraction", "temperature", "top_p", "max_tokens", "max_model_len", "samples"}
    for name, preset in presets().items():
        assert preset.keys() >= {"bank", "template", *FORM, *sampling}, name
        assert Settings(**preset).greedy == (name in ("paper_prompt_aug", "paper_one_shot"))
