"""Scores, errors, intervals; grading again, damaged samples, grader versions, extraction."""

import math
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_engine import MODEL, changing, write_checkpoint

from eval.ask.engine import request_seed
from eval.scores import metrics
from eval.scores.metrics import accuracy_interval, at_powers, majority, paired
from eval.scores.score import combine, is_close, main, regrade
from prompt_aug.base.errors import UserError
from prompt_aug.base.estimates import all_table, no_signal_table, pass_table, wilson
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
    assert main([str(tmp_path)]) == 0
    assert "accuracy 0.2500" in capsys.readouterr().out
    assert read_json(scored.scores)["benchmarks"]["toy"] == entry


def test_an_entry_of_an_older_version_is_named(
    scored: EvaluationFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    with changing(scored.benchmark("toy").scores) as entry:
        del entry["path"]
    with pytest.raises(UserError, match="no scores of this model"):
        regrade(scored)
    assert "toy is left out" in capsys.readouterr().out


def test_checkpoints_are_listed_in_the_order_of_their_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (10, 9):
        write_checkpoint(tmp_path / "greedy", step, {"toy": [[1]]})
    assert main([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0].rpartition("_")[2] for line in lines] == ["9", "10"]


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
    with pytest.raises(UserError, match=r"1 samples are missing: run eval\.sweep"):
        regrade(scored)
    write_lines(path, [*lines, lines[1]])  # a repeated one counts once
    assert regrade(scored)["benchmarks"]["toy"]["samples"] == 4


@pytest.mark.parametrize("kept", [slice(1, None), slice(None, None, -1), slice(0, 0)])
def test_other_questions_than_those_of_the_scores_are_rejected(
    scored: EvaluationFolder, kept: slice, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A sample without its question would leave the denominator."""
    files, before = scored.benchmark("toy"), scored.scores.read_bytes()
    write_lines(files.questions, read_lines(files.questions)[kept])
    assert main([str(tmp_path)]) == 1
    assert str(files.questions) in capsys.readouterr().err
    assert scored.scores.read_bytes() == before


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
        ("1.01", "1.00", True),  # exactly the tolerance
        ("1.0101", "1.00", False),
        ("9.05", "9", False),  # a whole number is exact
        (r"3.21\ \mathrm{cm}", r"3.2 \text{ cm}", True),
        ("3.21 m", "3.2 cm", False),
        (None, "2.5", False),
        (r"45.1\%", "0.45", True),
        (r"0.451\%", "0.45", True),
        (r"451\%", "0.45", False),
        (r"45.1\%", r"45.0\%", True),
    ],
)
def test_only_numbers_near_a_measurement(answer: str | None, gold: str, close: bool) -> None:
    assert is_close(answer, [gold], 0.01) is close
    assert is_close(answer, ["77.5", gold], 0.01) is close


# ------------------------------------------------------------------------- metrics
# Metrics against values by hand, laws, brute force, and wrong estimators as negative controls.


@pytest.mark.parametrize(
    ("correct", "accuracy", "error"),
    [
        ([[1, 1], [0, 0]], 1 / 2, 1 / 2),  # cluster sums (+1, -1): SE^2 = 2/1 * (1 + 1) / 4^2
        ([[1], [0], [1], [0]], 1 / 2, 1 / math.sqrt(12)),  # std of n - 1 is 1/sqrt(3), over sqrt(4)
        ([[1, 0, 1, 1]], 3 / 4, None),  # one question
    ],
)
def test_accuracy_and_clustered_error_by_hand(
    correct: list[list[int]], accuracy: float, error: float | None
) -> None:
    value = metrics.accuracy(correct)
    assert (value.accuracy, value.questions) == (accuracy, len(correct))
    assert value.standard_error == pytest.approx(error, abs=1e-12)


def test_the_two_averages_by_hand() -> None:
    parts = [metrics.accuracy(part) for part in ([[1], [1]], [[0], [1], [0], [0]])]
    questions, benchmarks = metrics.over_questions(parts), metrics.over_benchmarks(parts)
    assert (questions.accuracy, questions.questions) == (pytest.approx(3 / 6), 6)
    # Strata: errors 0 of 2 questions and 1/4 of 4.
    assert questions.standard_error == pytest.approx(4 / 6 * 1 / 4)
    assert benchmarks.accuracy == pytest.approx((1 + 1 / 4) / 2)
    # Errors 0 and 1/4: sqrt(0 + 1/16) / 2.
    assert benchmarks.standard_error == pytest.approx(1 / 8)
    parts = [metrics.accuracy([[1, 0]]), metrics.accuracy([[1], [0]])]  # one without an error
    assert metrics.over_benchmarks(parts).standard_error is None


def test_pass_and_pass_all_at_powers() -> None:
    correct = np.array([[1, 0, 0, 0, 1, 0], [0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]])
    anyone, everyone = at_powers(correct, pass_table), at_powers(correct, all_table)
    assert list(everyone) == ["1", "2", "4", "6"]
    assert everyone["1"] == pytest.approx(anyone["1"]) == pytest.approx(correct.mean())
    assert everyone["6"] == pytest.approx(1 / 3) and anyone["6"] == pytest.approx(2 / 3)
    # Pairs of 2 right of 6: 1 + 6 of the 15 are equal. Of 0 or 6 right: all.
    assert at_powers(correct, no_signal_table)["2"] == pytest.approx((7 / 15 + 2) / 3)


# ------------------------------------------------------------------------- intervals


def test_interval_at_zero_and_one_is_wilson() -> None:
    low, high = accuracy_interval([[0] * 8] * 30)
    # z^2 / (n + z^2) = 3.8415 / 33.8415.
    assert (low, high) == pytest.approx((0.0, 0.11351), abs=1e-5)
    assert accuracy_interval([[1] * 8] * 30) == pytest.approx((1 - high, 1.0))


def test_interval_by_hand() -> None:
    # One sample of each question: Wilson's of 1 of 4 (scipy 1.17.1: 0.04559, 0.69936).
    assert accuracy_interval([[1], [0], [0], [0]]) == pytest.approx((0.04559, 0.69936), abs=1e-5)
    # All samples of a question alike: n = 1 again. All questions alike: 8 samples of one coin.
    assert accuracy_interval([[1] * 5, [0] * 5, [0] * 5, [0] * 5]) == pytest.approx(
        accuracy_interval([[1], [0], [0], [0]])
    )
    assert accuracy_interval([[1, 0]] * 4) == pytest.approx(wilson(0.5, 8))
    # Shares 1, 1/2, 0: SE 0.2887, widened by t(2) / z = 4.3027 / 1.96 it is below one question.
    assert accuracy_interval([[1, 1], [1, 0], [0, 0]]) == pytest.approx(wilson(0.5, 3))


@pytest.mark.parametrize("samples", [1, 4, 16, 32])
@pytest.mark.parametrize(("questions", "a", "b"), [(238, 0.5, 3.0), (30, 1.0, 1.0)])
def test_the_interval_covers_95_percent(samples: int, questions: int, a: float, b: float) -> None:
    """Of the mean over new questions, whose rates are a beta distribution."""
    rng, hits, runs = np.random.default_rng(samples), 0, 1000
    for _ in range(runs):
        rates = rng.beta(a, b, (questions, 1))
        low, high = accuracy_interval(rng.random((questions, samples)) < rates)
        hits += low <= a / (a + b) <= high
    assert 0.93 <= hits / runs <= 0.97  # 0.95 +- 3 standard errors of 0.007


def test_the_paired_p_value_is_that_of_all_sign_flips() -> None:
    differences = [0.5, 0.25, -0.125, 0.75, 0.0, 0.5, 0.125]
    before, after = [0.25] * 7, [0.25 + d for d in differences]
    result = paired(before, after)
    mean = np.mean(differences)
    flips = [np.mean(np.multiply(s, differences)) for s in product((1, -1), repeat=7)]
    exact = np.mean(np.abs(flips) >= abs(mean) - 1e-12)
    assert result.mean == pytest.approx(mean)
    assert result.p_value == pytest.approx(exact, abs=0.01)
    assert exact == 0.09375  # scipy 1.17.1: permutation_test(..., permutation_type="samples")
    # The limits are rejected values of the mean: at each, 5 % of the sign flips are as far away.
    for limit in (result.low, result.high):
        shifted = np.subtract(differences, limit)
        flips = [abs(np.dot(s, shifted)) for s in product((1, -1), repeat=7)]
        assert np.mean(np.array(flips) >= abs(shifted.sum()) - 1e-9) == pytest.approx(
            0.05, abs=0.03
        )
    back = paired(after, before)
    assert back.mean == -result.mean and back.p_value == pytest.approx(result.p_value, abs=0.01)
    assert paired([0.0] * 60, [1.0] * 60).p_value == 1 / 10_001  # no flip is as far: never 0


@pytest.mark.parametrize(
    ("differences", "low", "high"),
    [
        ([1] * 4, -1, 1),  # p = 2 / 16: nothing is rejected
        ([-1] * 5, -1, 1),
        # 8 / 32 of [6 + 1, 1] of 8 pairs: mean 6/8, SE sqrt((8/8 - 36/64) / 8) = 0.2339.
        ([1] * 6, 0.75 - 1.96 * 0.2339, 1),
        ([0] * 30, -1.96 * (2 / 32 / 32) ** 0.5, 1.96 * (2 / 32 / 32) ** 0.5),
        ([1] + [0] * 29, 1 / 32 - 1.96 * 0.0538, 1 / 32 + 1.96 * 0.0538),
        ([1], -1, 1),
        ([0.5, -0.5], -1, 1),
    ],
)
def test_the_paired_interval_of_few_and_tied_questions(
    differences: list[float], low: float, high: float
) -> None:
    result = paired([0.0] * len(differences), differences)
    assert (result.low, result.high) == pytest.approx((low, high), abs=2e-4)
    assert (result.low <= 0 <= result.high) == (result.p_value >= 0.05)


def test_the_paired_interval_has_what_the_test_does_not_reject() -> None:
    """And covers 95 % of the time, also where most questions are tied."""
    rng, hits, runs = np.random.default_rng(3), 0, 400
    for _ in range(runs):
        size, tied = int(rng.integers(5, 120)), rng.random()
        signs = rng.choice([-1, 0, 1], size, p=[0.4 * (1 - tied), tied, 0.6 * (1 - tied)])
        step = rng.choice([0.25, 0.5, 1.0])
        result = paired([0.0] * size, signs * step)
        assert (result.low <= 0 <= result.high) == (result.p_value >= 0.05)
        assert result.low <= result.mean <= result.high and result.low < result.high
        hits += result.low <= 0.2 * (1 - tied) * step <= result.high
    assert 0.93 <= hits / runs <= 0.985


def test_a_majority_by_hand() -> None:
    # 2 of 3 say a (right); a tie of a (right) and b (wrong); nobody says anything; b b a.
    answers = [["a", "a", "b"], ["a", "b", None], [None, None, None], ["b", "b", "a"]]
    correct = [[1, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 1]]
    assert majority(answers, correct, 3) == pytest.approx((1 + 1 / 2 + 0 + 0) / 4)
    assert majority(answers, correct, 1) == pytest.approx(np.mean(correct))
    # Blocks of 2 of 3: the first two samples alone: a; tie; none; b.
    assert majority(answers, correct, 2) == pytest.approx((1 + 1 / 2 + 0 + 0) / 4)


def test_right_answers_count_as_one_answer() -> None:
    # Two spellings of the right answer against two equal wrong ones: a tie, not a defeat.
    assert majority([["1/2", "0.5", "3", "3"]], [[1, 1, 0, 0]], 4) == 0.5
    assert majority([["1/2", "0.5", "3", "4"]], [[1, 1, 0, 0]], 4) == 1.0
    assert majority([["1/2", "3", "4", "4"]], [[1, 0, 0, 0]], 4) == 0.0
    assert majority([[None]], [[1]], 1) == 1.0  # a verifier needs no answer
    assert majority([["b", "a"]], [[0, 1]], 2) == majority([["a", "b"]], [[1, 0]], 2) == 0.5
