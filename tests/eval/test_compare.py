"""Two evaluated models over the same questions, and the pick of a checkpoint: verdicts by hand."""

import re
from pathlib import Path

import pytest
from fake_engine import changing, write_checkpoint

from eval.ask.checkpoints import from_manifest
from eval.scores.metrics import paired
from eval.show.compare import compare, main, read_side
from eval.show.data import collect, summary
from eval.show.selection import main as select
from eval.show.selection import pick_checkpoint
from eval.show.tables import chosen, headline
from prompt_aug.base.errors import UserError
from prompt_aug.base.files import read_json, read_lines, write_json, write_lines
from prompt_aug.questions import VALIDATION, Question, make_question, write_parquet
from recipe.run.folder import EvaluationFolder, RunFolder

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
    tmp_path: Path, sides: tuple[Path, Path]
) -> None:
    second = write_checkpoint(tmp_path / "three" / "s", 3, {"x": A["x"]}).root
    with changing(second / "scores.json") as scores:
        scores["benchmarks"]["x"]["grader"] = "old"
    with pytest.raises(UserError, match=r"eval\.score"):
        compare(read_side(sides[0], None), read_side(second, None))
    a, b = (read_side(side, None) for side in sides)
    b.benchmarks["x"]["settings"]["sha256"] = "changed"
    with pytest.raises(UserError, match=r"x: the two .* .sha256"):
        compare(a, b)
    b.benchmarks["x"]["settings"] |= {"sha256": "x", "extraction": "strict"}
    with pytest.raises(UserError, match=r"x: the two .* .extraction"):
        compare(a, b)
    assert main([str(sides[0]), str(sides[0])]) == 2


def test_an_interrupted_sweep_is_no_comparison(
    sides: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """It has written the new questions, and the scores are those of the old ones."""
    files = EvaluationFolder(sides[1]).benchmark("x")
    questions = read_lines(files.questions)
    assert main([*map(str, sides)]) == 0
    write_lines(files.questions, questions[::-1])
    assert main([*map(str, sides)]) == 1
    assert "its sweep is not finished" in capsys.readouterr().err


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


def test_the_page_holds_the_answers_of_both(
    tmp_path: Path, sides: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*map(str, sides), "--out", str(tmp_path / "page")]) == 0
    assert "?differ=yes#answers" in capsys.readouterr().out
    record = read_json(tmp_path / "page" / "comparison.json")
    assert [row["group"] for row in record["groups"]["Benchmarks"]] == ["x", "y"]
    page = (tmp_path / "page" / "index.html").read_text()
    for name in (record["a"], record["b"]):
        assert f">{name}</option>" in page
    for place in re.findall('href="#([^"]+)"', page):
        assert f'id="{place}"' in page
    assert "<title>Comparison: " in page


def questions(count: int, split: str, text: str | None = None) -> list[Question]:
    texts = [f"{text or split} {i}?" for i in range(count)]
    return [make_question(text=t, answers=("1",), source="toy", split=split) for t in texts]


@pytest.fixture
def validated(tmp_path: Path) -> Path:
    """`held` is best at steps 10 and 20, the benchmark `math500` at step 30."""
    folder, held = tmp_path / "run", questions(4, VALIDATION)
    write_parquet(held, tmp_path / "held.parquet")
    write_parquet(questions(9, "train"), RunFolder(folder).data("train"))
    right = {0: (1, 1), 10: (3, 1), 20: (3, 2), 30: (2, 3)}
    for step, counts in right.items():
        rows = [[[int(i < count)] for i in range(4)] for count in counts]
        outcomes = dict(zip(("held", "math500"), rows, strict=True))
        scored = write_checkpoint(folder / "eval" / "s", step, outcomes)
        files = scored.benchmark("held")
        lines = zip(read_lines(files.questions), held, strict=True)
        write_lines(files.questions, [{**line, "uid": q.uid} for line, q in lines])
        with changing(files.scores) as entry:
            entry["path"] = str(tmp_path / "held.parquet")
    return folder


def test_a_validation_split_picks_and_is_no_benchmark(validated: Path) -> None:
    assert [row.total.accuracy for row in collect(validated).rows] == [0.25, 0.5, 0.625, 0.625]
    record = pick_checkpoint(validated, "held")
    assert (record.step, record.kind, record.reason) == (10, VALIDATION, "")
    data = collect(validated)
    assert data.result.step == 10 and list(data.result.benchmarks) == ["math500"]
    assert [row.total.accuracy for row in data.rows] == [0.25, 0.25, 0.5, 0.75]
    assert "step 10, picked by its 75.0 % on held" in chosen(data)
    assert ("accuracy, after step 10", "25.0 ±25.0 %") in headline(data, summary(data))
    write_checkpoint(validated / "eval" / "s", 30, {"held": [[1]] * 4, "math500": [[1]] * 4})
    with pytest.raises(UserError, match=r"eval\.selection"):  # the scores have changed
        collect(validated)


def test_scores_of_other_weights_than_the_exported_ones_are_left_out(validated: Path) -> None:
    """A step that was rolled back and exported again; the export of step 30 is deleted."""
    for step, files in ((10, {"config.json": "new"}), (20, {"config.json": "a"})):
        write_json(RunFolder(validated).manifest(step), {"step": step, "files": files})
    with changing(validated / "eval" / "s" / "step_20" / "scores.json") as record:
        record["identity"] = from_manifest(RunFolder(validated).exported(20), 20).identity
    data = collect(validated)
    assert [row.step for row in data.rows] == [0, 20, 30]
    assert [note for note in data.notes if "s/step_10" in note]
    assert pick_checkpoint(validated, "held").step == 20


def test_scores_under_different_settings_pick_nothing(validated: Path) -> None:
    with changing(validated / "eval" / "s" / "step_20" / "scores.json") as record:
        record["benchmarks"]["held"]["settings"]["extraction"] = "strict"
    with pytest.raises(UserError, match=r"differently at the steps \[20\] than at step 30"):
        pick_checkpoint(validated, "held")
    notes = collect(validated).notes
    assert "held was asked differently at step 20 than at the last one" in notes


def test_the_same_questions_in_another_order_give_no_gain(validated: Path) -> None:
    for step, order in ((0, "a"), (10, "b"), (20, "a")):
        with changing(validated / "eval" / "s" / f"step_{step}" / "scores.json") as record:
            record["benchmarks"]["held"]["order"] = order
    data = collect(validated)
    assert [row.gain is None for row in data.rows] == [True, True, False, True]
    assert "held was asked differently of the start model: no gain is given" in data.notes


def test_a_test_set_needs_an_option_and_is_marked(
    validated: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert select([str(validated), "--benchmark", "math500"]) == 1
    assert "--on-test-set" in capsys.readouterr().err
    assert not list(validated.rglob("selection.json"))
    assert select([str(validated), "--benchmark", "math500", "--on-test-set"]) == 0
    assert "warning: picked on a test set" in capsys.readouterr().out
    data = collect(validated)
    assert data.result.step == 30 and "math500" in data.result.benchmarks
    assert chosen(data).startswith("PICKED ON A TEST SET: step 30")
    assert summary(data)["selection"]["kind"] == "test"


def test_other_questions_than_a_validation_split_are_rejected(
    validated: Path, tmp_path: Path
) -> None:
    trained, held = RunFolder(validated).data("train"), tmp_path / "held.parquet"
    write_parquet([*questions(9, "train"), *questions(1, VALIDATION)], trained)
    with pytest.raises(UserError, match="1 of its questions were trained on"):
        pick_checkpoint(validated, "held")
    trained.unlink()
    with pytest.raises(UserError, match="lists the training questions, is missing"):
        pick_checkpoint(validated, "held")
    write_parquet(questions(4, "test", VALIDATION), held)
    with pytest.raises(UserError, match="not of the split 'validation'"):
        pick_checkpoint(validated, "held")
