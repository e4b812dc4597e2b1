"""Grading again, damaged samples, grader versions, extraction, tolerance, seeds: no engine."""

from pathlib import Path
from typing import Any

import pytest
from fake_engine import MODEL, changing, write_checkpoint

from eval import EvaluationError
from eval.engine import request_seed
from eval.score import combine, is_close, main, regrade
from prompt_aug.base.files import read_json, read_lines, write_json, write_lines
from prompt_aug.grading import VERSION
from recipe.run.folder import EvaluationFolder


def respond(folder: EvaluationFolder, *responses: str, **changes: object) -> None:
    """Replace the responses of the first questions. `changes` are those of the last question."""
    files = folder.benchmark("toy")
    (path,) = files.sample_files()
    head, *samples = read_lines(path)
    changed = [{**s, "response": r} for s, r in zip(samples, responses, strict=False)]
    write_lines(path, [head, *changed])
    *questions, last = read_lines(files.questions)
    write_lines(files.questions, [*questions, {**last, **changes}])


def regraded(folder: EvaluationFolder, extraction: str) -> dict[str, Any]:
    """Grade again under another extraction."""
    with changing(folder.benchmark("toy").scores) as entry:
        entry["settings"]["extraction"] = extraction
    return regrade(folder)["benchmarks"]["toy"]


@pytest.fixture
def four(tmp_path: Path) -> EvaluationFolder:
    """Four questions with the gold 1, all stored as wrong."""
    return write_checkpoint(tmp_path / "eval" / "s", 20, {"toy": [[0], [0], [0], [0]]})


@pytest.fixture
def scored(four: EvaluationFolder) -> EvaluationFolder:
    """Question 2 has no answer, 3 was not asked."""
    respond(four, r"\boxed{1}", r"\boxed{7}", "no idea", asked=False)
    return four


def test_grading_again_uses_the_stored_responses(
    scored: EvaluationFolder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert read_json(scored.scores)["benchmarks"]["toy"]["accuracy"] == 0
    entry = regrade(scored)["benchmarks"]["toy"]
    assert entry["question_means"] == [1.0, 0.0, 0.0, 0.0]
    statuses = ("correct", "no_answer", "prompt_too_long", "wrong")
    assert entry["status_rates"] == dict.fromkeys(statuses, 0.25)
    grades = read_lines(scored.benchmark("toy").grades)
    assert grades[0] == {"grader": VERSION, "model": MODEL}
    assert [line["extracted"] for line in grades[1:]] == ["1", "7", None]
    assert main([str(tmp_path)]) == 0
    assert "accuracy 0.2500" in capsys.readouterr().out
    assert read_json(scored.scores)["benchmarks"]["toy"] == entry
    (tmp_path / "none").mkdir()
    assert main([str(tmp_path / "none")]) == 1


@pytest.mark.parametrize(
    ("setting", "accuracy"), [("strict", 0.25), ("default", 0.5), ("last_number", 0.75)]
)
def test_the_extraction_determines_the_score_and_is_recorded(
    four: EvaluationFolder, setting: str, accuracy: float
) -> None:
    """Of a box, an answer in prose, a number alone, and a wrong box."""
    alone = "so we get to 1 somehow, which ends it"
    respond(four, r"\boxed{1}", "The answer is 1.", alone, r"\boxed{7}")
    made = regraded(four, setting)
    assert made["accuracy"] == accuracy
    assert made["settings"]["extraction"] == setting
    assert made["accuracy_under"] == {"strict": 0.25, "default": 0.5}


@pytest.mark.parametrize("setting", ["strict", "default", "last_number"])
def test_a_choice_by_its_text_is_right_under_each_extraction(
    four: EvaluationFolder, setting: str
) -> None:
    """The verdict names the letter, the response the text."""
    choice = {"gold": ["A"], "options": ["10^{-4} eV", "2 eV"]}
    respond(four, *["no idea"] * 3, r"\boxed{A) 10^{-4} eV}", **choice)
    made = regraded(four, setting)
    assert made["question_means"] == [0.0, 0.0, 0.0, 1.0]
    assert made["accuracy_under"] == {"strict": 0.25, "default": 0.25}


def test_a_lost_sample_is_an_error_and_not_a_wrong_answer(scored: EvaluationFolder) -> None:
    (path,) = scored.benchmark("toy").sample_files()
    lines = read_lines(path)
    write_lines(path, [*lines[:2], *lines[3:]])
    with pytest.raises(EvaluationError, match=r"1 samples are missing: run eval\.sweep"):
        regrade(scored)
    write_lines(path, [*lines, lines[1]])  # a repeated one counts once
    assert regrade(scored)["benchmarks"]["toy"]["samples"] == 4


def test_verdicts_of_two_graders_are_never_combined(
    scored: EvaluationFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    files = scored.benchmark("other")
    entry = read_json(scored.benchmark("toy").scores)
    for changes, noted in (({}, 1), ({"model": {"files": "y"}}, 0)):
        write_json(files.scores, {**entry, "grader": "an older one", **changes})
        assert list(combine(scored, 20, "m", MODEL)["benchmarks"]) == ["toy"]
        assert capsys.readouterr().out.count("graded it: other. Run") == noted


def test_a_seed_is_a_pure_function_of_question_and_sample() -> None:
    # First 4 bytes of sha256("7\\0u1\\03"), halved; computed with sha256sum.
    assert request_seed(7, "u1", 3) == int("78a96226", 16) >> 1
    seeds = {request_seed(s, u, n) for s in (0, 1) for u in ("a", "b") for n in range(8)}
    assert len(seeds) == 32


@pytest.mark.parametrize(
    ("answer", "gold", "close"),
    [
        ("4.49e33", "4.5e33", True),
        (r"4.49 \times 10^{33} \text{ erg/s}", "4.5e33", True),
        ("1.01", "1.00", True),  # exactly the tolerance
        ("1.0101", "1.00", False),
        ("-2.5", "2.5", False),
        ("9.05", "9", False),  # a whole number is exact
        ("0.33", "1/3", False),
        (r"3.21\ \mathrm{cm}", r"3.2 \text{ cm}", True),
        ("3.21 m", "3.2 cm", False),
        (r"1e-7", r"1.004 \times 10^{-7}", True),
        ("x", "2.5", False),
        (r"2\sqrt3", "3.46", True),
        ("e^2", "7.39", True),
        ("2+3i", "2.0", False),
        ("2.5 or 3", "2.5", False),
        ("0.1", "0.0", False),
        (None, "2.5", False),
    ],
)
def test_only_numbers_near_a_measurement(answer: str | None, gold: str, close: bool) -> None:
    assert is_close(answer, [gold], 0.01) is close
    assert is_close(answer, ["77.5", gold], 0.01) is close
