"""Two evaluated models over the same questions, from verdicts by hand."""

from pathlib import Path

import pytest
from evaluated import changing, write_checkpoint

from eval import EvaluationError
from eval.compare import compare, main, read_side
from eval.metrics import paired
from prompt_aug.base.files import read_json, read_lines, write_json, write_lines
from prompt_aug.questions import VALIDATION
from recipe.run.folder import EvaluationFolder

A = {"x": [[1, 0], [0, 0], [1, 1], [0, 0]], "y": [[1], [1]]}
B = {"x": [[1, 1], [0, 0], [1, 0], [1, 1]], "y": [[1], [0]], "z": [[1]]}


@pytest.fixture
def sides(tmp_path: Path) -> tuple[Path, Path]:
    return (
        write_checkpoint(tmp_path / "one" / "s", 1, A).root,
        write_checkpoint(tmp_path / "two" / "s", 2, B).root,
    )


def test_differences_by_hand(sides: tuple[Path, Path]) -> None:
    """x: A 1/2, 0, 1, 0; B 1, 0, 1/2, 1. Even questions have level 0. z is in B alone."""
    result = compare(*(read_side(side, None) for side in sides))
    (total,) = result["All questions"]
    means_a, means_b = [0.5, 0, 1, 0, 1, 1], [1, 0, 0.5, 1, 1, 0]
    assert total.a.accuracy == pytest.approx(3.5 / 6) and total.b.accuracy == pytest.approx(3.5 / 6)
    assert total.difference.mean == 0 and (total.better, total.worse) == (2, 2)
    assert total.difference.standard_error == paired(means_a, means_b).standard_error
    gains = {row.group: row.difference.mean for row in result["Benchmarks"]}
    assert gains == {"x": 0.25, "y": -0.5}
    levels = {row.group: row.difference.mean for row in result["By level"]}
    assert levels == {"x, level 0": 0, "x, level 1": 0.5, "y, level 0": 0, "y, level 1": -1}


def test_other_questions_graders_and_the_same_folder_are_rejected(
    tmp_path: Path, sides: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_checkpoint(tmp_path / "three" / "s", 3, {"x": A["x"]}).root
    with changing(other / "scores.json") as scores:
        scores["benchmarks"]["x"]["grader"] = "old"
    with pytest.raises(EvaluationError, match=r"eval\.score"):
        compare(read_side(sides[0], None), read_side(other, None))
    a, b = (read_side(side, None) for side in sides)
    b.benchmarks["x"]["settings"]["sha256"] = "changed"
    with pytest.raises(EvaluationError, match=r"x: the two .* .sha256"):
        compare(a, b)
    b.benchmarks["x"]["settings"] |= {"sha256": "x", "extraction": "strict"}
    with pytest.raises(EvaluationError, match=r"x: the two .* .extraction"):
        compare(a, b)
    assert main([str(sides[0]), str(sides[0])]) == 2
    assert main([str(tmp_path / "one"), str(sides[1])]) == 1
    assert "step_1" in capsys.readouterr().err  # the evaluation that it holds


@pytest.mark.parametrize("change", ["order", "count"])
def test_an_interrupted_sweep_is_no_comparison(
    sides: tuple[Path, Path], capsys: pytest.CaptureFixture[str], change: str
) -> None:
    """It has written the new questions, and the scores are those of the old ones."""
    files = EvaluationFolder(sides[1]).benchmark("x")
    questions = read_lines(files.questions)
    assert main([*map(str, sides)]) == 0
    changed = {"order": questions[::-1], "count": questions[1:]}
    write_lines(files.questions, changed[change])
    assert main([*map(str, sides)]) == 1
    assert "its sweep is not finished. Run eval.sweep again." in capsys.readouterr().err


def test_questions_that_picked_a_checkpoint_are_left_out(
    sides: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    record = {"benchmark": "y", "kind": VALIDATION, "step": 2, "reason": "", "scores": {"2": 1.0}}
    write_json(EvaluationFolder(sides[1]).selection, record)
    assert main([*map(str, sides)]) == 0
    output = capsys.readouterr().out
    assert "left out, because a checkpoint was picked by it: y" in output
    (total,) = compare(*(read_side(side, None) for side in sides))["All questions"]
    assert total.difference.questions == 4 and total.difference.mean == 0.25
    for side in sides:  # the only benchmark in common stays, with a note
        with changing(side / "scores.json") as scores:
            scores["benchmarks"] = {"y": scores["benchmarks"]["y"]}
    assert main([*map(str, sides)]) == 0
    output = capsys.readouterr().out
    assert "picked by y: its score there is too high" in output and "only in" not in output


def test_benchmarks_of_one_side_and_other_settings_are_noted(
    sides: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    with changing(sides[0] / "scores.json") as scores:
        scores["benchmarks"] = {"x": scores["benchmarks"]["x"]}
        scores["benchmarks"]["x"]["settings"]["shots"] = 4
    assert main([*map(str, sides)]) == 0
    output = capsys.readouterr().out
    assert "note: only in B: y, z\n" in output and output.count("only in") == 1
    assert "note: x: settings differ: shots: 4 -> None\n" in output
    assert "Benchmarks" not in output and output.splitlines()[3].split()[:2] == ["x", "4"]


def test_a_run_stands_for_its_result_and_one_model_may_have_two_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "grpo"
    for step in (10, 30, 20):
        write_checkpoint(run / "eval" / "s", step, {"x": A["x"]})
    (run / "config.yaml").write_text("{}")
    assert read_side(run, None).name == "grpo/s/step_30"
    other = write_checkpoint(run / "eval" / "t", 30, {"x": B["x"]}).root
    assert main([str(run), str(other), "--settings", "s"]) == 0
    assert "A: grpo/s/step_30  B: grpo/t/step_30" in capsys.readouterr().out
    assert main([str(run), str(other), "--settings", "none"]) == 1


def test_the_page_holds_the_answers_of_both(
    tmp_path: Path, sides: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*map(str, sides), "--out", str(tmp_path / "page")]) == 0
    assert "?differ=yes#answers" in capsys.readouterr().out
    record = read_json(tmp_path / "page" / "comparison.json")
    assert [row["group"] for row in record["groups"]["Benchmarks"]] == ["x", "y"]
    page = (tmp_path / "page" / "index.html").read_text()
    assert page.count("<option value=") > 2
    for name in (record["a"], record["b"]):
        assert f">{name}</option>" in page
