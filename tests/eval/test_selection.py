"""Picking a checkpoint: by a validation split, or on a test set with a mark."""

import shutil
from pathlib import Path

import pytest
from evaluated import changing, write_checkpoint

from eval import EvaluationError
from eval.checkpoints import from_manifest
from eval.report.data import collect, summary
from eval.report.tables import chosen, headline
from eval.selection import main, pick_checkpoint
from prompt_aug.base.files import read_lines, write_json, write_lines
from prompt_aug.questions import VALIDATION, Question, make_question, write_parquet
from recipe.run.folder import RunFolder


def questions(count: int, split: str, text: str | None = None) -> list[Question]:
    texts = [f"{text or split} {i}?" for i in range(count)]
    return [make_question(text=t, answers=("1",), source="toy", split=split) for t in texts]


@pytest.fixture
def run(tmp_path: Path) -> Path:
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


def test_a_validation_split_picks_and_is_no_benchmark(run: Path) -> None:
    assert [row.total.accuracy for row in collect(run).rows] == [0.25, 0.5, 0.625, 0.625]
    record = pick_checkpoint(run, "held")
    assert (record.step, record.kind, record.reason) == (10, VALIDATION, "")
    data = collect(run)
    assert data.result.step == 10 and list(data.result.benchmarks) == ["math500"]
    assert [row.total.accuracy for row in data.rows] == [0.25, 0.25, 0.5, 0.75]
    assert "step 10, picked by its 75.0 % on held" in chosen(data)
    assert ("accuracy, after step 10", "25.0 ±25.0 %") in headline(data, summary(data))
    write_checkpoint(run / "eval" / "s", 30, {"held": [[1]] * 4, "math500": [[1]] * 4})
    with pytest.raises(EvaluationError, match=r"eval\.selection"):  # the scores have changed
        collect(run)


def test_scores_of_other_weights_than_the_exported_ones_are_left_out(run: Path) -> None:
    """A step that was rolled back and exported again; the export of step 30 is deleted."""
    for step, files in ((10, {"config.json": "new"}), (20, {"config.json": "a"})):
        write_json(RunFolder(run).manifest(step), {"step": step, "files": files})
    with changing(run / "eval" / "s" / "step_20" / "scores.json") as record:
        record["identity"] = from_manifest(RunFolder(run).exported(20), 20).identity
    data = collect(run)
    assert [row.step for row in data.rows] == [0, 20, 30]
    assert [note for note in data.notes if "s/step_10" in note]
    assert pick_checkpoint(run, "held").step == 20


def test_scores_under_different_settings_pick_nothing(run: Path) -> None:
    with changing(run / "eval" / "s" / "step_20" / "scores.json") as record:
        record["benchmarks"]["held"]["settings"]["extraction"] = "strict"
    with pytest.raises(EvaluationError, match=r"differently at the steps \[20\] than at step 30"):
        pick_checkpoint(run, "held")
    notes = collect(run).notes
    assert "held was asked differently at step 20 than at the last one" in notes
    shutil.rmtree(run / "eval" / "s" / "step_30")
    write_checkpoint(run / "eval" / "s", 30, {"math500": [[1]] * 4})
    with pytest.raises(EvaluationError, match="step 30 is not evaluated on held"):
        pick_checkpoint(run, "held")
    assert not list(run.rglob("selection.json"))


def test_the_same_questions_in_another_order_give_no_gain(run: Path) -> None:
    for step, order in ((0, "a"), (10, "b"), (20, "a")):
        with changing(run / "eval" / "s" / f"step_{step}" / "scores.json") as record:
            record["benchmarks"]["held"]["order"] = order
    data = collect(run)
    assert [row.gain is None for row in data.rows] == [True, True, False, True]
    assert "held was asked differently of the start model: no gain is given" in data.notes


def test_a_test_set_needs_an_option_and_is_marked(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run), "--benchmark", "math500"]) == 1
    assert "--on-test-set" in capsys.readouterr().err
    assert not list(run.rglob("selection.json"))
    assert main([str(run), "--benchmark", "math500", "--on-test-set"]) == 0
    assert "warning: picked on a test set" in capsys.readouterr().out
    data = collect(run)
    assert data.result.step == 30 and "math500" in data.result.benchmarks
    assert chosen(data).startswith("PICKED ON A TEST SET: step 30")
    assert summary(data)["selection"]["kind"] == "test"


def test_other_questions_than_a_validation_split_are_rejected(run: Path, tmp_path: Path) -> None:
    trained, held = RunFolder(run).data("train"), tmp_path / "held.parquet"
    write_parquet([*questions(9, "train"), *questions(1, VALIDATION)], trained)
    with pytest.raises(EvaluationError, match="1 of its questions were trained on"):
        pick_checkpoint(run, "held")
    trained.unlink()
    with pytest.raises(EvaluationError, match="lists the training questions, is missing"):
        pick_checkpoint(run, "held")
    write_parquet(questions(4, "test", VALIDATION), held)
    with pytest.raises(EvaluationError, match="not of the split 'validation'"):
        pick_checkpoint(run, "held")
    held.unlink()
    with pytest.raises(EvaluationError, match="not an existing parquet file"):
        pick_checkpoint(run, "held")
