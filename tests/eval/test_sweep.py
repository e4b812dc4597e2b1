"""The command: what it refuses, how workers share the work, how it ends by Ctrl-C."""

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
from prompt_aug.grading import VERSION


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
        write_json(
            target / "manifest.json",
            {"step": step, "files": digests(list(target.iterdir()), target)},
        )
    listed = ", ".join(f"{{name: {b.name}, path: {b.path}}}" for b in made)
    (folder / "config.yaml").write_text(
        f"eval: {{max_tokens: 8, benchmarks: [{listed}]}}\ntrainer: {{total_training_steps: 3}}\n"
    )
    return folder


def scores(run: Path, step: int) -> dict[str, Any]:
    (path,) = run.glob(f"eval/*/step_{step}/scores.json")
    return dict(read_json(path))


def test_a_run_is_swept_with_one_engine_and_a_second_time_with_none(
    run: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep.main([str(run)]) == 0
    assert engine.starts == 1
    assert capsys.readouterr().out.count("toy: accuracy 1.0000 +- 0.0000 (3 of 3 questions") == 3
    assert sorted(set(engine.models)) == [str(run / "hf" / f"step_{s}") for s in (1, 2, 3)]
    assert set(scores(run, 2)["benchmarks"]) == {"toy", "other"}
    assert sweep.main([str(run)]) == 0
    assert engine.starts == 1 and len(engine.asked) == 15


def test_what_another_worker_holds_is_left_to_it(
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


@pytest.mark.parametrize(("task", "first"), [("0", 1), ("1", 2), ("2", 3), (None, 1)])
def test_the_tasks_of_an_array_begin_at_different_checkpoints(
    run: Path,
    engine: FakeEngine,
    monkeypatch: pytest.MonkeyPatch,
    task: str | None,
    first: int,
) -> None:
    if task is not None:
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", task)
        monkeypatch.setenv("SLURM_ARRAY_TASK_COUNT", "3")
    assert sweep.main([str(run)]) == 0
    assert engine.models[0].endswith(f"step_{first}")
    assert len(engine.asked) == 15  # whoever comes last does what is left


def test_a_damaged_export_stops_the_sweep_before_an_engine_starts(
    run: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    (run / "hf" / "step_3" / "tokenizer.json").unlink()
    assert sweep.main([str(run)]) == 1
    assert engine.starts == 0
    assert "step_3" in (error := capsys.readouterr().err) and "tokenizer.json is missing" in error
    assert not list(run.glob("eval/**/scores.json"))


def test_ctrl_c_is_one_line_and_loses_nothing(
    run: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    engine.die_after = 2
    assert sweep.main([str(run)]) == 130
    error = capsys.readouterr().err
    assert "Traceback" not in error and "the same command continues" in error
    engine.die_after = None
    assert sweep.main([str(run)]) == 0
    assert len(engine.asked) == 15


def test_scores_of_another_grader_beside_the_new_ones_are_refused_at_once(
    run: Path, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep.main([str(run)]) == 0
    (path,) = run.glob("eval/*/step_2/other/scores.json")
    path.write_text(path.read_text().replace(VERSION, "0" * 16))
    only_toy = [str(run), f"--benchmark=toy={run.parent / 'toy.parquet'}"]
    assert sweep.main(only_toy) == 1
    assert "eval.score" in capsys.readouterr().err
    assert sweep.main([str(run)]) == 0  # asked for both: both are graded by this grader
    assert read_json(path)["grader"] == VERSION and len(engine.asked) == 15


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "either run folders or --model"),
        (["RUN", "--model", "m"], "either run folders or --model"),
        (["--model", "m"], "needs --out"),
        (["RUN", "--tensor-parallel", "4"], "needs as many GPUs"),
        (["RUN", "--tensor-parallel", "0"], "tensor_parallel is 0"),
        (["RUN", "--samples", "100000000"], "samples is 100000000"),
        (["RUN", "--samples", "0"], "samples is 0"),
        (["RUN", "--benchmark", "toy=x:100000000"], "from 1 to 100000 samples"),
        (["RUN", "--max-tokens", "-5"], "max_tokens is -5"),
        (["RUN", "--temperature", "nan"], "temperature is nan"),
        (["RUN", "--max-questions", "-1"], "max_questions is -1"),
        (["RUN", "--steps", "77,78"], "no finished export of the steps [77, 78]"),
        (["RUN", "--bank", "nowhere.yaml"], "nowhere.yaml"),
        (["RUN", "--template", "no such"], "unknown template"),
        (["RUN", "--benchmark", "toy=nowhere.parquet"], "does not exist"),
    ],
)
def test_a_users_mistake_is_one_line(
    run: Path,
    engine: FakeEngine,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    code = 2 if "--model" in (*arguments, *message.split()) else 1
    assert sweep.main([str(run) if a == "RUN" else a for a in arguments]) == code
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error
    assert engine.starts == 0


@pytest.mark.parametrize(
    "arguments",
    [[""], ["RUN", "--out", ""], ["RUN", "--benchmark", ""], ["--model", " "], ["nowhere"],
     ["RUN", "--chunk", "-5"], ["RUN", "--temp", "1"], ["RUN", "--bank", ""],
     ["RUN", "--steps", "-1"], ["RUN", "--steps", "2,x"]],
)  # fmt: skip
def test_what_is_no_option_or_empty_is_refused_with_the_usage(
    run: Path, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        sweep.main([str(run) if a == "RUN" else a for a in arguments])
    assert end.value.code == 2
    assert "usage: python -m eval.sweep" in capsys.readouterr().err


def test_a_preset_comes_between_the_run_and_the_flags(run: Path, engine: FakeEngine) -> None:
    command = [str(run), "--preset", "paper_ta_grpo", "--samples", "2", "--max-tokens", "5"]
    assert sweep.main([*command, "--steps", "1"]) == 0
    (path,) = run.glob("eval/*/settings.json")
    settings = read_json(path)
    assert (settings["temperature"], settings["top_p"], settings["max_tokens"]) == (0.6, 0.95, 5)
    assert len(engine.asked) == 2 * 5


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--help", "--version"):
        with pytest.raises(SystemExit) as end:
            sweep.main([option])
        assert end.value.code == 0
    out = capsys.readouterr().out
    assert "example:\n  python -m eval.sweep" in out and "rlvr-recipes 0" in out


def test_models_are_evaluated_side_by_side(run: Path, engine: FakeEngine, tmp_path: Path) -> None:
    models = [str(run / "hf" / f"step_{step}") for step in (1, 2)]
    command = [f"--benchmark=toy={tmp_path / 'toy.parquet'}", "--out", str(tmp_path / "out")]
    command += [f"--model={model}" for model in models]
    assert sweep.main(command) == 0
    assert sorted(p.parent.name for p in (tmp_path / "out").glob("*/*/scores.json")) == [
        "step_1",
        "step_2",
    ]


def test_watch_evaluates_what_is_exported_until_the_last_step(
    run: Path, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = run / "hf" / "step_3"
    later.rename(run / "not_yet")
    waited = []

    def wait(seconds: float) -> None:
        waited.append(seconds)
        (run / "not_yet").rename(later)

    exported: list[list[str]] = []
    monkeypatch.setattr(sweep.time, "sleep", wait)
    export = SimpleNamespace(run=lambda command, **_: exported.append(command))
    monkeypatch.setattr(sweep, "subprocess", export)
    assert sweep.main([str(run), "--watch"]) == 0
    assert len(waited) == 1 and engine.starts == 1
    assert set(scores(run, 3)["benchmarks"]) == {"toy", "other"}
    assert exported[0][1:] == ["-m", "recipe.export", str(run)] and len(exported) == 2


@pytest.mark.parametrize(
    ("given", "asked"), [([], 1), (["--samples", "8"], 8), (["--preset", "paper_ta_grpo"], None)]
)
def test_a_flag_counts_more_than_the_samples_of_the_runs_own_benchmark(
    tmp_path: Path, given: list[str], asked: int | None
) -> None:
    """As the toy examples have it: eval.benchmarks with samples: 1 in config.yaml."""
    (tmp_path / "config.yaml").write_text(
        "eval: {template: qwen-math, benchmarks: [{name: toy, path: x.parquet, samples: 1}]}\n"
    )
    options = sweep._parser().parse_args([str(tmp_path), *given])
    settings = sweep._settings(options, tmp_path)
    (request,) = settings.benchmarks
    preset = sweep.settings_module.presets()["paper_ta_grpo"]["samples"]
    assert (request.samples or settings.samples) == (asked or preset)
    named = sweep._parser().parse_args([str(tmp_path), *given, "--benchmark", "toy=x.parquet:3"])
    (request,) = sweep._settings(named, tmp_path).benchmarks
    assert request.samples == 3
