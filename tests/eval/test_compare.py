"""Two evaluated models over the same questions, and the pick of a checkpoint: verdicts by hand.

Arms of several runs: hand-computed tables, coverage in simulations, laws, what is rejected.
"""

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_engine import changing, write_checkpoint

from eval.ask.checkpoints import from_manifest
from eval.scores.metrics import at_k, crossed, holm, no_signal, paired
from eval.selection import main as select
from eval.selection import pick_checkpoint
from eval.show.arms import (
    Compared,
    Contrast,
    Gate,
    compare_arms,
    described,
    each_run,
    gate_text,
    lines_of,
)
from eval.show.compare import compare, main, read_side
from eval.show.data import collect, scored_steps, summary
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


def test_a_pick_on_the_only_benchmark_is_marked(validated: Path) -> None:
    for step in (0, 10, 20, 30):
        with changing(validated / "eval" / "s" / f"step_{step}" / "scores.json") as record:
            del record["benchmarks"]["math500"]
    pick_checkpoint(validated, "held")
    data = collect(validated)
    numbers = summary(data)
    shown = (chosen(data), str(headline(data, numbers)), str(numbers["notes"]))
    assert all("too high" in text for text in shown)


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


# ------------------------------------------------------------------------- arms


def test_a_crossed_table_by_hand() -> None:
    """Row means 3 and 7, column means 2, 5 and 8, mean 5; residuals 1, -1, 0 and -1, 1, 0.

    MS: seeds 3 x 8 / 1 = 24, questions 2 x 18 / 2 = 18, rest 4 / 2 = 2. Var = (24 + 18 - 2) / 6;
    degrees of freedom 40^2 / (24^2 / 1 + 18^2 / 2 + 2^2 / 2) = 1600 / 740.
    """
    result = crossed([[1, 2, 6], [3, 8, 10]])
    assert result.mean == 5 and result.parts == pytest.approx((22 / 3, 8, 2))
    assert result.error() == pytest.approx(((40 / 6) ** 0.5, 1600 / 740))
    # scipy 1.17.1: t.ppf(0.975, 1600 / 740), and twice t.sf(5 / sqrt(40 / 6), 1600 / 740).
    half = 4.007738 * (40 / 6) ** 0.5
    assert (result.low, result.high) == pytest.approx((5 - half, 5 + half), abs=1e-4)
    assert result.p_value == pytest.approx(0.182793, abs=1e-6)
    # With 4 seeds: MS 24, 2 + 4 x 8 = 34 and 2, so Var = 56 / 12.
    assert result.error(4)[0] == pytest.approx((56 / 12) ** 0.5)


def draw(rng: np.random.Generator, seeds: int, questions: int, sd: Sequence[float]) -> np.ndarray:
    return (
        rng.normal(0, sd[0], (seeds, 1))
        + rng.normal(0, sd[1], questions)
        + rng.normal(0, sd[2], (seeds, questions))
    )


@pytest.mark.parametrize(
    ("seeds", "sd"), [(5, (0.02, 0.1, 0.13)), (10, (0.02, 0.1, 0.13)), (5, (0.008, 0.07, 0.13))]
)
def test_the_crossed_interval_covers_new_seeds_and_new_questions(
    seeds: int, sd: tuple[float, float, float]
) -> None:
    rng, hits, forgetful, runs = np.random.default_rng(seeds), 0, 0, 1000
    for _ in range(runs):
        table = draw(rng, seeds, 185, sd)
        result = crossed(table)
        hits += result.low <= 0 <= result.high
        means = table.mean(axis=0)  # negative control: as if the seeds were all there are
        forgetful += abs(means.mean()) <= 1.96 * means.std(ddof=1) / 185**0.5
    assert 0.925 <= hits / runs <= 0.975
    assert forgetful / runs < min(0.93, hits / runs)


def test_laws_of_the_crossed_interval() -> None:
    rng = np.random.default_rng(1)
    table = draw(rng, 4, 30, (0.05, 0.1, 0.2))
    result = crossed(table)
    moved = crossed(table[rng.permutation(4)][:, rng.permutation(30)])
    assert (moved.low, moved.high, moved.p_value) == pytest.approx(
        (result.low, result.high, result.p_value)
    )
    back, shifted = crossed(-table), crossed(table + 1)
    assert (back.low, back.high) == pytest.approx((-result.high, -result.low))
    assert (shifted.low, shifted.high) == pytest.approx((result.low + 1, result.high + 1))
    assert (result.low <= 0 <= result.high) == (result.p_value >= 0.05)
    assert result.detectable(40) < result.detectable(8) < result.detectable()
    for wrong in ([[1.0, 2.0]], [[1.0], [2.0]], [1.0, 2.0]):
        with pytest.raises(ValueError, match="two seeds"):
            crossed(wrong)
    tied = crossed(np.zeros((3, 30)))
    assert tied.low < 0 < tied.high and tied.p_value == 1


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.5]) == [1.0, 1.0] and holm([]) == []


def test_pass_at_k_and_the_part_that_samples_make() -> None:
    values, noise = at_k([0, 1, 4], 4, 1)
    assert values.tolist() == [0, 0.25, 1] and noise == pytest.approx([0, 1 / 16, 0])
    rng, rate = np.random.default_rng(0), 0.2
    right = rng.binomial(16, rate, 20_000)
    values, noise = at_k(right.tolist(), 16, 4)
    assert values.mean() == pytest.approx(1 - 0.8**4, abs=0.005)
    assert noise.mean() == pytest.approx(values.var(), rel=0.15)  # the jackknife's is a bit larger
    assert np.isnan(at_k([1], 4, 4)[1]).all()


def test_groups_without_a_signal_by_hand() -> None:
    """2 of 4 right under one wording, 4 of 4 under the other; groups of 2 + 2."""
    # Two right of 4 drawn: 1 / 6, times 1. Two wrong: 1 / 6, times 0.
    assert no_signal([[2], [4]], [4, 4], 2) == pytest.approx([1 / 6])
    assert no_signal([[2]], [4], 2) == pytest.approx([1 / 3])
    assert no_signal([[0, 4], [0, 4]], [4, 4], 2).tolist() == [1, 1]
    # 4 of 8 right under the other wording: all 2 right 1 / 6 x 3 / 14, all wrong the same.
    assert no_signal([[2], [4]], [4, 8], 2) == pytest.approx([1 / 14])


# ------------------------------------------------------------------------- lines


def line(arm: str, seed: int, right: list[int], **more: Any) -> dict[str, Any]:
    base = {"step": 40, "set": "x", "set_sha": "a", "grader": "g", "decode": {}, "n": 8}
    return {**base, "arm": arm, "seed": seed, "right": right, **more}


def two_arms(gain: int = 2, **more: Any) -> list[dict[str, Any]]:
    rng = np.random.default_rng(5)
    lines = []
    for seed in range(5):
        right = rng.integers(1, 4, 40)
        lines.append(line("base", seed, right.tolist(), **more))
        better = right + gain + rng.integers(0, 2, 40)
        lines.append(line("new", seed, better.tolist(), **more))
    return lines


CONTRAST = Contrast(arm="new", baseline="base", set="x", step=40)


def test_a_contrast_is_paired_by_seed_and_question() -> None:
    lines = [line("a", 0, [1, 2]), line("a", 1, [3, 8]), line("b", 1, [0, 0]), line("b", 0, [0, 0])]
    result = compare_arms(
        [*lines, line("a", 7, [8, 8])], CONTRAST.model_copy(update={"arm": "a", "baseline": "b"})
    )
    assert result.result.mean == pytest.approx(3.5 / 8) and result.seeds == [0, 1]  # not 7
    assert result.by_seed == [(1.5 / 8, 0), (5.5 / 8, 0)]
    assert result.result.parts == pytest.approx(np.array((6, 2.5, 4)) / 64)
    assert np.isnan(result.correlation) and np.isnan(result.entropy).all()
    # p (1 - p) / 7 of 1, 2, 3 and 8 of 8.
    assert result.sampling == pytest.approx((7 + 12 + 15) / 64 / 7 / 4)


def test_verdicts() -> None:
    assert compare_arms(two_arms(), CONTRAST).verdict == "seen"
    swapped = CONTRAST.model_copy(update={"arm": "base", "baseline": "new"})
    assert compare_arms(two_arms(), swapped).verdict == "the opposite"
    none = [*two_arms(0)[::2], *({**x, "arm": "new"} for x in two_arms(0)[::2])]
    assert compare_arms(none, CONTRAST).verdict == "undecided"
    known = CONTRAST.model_copy(update={"expected": 20.0})
    assert compare_arms(none, known).verdict == "not seen"
    # Only pass@1 rises: the gain at k = 8 is below it, so it is not the claim's.
    wide = CONTRAST.model_copy(update={"k": 7, "not_below_k": 1})
    result = compare_arms(two_arms(1), wide)
    assert result.result.low > 0 and result.lead < 0 and result.verdict == "undecided"
    result = compare_arms(two_arms(1), wide.model_copy(update={"expected": 90.0}))
    assert 100 * result.result.high < 90 and result.verdict == "undecided"


def test_seeds_of_several_start_models_need_the_verdict_of_the_most_frequent_alone() -> None:
    known = CONTRAST.model_copy(update={"expected": 20.0})

    def compared(starts: str, lines: Sequence[dict[str, Any]] | None = None) -> Compared:
        lines = [x | {"start_sha": starts[x["seed"]]} for x in lines or two_arms()]
        return compare_arms(lines, known)

    both = compared("AAAAB")
    assert both.seeds == [0, 1, 2, 3, 4] and both.verdict == "seen" and both.one_starts
    assert [(x.seeds, x.one_starts) for x in both.one_starts] == [([0, 1, 2, 3], [])]
    assert described([both], "").count("points, 95 % interval") == 2
    equal = [x | {"arm": arm} for x in two_arms()[::2] for arm in ("base", "new")]
    none = compare_arms(equal, known)
    assert none.verdict == "not seen"
    assert replace(both, one_starts=[none]).verdict == "undecided"
    assert replace(none, one_starts=[both]).verdict == "undecided"
    assert replace(none, one_starts=[none]).verdict == "not seen"
    # Of two equally frequent ones both must have it, whichever comes first.
    for starts in ("AABBC", "BBAAC"):
        assert [x.seeds for x in compared(starts).one_starts or ()] == [[0, 1], [2, 3]]
    two, one = replace(none, one_starts=[none, both]), replace(none, one_starts=[both, none])
    assert two.verdict == one.verdict == "undecided"
    # Each seed from a model of its own: none can have a verdict alone.
    own = compared("ABCDE")
    assert own.one_starts is None and own.verdict == "undecided"
    assert "no verdict" in described([own], "")


def test_a_drop_is_less_the_mean_of_other_sets() -> None:
    lines = [
        line(arm, seed, right, set=name)
        for arm, drop in (("new", 1), ("base", 3))
        for seed in (0, 1)
        for name, right in (("x", [6, 5]), ("y", [6 - drop, 5]), ("z", [6 - drop, 5 - drop]))
    ]
    contrast = CONTRAST.model_copy(update={"drop": ("y", "z")})
    # Drops: 1 and 1/2 of 8 against 3 and 3/2.
    assert compare_arms(lines, contrast).result.mean == pytest.approx((0.75 - 2.25) / 8)


def test_a_drop_from_the_best_to_the_last_three_steps() -> None:
    """Right of 8, at six steps: one arm falls, the other rises."""
    curves = {"new": (2, 5, 6, 5, 1, 1), "base": (1, 1, 2, 3, 3, 4)}
    lines = [
        line(arm, seed, [right] * 20, step=10 * place, train={"entropy": [0, right << seed]})
        for arm, curve in curves.items()
        for seed in (0, 1)
        for place, right in enumerate(curve, start=1)
    ]
    contrast = CONTRAST.model_copy(update={"drop": 10, "step": 60, "expected": 20.0})
    result = compare_arms(lines, contrast)
    # Best windows: 5, 6, 5 and the last one. 16 / 3 - 7 / 3 = 3 and 0. Last means: 7 / 3, 10 / 3.
    assert result.means == pytest.approx((3 / 8, 0))
    little = contrast.model_copy(update={"expected": 38.0})  # one falls by 37.5: no setting for it
    assert compare_arms(lines, little).verdict == "undecided"
    assert result.lead == pytest.approx(1 / 8) and result.verdict == "seen"
    one = each_run(lines, "")
    assert "new_0, x: drop 37.50" in one and "base_1, x: drop 0.00" in one
    assert "new_0, x: drop" not in each_run(lines, "", {"new_0"})  # its last means are others
    # At the last step 1 - 4 and 2 - 8: -4.5 +- t(0.975, 1) x 1.5.
    assert result.entropies == (1.5, 6)
    assert result.entropy == pytest.approx((-4.5 - 12.706 * 1.5, -4.5 + 12.706 * 1.5), abs=1e-3)
    low = [x | {"right": [0] * 20} if x["arm"] == "base" else x for x in lines]
    result = compare_arms(low, contrast)  # no drop, because it never rose
    assert result.result.low > 0 and result.verdict == "undecided"


@pytest.mark.parametrize("last", [(2, 2, 2, 1, 1, 1), (1, 1, 1, 0, 0, 0)])
def test_ties_of_a_drop_are_ties_also_in_binary(last: tuple[int, ...]) -> None:
    """One of 20 less is a drop of 5 points, which is not below 5; equal last means are equal."""
    curves = {"new": (*last[:3], *last[3:]), "base": (last[-1],) * 6}
    lines = [
        line(arm, seed, [right] * 60, step=10 * place, n=20)
        for arm, curve in curves.items()
        for seed in (0, 1)
        for place, right in enumerate(curve, start=1)
    ]
    contrast = CONTRAST.model_copy(update={"drop": 10, "step": 60, "expected": 5.0})
    assert compare_arms(lines, contrast).verdict == "seen"
    assert each_run(lines[::-1], "") == each_run(lines, "")  # in the order of the steps


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grader": "old"}, "evaluated differently: grader"),
        ({"set_sha": "b"}, "evaluated differently: set_sha"),
        ({"n": 16}, "evaluated differently: n"),
        ({"decode": {"temperature": 0.5}}, "evaluated differently: temperature"),
        ({"start_sha": "other"}, r"seed 4 .* \['start_sha'\]"),
        ({"cpu": "other"}, r"seed 4 .* \['cpu'\]"),
        ({"dtype": "float32"}, r"seed 4 .* \['dtype'\]"),
        ({"right": [1] * 39}, r"as many in all: \[39, 40\]"),
        ({"decode": {"dtype": "float32"}}, "evaluated differently: dtype"),
        ({"seed": 3}, "two runs of arm new have recipe.seed=3"),
    ],
)
def test_what_cannot_be_compared(change: dict[str, Any], message: str) -> None:
    lines = two_arms(start_sha="one", decode={"temperature": 1.0, "dtype": "bfloat16"})
    lines[-1] |= change
    with pytest.raises(UserError, match=message):
        compare_arms(lines, CONTRAST)


def test_lines_of_an_older_version_have_fewer_keys_of_decoding() -> None:
    lines = two_arms(decode={"temperature": 1.0})
    lines[0]["decode"] = {"temperature": 1.0, "style": "raw"}
    assert compare_arms(lines, CONTRAST).verdict == "seen"
    lines[-1]["decode"] = {"temperature": 1.0, "style": "chat"}
    with pytest.raises(UserError, match="style: "):
        compare_arms(lines, CONTRAST)


def test_seeds_may_have_other_start_models_and_precisions_each() -> None:
    lines = two_arms(start_sha="one", decode={"dtype": "bfloat16"})
    for x in lines:
        if x["seed"] == 4:
            x |= {"start_sha": "two", "decode": {"dtype": "float32"}}
    assert compare_arms(lines, CONTRAST).seeds == compare_arms(two_arms(), CONTRAST).seeds
    with pytest.raises(UserError, match="evaluated differently: dtype"):
        compare_arms([x | {"start_sha": "one"} for x in lines], CONTRAST)


def test_one_seed_and_too_few_samples_are_rejected() -> None:
    with pytest.raises(UserError, match=r"recipe\.seed"):
        compare_arms(two_arms()[:2], CONTRAST)
    with pytest.raises(UserError, match="only 8 samples"):
        compare_arms(two_arms(), CONTRAST.model_copy(update={"k": 32}))


def test_a_gate_over_seeds() -> None:
    lines = [
        line("base", seed, right, set=name, n=24)
        for seed in (0, 1)
        for name, right in (("q0", [0, 12]), ("q1", [24, 12]), ("q2", [0, 12]), ("q3", [0, 12]))
    ]
    text = gate_text(lines, Gate(arm="base", step=40, sets=("q0", "q1", "q2", "q3")))
    assert "8 of q0: 50." in text and "2 of each" in text
    with pytest.raises(UserError, match=r"recipe\.seed"):
        gate_text(lines, Gate(arm="base", step=0, sets=("q0", "q1")))


# ------------------------------------------------------------------------- command


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, list[Path]]:
    rng, made = np.random.default_rng(0), {}
    for arm, rate in (("grpo", 0.3), ("cw", 0.6)):
        for seed in range(3):
            run = tmp_path / f"{arm}_{seed}"
            write_json(RunFolder(run).config, {"recipe": {"seed": seed}})
            for step in (0, 40):
                rows = rng.random((20, 4)) < (rate if step else 0.1)
                write_checkpoint(run / "eval" / "s", step, {"x": rows.astype(int).tolist()})
            made.setdefault(arm, []).append(run)
    return made


def test_run_folders_and_their_lines_give_the_same(
    runs: dict[str, list[Path]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = [text for arm, paths in runs.items() for text in ("--arm", arm, *map(str, paths))]
    assert main([*arms, "--k", "1", "2"]) == 0
    printed = capsys.readouterr().out
    assert "cw - grpo: pass@1, x, step 40" in printed and "pass@2" in printed
    assert (
        "3 seeds x 20 questions" in printed and "here" not in printed
    )  # no verdict without a rule
    lines = [
        x
        for a, paths in runs.items()
        for run in paths
        for x in lines_of(a, run, scored_steps(run, None))
    ]
    write_lines(tmp_path / "lines.jsonl", lines)
    read = ["--lines", str(tmp_path / "lines.jsonl"), "--arm", "grpo", "--arm", "cw"]
    assert main([*read, "--k", "1", "2"]) == 0
    assert capsys.readouterr().out == printed
    assert main([*read, "--step", "0"]) == 0
    assert "step 0" in capsys.readouterr().out
    for wrong in (
        ["--arm", "grpo", str(runs["grpo"][0])],
        [str(tmp_path), *read],
        [str(tmp_path)],
        [*map(str, runs["grpo"][:2]), "--k", "2"],
        [*read, "--out", str(tmp_path / "page")],
        [*read, "--arm", "cw"],
        [*read, "--lines", str(tmp_path / "typo.jsonl")],
        [],
    ):
        assert main(wrong) == 2


def test_arms_asked_with_other_prompts_are_rejected(
    runs: dict[str, list[Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    arms = [text for arm, paths in runs.items() for text in ("--arm", arm, *map(str, paths))]
    for run in runs["cw"]:
        with changing(run / "eval" / "s" / "step_40" / "scores.json") as record:
            record["settings"]["seed"] = 1  # draws other samples of the same responses
    assert main(arms) == 0
    for key, value, message in (
        ("system_prompt", "Think.", "system_prompt: None -> 'Think.'"),
        ("dtype", "float32", "dtype: "),
    ):
        with changing(runs["cw"][1] / "eval" / "s" / "step_40" / "scores.json") as record:
            record["settings"][key] = value
        assert main(arms) == 1
        assert message in capsys.readouterr().err


def test_checkpoints_without_scores_are_named(
    runs: dict[str, list[Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    """A sweep that is not finished: the comparison is of an earlier step."""
    a, b = runs["grpo"][0], runs["cw"][0]
    assert main([str(a), str(b)]) == 0
    assert "not evaluated" not in capsys.readouterr().out
    RunFolder(b).checkpoint(60).mkdir(parents=True)
    RunFolder(b).exported(80).mkdir(parents=True)
    assert main([str(a), str(b)]) == 0
    assert f"{b}: not evaluated: steps 60, 80" in capsys.readouterr().out
    arms = [text for arm, paths in runs.items() for text in ("--arm", arm, *map(str, paths))]
    assert main(arms) == 0
    assert f"{b}: not evaluated: steps 60, 80" in capsys.readouterr().out
