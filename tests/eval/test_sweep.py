"""The command: what it rejects, how workers share the work, how Ctrl-C ends it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_engine import FakeEngine, reference

from eval import sweep
from eval.benchmarks import LoadedBenchmark
from eval.session import Session
from prompt_aug.base.files import digests, lock, read_json, write_json

REMOTE = "--model m --out o --endpoint http://localhost:1/v1"


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
        files = digests(list(target.iterdir()), target)
        write_json(target / "manifest.json", {"step": step, "files": files})
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


@pytest.mark.parametrize(("task", "first"), [("1", 2), ("", 1)])
def test_the_tasks_of_an_array_start_at_different_checkpoints(
    run: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch, task: str, first: int
) -> None:
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", task)
    monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", task and "3")
    assert sweep.main([str(run)]) == 0
    assert engine.models[0].endswith(f"step_{first}")
    assert len(engine.requests) == 15  # every task does what is left


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
        (["RUN", "--model", "m"], 2, "--model"),
        (["--model", "m"], 2, "--out"),
        (["RUN", "--tensor-parallel", "4"], 1, "--tensor-parallel 4"),
        (["RUN", "--temperature", "nan"], 1, "temperature=nan"),
        (["RUN", "--steps", "77,78"], 1, "[77, 78]"),
        (["RUN", "--top-k", "-2"], 1, "top_k=-2"),
        (["RUN", "--stop", ""], 1, "stop[0]="),
        (["RUN", "--template-of", "nothing=x"], 1, "nothing is no benchmark of"),
        (["RUN", "--endpoint", "http://localhost:1/v1"], 2, "--endpoint"),
        (["--model", "m", "--out", "o", "--endpoint", "nowhere"], 2, "--endpoint=nowhere"),
        ([*REMOTE.split(), "--concurrency=0"], 2, "--concurrency=0"),
        (["RUN", "--template", "no such"], 1, "no such"),
        (["RUN", "--verifier", "mine.check"], 2, "write NAME=VALUE"),
        (["RUN", "--verifier", "toy=nowhere.check"], 1, "there is no module nowhere"),
        (["RUN", "--benchmark", "toy=nowhere.parquet"], 1, "nowhere.parquet"),
        # Not an option, or empty as an unset shell variable: with the example.
        ([""], 2, "is empty"),
        (["RUN", "--out", ""], 2, "is empty"),
        (["nowhere"], 2, "nowhere"),
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
    assert "top_k" not in settings
    assert len(engine.requests) == 2 * 5


def test_dry_run_prints_settings_and_first_prompts(
    run: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep.main([str(run), "--dry-run", "--template-of", "other=open-r1"]) == 0
    out = capsys.readouterr().out
    for text in ("max_tokens: 8", "toy: 3 questions x 1", "other: what is 0 + 1?"):
        assert text in out
    assert engine.starts == 0 and not list(run.glob("eval/**/*"))


def test_models_are_evaluated_side_by_side_if_their_names_differ(
    run: Path, engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every run's exports have the same names."""
    models = [f"--model={run / 'hf' / f'step_{step}'}" for step in (1, 2)]
    command = [f"--benchmark=toy={tmp_path / 'toy.parquet'}", "--out", str(tmp_path / "out")]
    assert sweep.main([*command, *models]) == 0
    before = {path: path.read_bytes() for path in (tmp_path / "out").glob("*/*/scores.json")}
    assert sorted(path.parent.name for path in before) == ["step_1", "step_2"]
    same_name = shutil.copytree(run / "hf" / "step_2", tmp_path / "another_run" / "step_1")
    assert sweep.main([*command, f"--model={same_name}"]) == 1
    assert "another model named step_1" in capsys.readouterr().err
    assert all(path.read_bytes() == content for path, content in before.items())


def test_watch_evaluates_each_export_until_the_last_step(
    run: Path,
    engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    later = run / "hf" / "step_3"
    later.rename(run / "not_yet")
    waited = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            (run / "not_yet").rename(later)

    exported: list[list[str]] = []
    monkeypatch.setattr(sweep, "time", SimpleNamespace(sleep=wait))
    export = SimpleNamespace(run=lambda command, **_: exported.append(command))
    monkeypatch.setattr(sweep, "subprocess", export)
    assert sweep.main([str(run), "--watch"]) == 0
    assert len(waited) == 2 and engine.starts == 1
    assert capsys.readouterr().out.count("; the training is stopped. Its command continues") == 1
    assert set(scores(run, 3)["benchmarks"]) == {"toy", "other"}
    assert exported[0][1:] == ["-m", "recipe.export", str(run)] and len(exported) == 3
