"""From requests to scores.json: kills, more samples, other settings, two workers, bad engines."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fake_engine import FakeEngine, session

from eval.benchmarks import LoadedBenchmark
from eval.checkpoints import Checkpoint, from_model
from eval.engine import Request
from eval.errors import EvaluationError
from eval.evaluate import Evaluation
from eval.score import regrade
from eval.settings import Settings
from prompt_aug.base.files import InUseError, lock, read_lines
from recipe.run.folder import EvaluationFolder

SETTINGS = Settings(max_tokens=64, dtype="float32")
MakeBenchmark = Callable[..., LoadedBenchmark]


def right(request: Request) -> str:
    return rf"\boxed{{{request.question + 1}}}"


def right_if_even(request: Request) -> str:
    return right(request) if request.question % 2 == 0 else r"\boxed{77}"


@pytest.fixture
def checkpoint(model: Path) -> Checkpoint:
    return dataclasses.replace(from_model(str(model)), step=20)


def run(
    root: Path,
    checkpoint: Checkpoint,
    engine: FakeEngine,
    *benchmarks: LoadedBenchmark,
    settings: Settings = SETTINGS,
) -> dict[str, Any]:
    evaluation = Evaluation(root, settings, benchmarks)
    evaluation.prepare()
    scores: dict[str, Any] = {}
    with session(engine, settings) as held:
        for item in evaluation.items(checkpoint):
            scores = evaluation.run(item, held)
    return scores


def only(root: Path, pattern: str) -> Path:
    (path,) = root.glob(pattern)
    return path


def asked(engine: FakeEngine) -> list[tuple[int, int]]:
    return sorted((request.question, request.sample) for request in engine.asked)


def test_a_benchmark_has_its_own_template(
    tmp_path: Path, checkpoint: Checkpoint, make_benchmark: MakeBenchmark
) -> None:
    plain, own = make_benchmark("plain"), make_benchmark("own")
    run(tmp_path, checkpoint, FakeEngine(right), plain)  # an earlier sweep, without the other
    own = dataclasses.replace(own, template="deepseek-r1")
    engine = FakeEngine(right)
    scores = run(tmp_path, checkpoint, engine, plain, own)
    assert len(engine.asked) == len(own.questions)  # plain is done already
    named = {
        name: entry["settings"].get("template") for name, entry in scores["benchmarks"].items()
    }
    assert named == {"plain": None, "own": "deepseek-r1"}
    asked_with = {
        name: read_lines(only(tmp_path, f"*/{checkpoint.name}/{name}/questions.jsonl"))[0]
        for name in named
    }
    assert asked_with["plain"]["template"] != asked_with["own"]["template"] == "deepseek-r1"
    assert asked_with["plain"]["prompt"] != asked_with["own"]["prompt"]
    folder = EvaluationFolder(only(tmp_path, f"*/{checkpoint.name}"))
    assert regrade(folder)["benchmarks"] == scores["benchmarks"]  # with the template of each
    # Another template of its own: asked again, beside the old samples.
    engine = FakeEngine(right)
    run(tmp_path, checkpoint, engine, plain, dataclasses.replace(own, template="open-r1"))
    assert len(engine.asked) == len(own.questions)


def test_scores_by_hand(
    tmp_path: Path, checkpoint: Checkpoint, make_benchmark: MakeBenchmark
) -> None:
    def answer(request: Request) -> str:
        # Questions 0 and 1 right twice, 2 once, 3 never, with no answer at all.
        return right(request) if request.question + request.sample <= 2 else "no idea"

    scores = run(tmp_path, checkpoint, FakeEngine(answer), make_benchmark(questions=4, samples=2))
    entry = scores["benchmarks"]["toy"]
    assert entry["question_means"] == [1.0, 1.0, 0.5, 0.0]
    assert entry["accuracy"] == 5 / 8
    # Cluster sums (3/4, 3/4, -1/4, -5/4): squares sum to 11/4; times 4/3, over 64.
    assert entry["standard_error"] == pytest.approx((11 / 4 * 4 / 3 / 64) ** 0.5)
    assert entry["pass_at_k"] == {"1": 5 / 8, "2": 3 / 4}
    assert entry["pass_all_k"] == {"1": 5 / 8, "2": 1 / 2}
    assert entry["no_signal_k"] == {"2": 3 / 4}
    assert entry["majority_at_k"] == {"1": 5 / 8, "2": 3 / 4}  # who gives no answer has no vote
    low, high = entry["interval"]
    assert 0 <= low < 5 / 8 < high <= 1
    assert entry["status_rates"] == {"correct": 5 / 8, "no_answer": 3 / 8}
    assert (entry["questions"], entry["samples"], entry["truncation_rate"]) == (4, 8, 0.0)
    assert scores["average"]["per_question"]["accuracy"] == 5 / 8
    folder = only(tmp_path, "*/step_20")
    assert scores == json.loads((folder / "scores.json").read_text())
    questions = read_lines(folder / "toy" / "questions.jsonl")
    assert questions[0]["prompt"].endswith("<|im_start|>assistant\n")
    head, *samples = read_lines(only(folder, "toy/samples-*.jsonl"))
    assert head == {
        "model": checkpoint.identity,
        "engine": {"vllm": "fake", "dtype": "float32", "device": "none"},
    }
    assert len(samples) == 8
    grades = read_lines(folder / "toy" / "grades.jsonl")[1:]
    assert grades[0]["extracted"] == "1" and grades[0]["status"] == "correct"


def test_a_second_run_starts_no_engine(
    tmp_path: Path, checkpoint: Checkpoint, make_benchmark: MakeBenchmark
) -> None:
    engine, benchmark = FakeEngine(right), make_benchmark()
    first = run(tmp_path, checkpoint, engine, benchmark)
    assert run(tmp_path, checkpoint, engine, benchmark) == first
    assert engine.starts == engine.stops == 1


def test_a_killed_evaluation_asks_only_for_what_is_missing(
    tmp_path: Path, checkpoint: Checkpoint, make_benchmark: MakeBenchmark
) -> None:
    benchmark = make_benchmark(questions=6, samples=2)
    dying = FakeEngine(right_if_even, die_after=8)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "e", checkpoint, dying, benchmark)
    assert dying.stops == 1
    assert not list((tmp_path / "e").rglob("scores.json"))
    part = only(tmp_path / "e", "*/step_20/toy/samples-*.jsonl")
    before = part.read_bytes()
    part.write_bytes(before + b'{"uid": "4", "sam')  # torn by the kill
    second = FakeEngine(right_if_even)
    scores = run(tmp_path / "e", checkpoint, second, benchmark)
    assert asked(second) == [(0, 0), (0, 1), (1, 0), (1, 1)]  # the fake answers the last first
    assert part.read_bytes().startswith(before)
    whole = run(tmp_path / "w", checkpoint, FakeEngine(right_if_even), benchmark)
    assert scores["benchmarks"] == whole["benchmarks"]
    graded = [only(tmp_path / name, "*/step_20/toy/grades.jsonl") for name in "ew"]
    assert graded[0].read_bytes() == graded[1].read_bytes()


def test_more_samples_make_only_the_missing_ones_and_fewer_make_none(
    tmp_path: Path, checkpoint: Checkpoint, make_benchmark: MakeBenchmark
) -> None:
    run(tmp_path, checkpoint, FakeEngine(right), make_benchmark(questions=3, samples=4))
    engine = FakeEngine(right)
    more = run(tmp_path, checkpoint, engine, make_benchmark(questions=3, samples=6))
    assert asked(engine) == [(q, s) for q in range(3) for s in (4, 5)]
    assert more["benchmarks"]["toy"]["samples"] == 18
    less = run(tmp_path, checkpoint, engine, make_benchmark(questions=2, samples=1))
    assert less["benchmarks"]["toy"]["samples"] == 2 and len(engine.asked) == 6
    assert len(list(tmp_path.glob("*"))) == 1 + 1  # one folder of settings, and the questions' file


def test_a_kill_before_grading_leaves_nothing_to_generate(
    tmp_path: Path,
    checkpoint: Checkpoint,
    make_benchmark: MakeBenchmark,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    engine, benchmark = FakeEngine(right), make_benchmark()
    with monkeypatch.context() as patch:
        patch.setattr("eval.evaluate.score_benchmark", die)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, checkpoint, engine, benchmark)
    assert run(tmp_path, checkpoint, engine, benchmark)["benchmarks"]["toy"]["accuracy"] == 1
    assert engine.starts == 1


@pytest.mark.parametrize(
    "change", [{"temperature": 1.0}, {"max_tokens": 32}, {"template": "open-r1"}, {"style": "raw"}]
)
def test_other_settings_have_a_folder_of_their_own_and_touch_no_other(
    tmp_path: Path, checkpoint: Checkpoint, make_benchmark: MakeBenchmark, change: dict[str, Any]
) -> None:
    benchmark = make_benchmark()
    run(tmp_path, checkpoint, FakeEngine(right), benchmark)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    engine = FakeEngine(right_if_even)
    changed = dataclasses.replace(SETTINGS, **change)
    scores = run(tmp_path, checkpoint, engine, benchmark, settings=changed)
    assert scores["benchmarks"]["toy"]["accuracy"] == 0.5 and len(engine.asked) == 6
    assert {path: path.read_bytes() for path in before} == before
    assert len(list(tmp_path.glob("*/step_20/scores.json"))) == 2


def test_other_weights_are_sampled_anew_and_the_old_samples_stay(
    tmp_path: Path, checkpoint: Checkpoint, make_benchmark: MakeBenchmark
) -> None:
    benchmark, other = make_benchmark(), make_benchmark("other", questions=2)
    run(tmp_path, checkpoint, FakeEngine(right), benchmark, other)
    old = {path: path.read_bytes() for path in tmp_path.rglob("samples-*")}
    retrained = dataclasses.replace(checkpoint, identity={"files": "others"})
    engine = FakeEngine(right_if_even)
    scores = run(tmp_path, retrained, engine, benchmark)
    assert len(engine.asked) == 6
    assert list(scores["benchmarks"]) == ["toy"]  # the other's score is of other weights
    assert {path: path.read_bytes() for path in old} == old
    again = FakeEngine(right)
    assert set(run(tmp_path, checkpoint, again, benchmark, other)["benchmarks"]) == {"toy", "other"}
    assert again.asked == []


def test_another_benchmark_joins_the_scores(
    tmp_path: Path, checkpoint: Checkpoint, make_benchmark: MakeBenchmark
) -> None:
    toy, other = make_benchmark(), make_benchmark("other", questions=2)
    run(tmp_path, checkpoint, FakeEngine(right), toy)
    engine = FakeEngine(lambda _: "")
    scores = run(tmp_path, checkpoint, engine, toy, other)
    assert len(engine.asked) == 2
    assert scores["average"]["per_question"]["accuracy"] == 6 / 8
    assert scores["average"]["per_benchmark"]["accuracy"] == 1 / 2


def test_an_item_that_another_worker_holds_is_refused_until_it_is_free(
    tmp_path: Path, checkpoint: Checkpoint, make_benchmark: MakeBenchmark
) -> None:
    benchmark, engine = make_benchmark(), FakeEngine(right)
    (item,) = Evaluation(tmp_path, SETTINGS, [benchmark]).items(checkpoint)
    with lock(item.folder.root):  # as another process would
        with pytest.raises(InUseError):
            run(tmp_path, checkpoint, engine, benchmark)
        assert engine.asked == []
    run(tmp_path, checkpoint, engine, benchmark)
    assert len(engine.asked) == 6


def test_a_question_that_stands_twice_is_asked_once_and_counts_twice(
    tmp_path: Path, checkpoint: Checkpoint, make_benchmark: MakeBenchmark
) -> None:
    benchmark = make_benchmark(questions=2)
    twice = dataclasses.replace(benchmark, questions=(*benchmark.questions, benchmark.questions[0]))
    engine = FakeEngine(lambda request: right(request) if request.question == 0 else "")
    entry = run(tmp_path, checkpoint, engine, twice)["benchmarks"]["toy"]
    assert asked(engine) == [(0, 0), (1, 0)]
    assert entry["question_means"] == [1.0, 0.0, 1.0]


def test_a_prompt_without_room_counts_as_wrong_and_is_named(
    tmp_path: Path,
    checkpoint: Checkpoint,
    make_benchmark: MakeBenchmark,
    capsys: pytest.CaptureFixture[str],
) -> None:
    benchmark = make_benchmark(questions=4)
    long = dataclasses.replace(benchmark.questions[1], text="x" * 2000)
    questions = (benchmark.questions[0], long, *benchmark.questions[2:])
    engine = FakeEngine(right)
    changed = dataclasses.replace(benchmark, questions=questions)
    entry = run(tmp_path, checkpoint, engine, changed)["benchmarks"]["toy"]
    assert engine.context == 1024
    assert [question for question, _ in asked(engine)] == [0, 2, 3]
    assert entry["question_means"] == [1.0, 0.0, 1.0, 1.0]
    assert entry["status_rates"]["prompt_too_long"] == 1 / 4
    assert "1 of 4 questions of toy" in capsys.readouterr().out


def test_an_engine_context_is_as_long_as_any_benchmark_needs_or_as_asked(
    tmp_path: Path, checkpoint: Checkpoint, make_benchmark: MakeBenchmark
) -> None:
    benchmark, engine = make_benchmark(), FakeEngine(right)
    longer = make_benchmark("a benchmark of a longer name".replace(" ", "_"))
    run(tmp_path / "a", checkpoint, engine, benchmark, longer)
    longest = max(len(request.prompt_token_ids) for request in engine.asked)
    assert engine.context == longest + 64 and engine.starts == 1
    settings = dataclasses.replace(SETTINGS, max_model_len=900)
    run(tmp_path / "b", checkpoint, engine, benchmark, settings=settings)
    assert engine.context == 900
    for wrong in (2000, 10):
        settings = dataclasses.replace(SETTINGS, max_model_len=wrong)
        with pytest.raises(EvaluationError, match="max_model_len"):
            run(tmp_path / "c", checkpoint, engine, benchmark, settings=settings)


def test_an_engine_that_loses_a_completion_is_an_error(
    tmp_path: Path, checkpoint: Checkpoint, make_benchmark: MakeBenchmark
) -> None:
    class Lossy(FakeEngine):
        def stream(self, requests: Any) -> Any:
            yield from list(super().stream(requests))[1:]

    with pytest.raises(EvaluationError, match="6 prompts gave 5"):
        run(tmp_path, checkpoint, Lossy(right), make_benchmark())


def test_settings_that_were_changed_on_the_disk_are_not_taken_up(
    tmp_path: Path, checkpoint: Checkpoint, make_benchmark: MakeBenchmark
) -> None:
    run(tmp_path, checkpoint, FakeEngine(right), make_benchmark())
    path = only(tmp_path, "*/settings.json")
    path.write_text(path.read_text().replace('"max_tokens": 64', '"max_tokens": 65'))
    with pytest.raises(EvaluationError, match="max_tokens: 65 -> 64"):
        run(tmp_path, checkpoint, FakeEngine(right), make_benchmark(samples=2))
