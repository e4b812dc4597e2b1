"""From requests to scores.json, with kills, changed settings and engines that misbehave."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from eval.benchmarks import LoadedBenchmark
from eval.checkpoints import Checkpoint, from_model
from eval.engine import Completion, Request
from eval.errors import EvaluationError
from eval.evaluate import evaluate
from eval.settings import Settings
from prompt_aug.files import read_lines

SETTINGS = Settings(max_tokens=64, dtype="float32")
MakeBenchmark = Callable[..., LoadedBenchmark]
Answer = Callable[[Request], str]


class FakeEngine:
    """Answers by a function of the request; counts starts, and can die after some requests."""

    def __init__(self, answer: Answer, die_after: int | None = None) -> None:
        self.answer, self.die_after = answer, die_after
        self.starts = self.stops = 0
        self.asked: list[Request] = []

    def open(self, model: str, settings: Settings, max_model_len: int) -> "FakeEngine":
        self.context = max_model_len
        return self

    def __enter__(self) -> "FakeEngine":
        self.starts += 1
        return self

    def __exit__(self, *_: object) -> None:
        self.stops += 1

    def generate(self, requests: Sequence[Request]) -> list[Completion]:
        if self.die_after is not None and len(self.asked) + len(requests) > self.die_after:
            raise KeyboardInterrupt
        self.asked += requests
        texts = [self.answer(request) for request in requests]
        return [Completion(text=t, tokens=len(t), finish_reason="stop") for t in texts]


def right(request: Request) -> str:
    return rf"\boxed{{{request.question + 1}}}"


def right_if_even(request: Request) -> str:
    return right(request) if request.question % 2 == 0 else r"\boxed{77}"


@pytest.fixture
def checkpoint(model: Path) -> Checkpoint:
    return dataclasses.replace(from_model(str(model)), step=20)


def run(
    folder: Path,
    checkpoint: Checkpoint,
    engine: FakeEngine,
    *benchmarks: LoadedBenchmark,
    settings: Settings = SETTINGS,
    **options: Any,
) -> dict[str, Any]:
    return evaluate(
        checkpoint, folder, settings, settings.prompts(), benchmarks,
        open_engine=engine.open, **options,
    )  # fmt: skip


def test_scores_by_hand(
    tmp_path: Path, checkpoint: Checkpoint, make_benchmark: MakeBenchmark
) -> None:
    def answer(request: Request) -> str:
        # Questions 0 and 1 right twice, 2 once, 3 never, with no answer at all.
        return right(request) if request.question + request.sample <= 2 else "no idea"

    engine = FakeEngine(answer)
    scores = run(tmp_path / "e", checkpoint, engine, make_benchmark(questions=4, samples=2))
    entry = scores["benchmarks"]["toy"]
    assert entry["question_means"] == [1.0, 1.0, 0.5, 0.0]
    assert entry["accuracy"] == 5 / 8
    # Cluster sums (3/4, 3/4, -1/4, -5/4): squares sum to 11/4; times 4/3, over 64.
    assert entry["standard_error"] == pytest.approx((11 / 4 * 4 / 3 / 64) ** 0.5)
    assert entry["pass_at_k"] == {"1": 5 / 8, "2": 3 / 4}
    assert entry["status_rates"] == {"correct": 5 / 8, "no_answer": 3 / 8}
    assert (entry["questions"], entry["samples"], entry["truncation_rate"]) == (4, 8, 0.0)
    assert scores["average"]["per_question"]["accuracy"] == 5 / 8
    assert scores == json.loads((tmp_path / "e" / "scores.json").read_text())
    lines = read_lines(tmp_path / "e" / "toy.jsonl")
    assert [(line["question"], line["sample"]) for line in lines] == [
        (question, sample) for question in range(4) for sample in range(2)
    ]
    assert lines[0]["prompt"].endswith("<|im_start|>assistant\n")
    assert lines[0]["extracted"] == "1" and lines[0]["status"] == "correct"


def test_a_second_run_starts_no_engine(
    tmp_path: Path, checkpoint: Checkpoint, make_benchmark: MakeBenchmark
) -> None:
    engine, benchmark = FakeEngine(right), make_benchmark()
    first = run(tmp_path / "e", checkpoint, engine, benchmark)
    assert not list((tmp_path / "e").glob("*.part"))
    assert run(tmp_path / "e", checkpoint, engine, benchmark) == first
    assert engine.starts == engine.stops == 1


def test_a_killed_evaluation_asks_only_for_what_is_missing(
    tmp_path: Path, checkpoint: Checkpoint, make_benchmark: MakeBenchmark
) -> None:
    benchmark, folder = make_benchmark(questions=6, samples=2), tmp_path / "e"
    dying = FakeEngine(right_if_even, die_after=8)
    with pytest.raises(KeyboardInterrupt):
        run(folder, checkpoint, dying, benchmark, chunk=4)
    assert dying.stops == 1
    assert not (folder / "scores.json").exists()
    part = folder / "toy.jsonl.part"
    part.write_text(part.read_text() + '{"question": 4, "sam')  # torn by the kill
    second = FakeEngine(right_if_even)
    scores = run(folder, checkpoint, second, benchmark, chunk=4)
    assert [(r.question, r.sample) for r in second.asked] == [(4, 0), (4, 1), (5, 0), (5, 1)]
    whole = run(tmp_path / "w", checkpoint, FakeEngine(right_if_even), benchmark)
    assert scores["benchmarks"] == whole["benchmarks"]
    assert (folder / "toy.jsonl").read_bytes() == (tmp_path / "w" / "toy.jsonl").read_bytes()


def test_a_kill_before_grading_leaves_nothing_to_generate(
    tmp_path: Path,
    checkpoint: Checkpoint,
    make_benchmark: MakeBenchmark,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    engine, benchmark = FakeEngine(right), make_benchmark()
    with monkeypatch.context() as patch:
        patch.setattr("eval.evaluate.grade_lines", die)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path / "e", checkpoint, engine, benchmark)
    assert run(tmp_path / "e", checkpoint, engine, benchmark)["benchmarks"]["toy"]["accuracy"] == 1
    assert engine.starts == 1


@pytest.mark.parametrize(("force", "asked"), [(False, 0), (True, 6)])
def test_a_kill_after_scoring_leaves_no_part_that_a_forced_redo_takes_up(
    tmp_path: Path,
    checkpoint: Checkpoint,
    make_benchmark: MakeBenchmark,
    monkeypatch: pytest.MonkeyPatch,
    force: bool,
    asked: int,
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    folder, benchmark = tmp_path / "e", make_benchmark()
    with monkeypatch.context() as patch:
        patch.setattr("eval.evaluate._remove_parts", die)
        with pytest.raises(KeyboardInterrupt):
            run(folder, checkpoint, FakeEngine(right), benchmark)
    assert (folder / "scores.json").exists() and (folder / "toy.jsonl.part").exists()
    engine = FakeEngine(right)
    run(folder, checkpoint, engine, benchmark, force=force)
    assert len(engine.asked) == asked
    assert not (folder / "toy.jsonl.part").exists()


def test_samples_of_other_settings_are_not_continued(
    tmp_path: Path, checkpoint: Checkpoint, make_benchmark: MakeBenchmark
) -> None:
    benchmark, folder = make_benchmark(), tmp_path / "e"
    with pytest.raises(KeyboardInterrupt):
        run(folder, checkpoint, FakeEngine(right, die_after=4), benchmark, chunk=2)
    warm = dataclasses.replace(SETTINGS, temperature=1.0)
    engine = FakeEngine(right)
    run(folder, checkpoint, engine, benchmark, settings=warm)
    assert len(engine.asked) == 6


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 1.0},
        {"max_tokens": 32},
        {"template": "open-r1"},
    ],
)
def test_scores_of_other_settings_are_refused_and_redone_by_force(
    tmp_path: Path, checkpoint: Checkpoint, make_benchmark: MakeBenchmark, change: dict[str, Any]
) -> None:
    benchmark, folder = make_benchmark(), tmp_path / "e"
    old = run(folder, checkpoint, FakeEngine(right), benchmark)
    changed = dataclasses.replace(SETTINGS, **change)
    engine = FakeEngine(right_if_even)
    with pytest.raises(EvaluationError, match=next(iter(change))):
        run(folder, checkpoint, engine, benchmark, settings=changed)
    assert engine.starts == 0
    assert json.loads((folder / "scores.json").read_text()) == old
    redone = run(folder, checkpoint, engine, benchmark, settings=changed, force=True)
    assert redone["benchmarks"]["toy"]["accuracy"] == 0.5


def test_other_weights_or_questions_are_refused(
    tmp_path: Path, checkpoint: Checkpoint, make_benchmark: MakeBenchmark
) -> None:
    folder = tmp_path / "e"
    run(folder, checkpoint, FakeEngine(right), make_benchmark())
    other = dataclasses.replace(checkpoint, identity={"files": "others"})
    with pytest.raises(EvaluationError, match="model"):
        run(folder, other, FakeEngine(right), make_benchmark())
    with pytest.raises(EvaluationError, match="toy sha256"):
        run(folder, checkpoint, FakeEngine(right), make_benchmark(questions=7))


def test_another_benchmark_joins_the_scores(
    tmp_path: Path, checkpoint: Checkpoint, make_benchmark: MakeBenchmark
) -> None:
    toy, other = make_benchmark(), make_benchmark("other", questions=2)
    run(tmp_path / "e", checkpoint, FakeEngine(right), toy)
    engine = FakeEngine(lambda _: "")
    scores = run(tmp_path / "e", checkpoint, engine, toy, other)
    assert len(engine.asked) == 2
    assert scores["average"]["per_question"]["accuracy"] == 6 / 8
    assert scores["average"]["per_benchmark"]["accuracy"] == 1 / 2


def test_a_forced_redo_that_is_killed_continues_and_keeps_the_other_benchmark(
    tmp_path: Path, checkpoint: Checkpoint, make_benchmark: MakeBenchmark
) -> None:
    toy, other = make_benchmark(), make_benchmark("other", questions=2)
    folder = tmp_path / "e"
    run(folder, checkpoint, FakeEngine(right), toy, other)
    with pytest.raises(KeyboardInterrupt):
        run(folder, checkpoint, FakeEngine(right, die_after=4), toy, chunk=2, force=True)
    assert list(json.loads((folder / "scores.json").read_text())["benchmarks"]) == ["other"]
    engine = FakeEngine(right)
    assert set(run(folder, checkpoint, engine, toy)["benchmarks"]) == {"toy", "other"}
    assert len(engine.asked) == 2


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
    scores = run(
        tmp_path / "e", checkpoint, engine, dataclasses.replace(benchmark, questions=questions)
    )
    entry = scores["benchmarks"]["toy"]
    assert engine.context == 1024
    assert [request.question for request in engine.asked] == [0, 2, 3]
    assert entry["question_means"] == [1.0, 0.0, 1.0, 1.0]
    assert entry["status_rates"]["prompt_too_long"] == 1 / 4
    assert "1 of 4 questions of toy" in capsys.readouterr().out


def test_an_engine_context_is_as_long_as_needed_or_as_asked(
    tmp_path: Path, checkpoint: Checkpoint, make_benchmark: MakeBenchmark
) -> None:
    benchmark, engine = make_benchmark(), FakeEngine(right)
    run(tmp_path / "a", checkpoint, engine, benchmark)
    longest = max(len(request.prompt_token_ids) for request in engine.asked)
    assert engine.context == longest + 64
    run(
        tmp_path / "b", checkpoint, engine, benchmark,
        settings=dataclasses.replace(SETTINGS, max_model_len=900),
    )  # fmt: skip
    assert engine.context == 900
    for wrong in (2000, 10):
        settings = dataclasses.replace(SETTINGS, max_model_len=wrong)
        with pytest.raises(EvaluationError, match="max_model_len"):
            run(tmp_path / "c", checkpoint, engine, benchmark, settings=settings)


def test_an_engine_that_loses_a_completion_is_an_error(
    tmp_path: Path, checkpoint: Checkpoint, make_benchmark: MakeBenchmark
) -> None:
    class Lossy(FakeEngine):
        def generate(self, requests: Any) -> Any:
            return super().generate(requests)[1:]

    with pytest.raises(EvaluationError, match="6 prompts gave 5"):
        run(tmp_path / "e", checkpoint, Lossy(right), make_benchmark())
