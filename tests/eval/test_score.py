"""Grading again and seeds: what needs no engine."""

import json
import os
from pathlib import Path

import pytest

from eval.engine import prepare_environment, request_seed
from eval.errors import EvaluationError
from eval.samples import TOO_LONG
from eval.score import main, regrade, write_scores
from prompt_aug.files import dump_lines, read_lines


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    """Questions 0 to 3 ask for 1 to 4; 0 is right, 1 wrong, 2 silent, 3 was never asked."""
    responses = [r"\boxed{1}", r"\boxed{7}", "no idea", ""]
    lines = [
        {
            "question": i,
            "sample": 0,
            "response": response,
            "gold": [str(i + 1)],
            "tokens": 4,
            "finish_reason": TOO_LONG if i == 3 else "stop",
            "correct": False,
            "status": "not graded",
        }
        for i, response in enumerate(responses)
    ]
    folder = tmp_path / "eval" / "step_20"
    folder.mkdir(parents=True)
    (folder / "toy.jsonl").write_text(dump_lines(lines))
    settings = {"sha256": "x", "questions": 4, "of": 4, "samples": 1}
    record = {
        "step": 20,
        "model": "m",
        "settings": {"template": "qwen-math"},
        "how": {"bank": None},
        "benchmarks": {"toy": {"settings": settings, "path": "p"}},
    }
    write_scores(folder, record)
    return folder


def test_grading_again_uses_the_responses_on_disk(scored: Path) -> None:
    assert json.loads((scored / "scores.json").read_text())["benchmarks"]["toy"]["accuracy"] == 0
    entry = regrade(scored)["benchmarks"]["toy"]
    assert entry["question_means"] == [1.0, 0.0, 0.0, 0.0]
    assert entry["status_rates"] == {
        "correct": 0.25,
        "no_answer": 0.25,
        "prompt_too_long": 0.25,
        "wrong": 0.25,
    }
    lines = read_lines(scored / "toy.jsonl")
    assert [line["extracted"] for line in lines] == ["1", "7", None, None]
    assert regrade(scored)["benchmarks"]["toy"] == entry


def test_the_command_grades_everything_below_a_folder(
    scored: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(scored.parent)]) == 0
    assert "accuracy 0.2500" in capsys.readouterr().out
    assert main([str(scored / "none")]) == 1


def test_a_lost_or_doubled_line_is_an_error_and_not_a_wrong_answer(scored: Path) -> None:
    lines = (scored / "toy.jsonl").read_text().splitlines(keepends=True)
    for damaged in (lines[:-1], lines[1:], [*lines, lines[0]]):
        (scored / "toy.jsonl").write_text("".join(damaged))
        with pytest.raises(EvaluationError, match="--force"):
            regrade(scored)


def test_a_seed_is_a_pure_function_of_question_and_sample() -> None:
    # First 4 bytes of sha256("7\\0u1\\03"), halved; computed with sha256sum.
    assert request_seed(7, "u1", 3) == int("78a96226", 16) >> 1
    seeds = {request_seed(s, u, n) for s in (0, 1) for u in ("a", "b") for n in range(8)}
    assert len(seeds) == 32


@pytest.mark.parametrize(
    ("size", "before", "after"),
    [(1000, None, "1"), (1000, "4", "4"), (2**27, None, None), (0, None, None)],
)
def test_small_models_get_one_thread_unless_the_user_says_otherwise(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    size: int,
    before: str | None,
    after: str | None,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if before is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", before)
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.truncate(size)
    prepare_environment(str(tmp_path))
    value = os.environ.get("OMP_NUM_THREADS")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    assert value == after
