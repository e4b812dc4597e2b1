"""The report of a run written by hand: its numbers, its pictures, and text that attacks it."""

import base64
import dataclasses
import gzip
import hashlib
import json
import math
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from evaluated import write_checkpoint

from eval.errors import EvaluationError
from eval.intervals import Difference
from eval.report import archive, charts, figures
from eval.report.__main__ import build, main
from eval.report.compare import (
    checkpoints_of_all,
    configurations_table,
    expected,
    expected_tables,
    runs_table,
)
from eval.report.data import RunData, collect, summary
from eval.report.rollouts import rollout_samples, visible
from eval.report.tables import (
    checkpoint_table,
    configuration,
    environment_table,
    extraction_table,
    header_table,
    level_table,
    markdown_table,
    method,
    p_value,
    share,
    template_table,
)
from prompt_aug.base.errors import UsageError
from prompt_aug.base.files import dump_lines
from prompt_aug.grading import VERSION

pytestmark = pytest.mark.config  # whole reports with their pictures: half a second each

ATTACK = (
    "<script>alert(1)</script><img src=x onerror=alert(1)></pre></details>"
    "<iframe src='https://evil.example/'></iframe>{{ 7*7 }}{% raw %} &lt;b&gt; \u202e\x00\ud800"
)


def write_eval(
    run: Path, step: int, benchmarks: Mapping[str, Sequence[Sequence[int]]], name: str = "s"
) -> None:
    """Scores and samples of given 0/1 outcomes, one row of samples per question."""
    write_checkpoint(run / "eval" / name, step, benchmarks, response=ATTACK, gold=ATTACK)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "my <run>"
    (folder / "rollouts").mkdir(parents=True)
    (folder / "config.yaml").write_text(
        "recipe: {seed: 7}\ntrainer: {api_key: hunter2}\ndata: {max_tokens: 5}\n"
    )
    (folder / "environment.json").write_text(json.dumps({"packages": {"verl": "0.9.1"}}))
    lines = [
        {
            "step": step,
            "critic/score/mean": step / 20,
            "train/entropy": None if step == 3 else 1.0,  # how NaN is written
            "template/open-r1/accuracy": 0.5,
            "template/open-r1/format": 0.75,
            "timing_s/step": 5.0,
            "timing_s/gen": 3.0,
            "timing_s/update_actor": 1.0,
            "grade/correct": 0.5,
            "train/optimizer_steps": 2 * step,
            "train/wall_seconds": 6.5 * step,
        }
        for step in range(1, 21)
    ]
    (folder / "metrics.jsonl").write_text(dump_lines(lines) + '{"step": 21, "crit')
    rollout = {"template": "open-r1", "prompt": ATTACK, "response": ATTACK, "gold": ATTACK}
    for step in (1, 20):
        rollouts = [{**rollout, "accuracy": float(a), "reward": 1.75} for a in (0, 1, 1)]
        (folder / "rollouts" / f"step_{step}.jsonl").write_text(dump_lines(rollouts))
    write_eval(folder, 0, {"toy": [[0], [0], [1], [0]]})
    write_eval(folder, 20, {"toy": [[1], [0], [1], [1]]})
    return folder


class Page(HTMLParser):
    """Collects what a browser would see as elements, attributes, text and scripts."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_data(self, data: str) -> None:
        if self.cdata_elem == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = attributes, text + data
        else:
            self.text += data

    def data(self, name: str) -> str:
        """The content of the data block of that id."""
        return next(text for attributes, text in self.scripts if attributes.get("id") == name)


def dangers(source: str) -> list[str]:
    """What in a page leads elsewhere, or runs though the page's policy does not name it."""
    page = Page(source)
    found = [tag for tag in page.tags if tag in ("iframe", "object", "link", "base", "img")]
    for name, value in page.attributes:
        if name.startswith("on") or (
            name in ("src", "href", "srcset") and not re.fullmatch("#[a-z]+", value)
        ):
            found.append(f"{name}={value[:40]}")
    (policy,) = (v for n, v in page.attributes if n == "content" and v.startswith("default-src"))
    assert policy.startswith("default-src 'none'") and "unsafe-eval" not in policy
    for attributes, text in page.scripts:
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        is_data = attributes.get("type") in ("application/json", "text/plain")
        if not is_data and f"'sha256-{digest}'" not in policy:
            found.append(f"script {text[:40]}")
    return found


def unpacked(page: Page) -> dict[str, Any]:
    """All blocks of samples."""
    blocks = [t for a, t in page.scripts if (a.get("id") or "").startswith("block-")]
    found: dict[str, Any] = {}
    for block in blocks:
        found |= json.loads(gzip.decompress(base64.b64decode(block)))
    return found


def test_summary_by_hand(run: Path) -> None:
    build([run])
    numbers = json.loads((run / "report" / "summary.json").read_text())
    assert numbers["start_accuracy"] == 0.25
    (checkpoint,) = numbers["checkpoints"]
    assert (checkpoint["step"], checkpoint["accuracy"], checkpoint["questions"]) == (20, 0.75, 4)
    assert checkpoint["standard_error"] == pytest.approx(0.25)  # std 1/2 of (1, 0, 1, 1), over 2
    assert checkpoint["gain"] == 0.5
    # Differences (1, 0, 0, 1): std with n - 1 is 1/sqrt(3), over 2.
    assert checkpoint["gain_standard_error"] == pytest.approx(1 / math.sqrt(12))
    assert (numbers["optimizer_steps"], numbers["training_steps"]) == (40, 20)
    assert (numbers["seed"], numbers["wall_seconds"]) == (7, 130.0)


def test_the_page_stands_alone_and_the_models_text_stays_text(run: Path) -> None:
    build([run])
    source = (run / "report" / "index.html").read_text()
    assert dangers(source) == []
    page = Page(source)
    assert len(json.loads(page.data("figure-data"))) > 4
    assert "<script>alert(1)</script><img src=x onerror=alert(1)>" in page.text
    assert "{{ 7*7 }}" in page.text
    assert "\\u202e\\u0000\\ud800" in page.text
    assert not {"\u202e", "\x00", "\ud800"} & set(page.text)
    assert {r[1] for q in unpacked(page).values() for r in q["r"]} == {ATTACK}
    # Negative control: the same text unescaped is found out.
    assert len(dangers(source.replace("</main>", ATTACK + "</main>"))) >= 4


def test_secrets_of_the_configuration_are_left_out(run: Path) -> None:
    build([run])
    for name in ("index.html", "report.md"):
        assert "hunter2" not in (run / "report" / name).read_text()
    assert "max_tokens: 5" in (run / "report" / "index.html").read_text()


def test_markdown_has_the_table_and_every_picture(run: Path) -> None:
    build([run])
    text = (run / "report" / "report.md").read_text()
    # p: of the signs of the differences (1, 0, 0, 1) half give a mean as far from 0.
    row = r"\| step 20 \| 75.0 ±25.0 \| \+50.0 ±28.9 \| (\S+) \| 25.0 \| 25.0 \| 10 \|"
    (p_value,) = re.findall(row, text)
    assert float(p_value) == pytest.approx(0.5, abs=0.02)
    pictures = {path.name for path in (run / "report").glob("*.png")}
    assert {name for name in pictures if f"({name})" in text} == pictures
    assert {"accuracy.png", "reward.png", "templates.png", "step_time.png"} <= pictures
    assert ATTACK[:20] not in text


def test_the_command_prints_the_table_and_the_path(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(run)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"start \(step 0\) +25.0 ±25.0", out)
    assert f"report: {run / 'report' / 'index.html'}" in out


def test_what_a_run_lacks_is_named(run: Path) -> None:
    notes = "\n".join(build([run])[0].notes)
    for title in ("Groups without signal", "Response length", "Optimisation"):
        assert f"no picture of {title!r}" in notes
    assert "'Reward'" not in notes


def test_a_run_without_scores_or_without_metrics_has_a_report(run: Path, tmp_path: Path) -> None:
    (run / "eval").rename(tmp_path / "gone")
    assert any("python -m eval.sweep" in note for note in build([run])[0].notes)
    assert summary(collect(run))["checkpoints"] == []
    (tmp_path / "gone").rename(run / "eval")
    for name in ("metrics.jsonl", "environment.json", "config.yaml"):
        (run / name).unlink()
    assert any("no training curves" in note for note in build([run])[0].notes)
    assert summary(collect(run))["optimizer_steps"] is None
    assert dangers((run / "report" / "index.html").read_text()) == []


def test_nothing_at_all_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path)]) == 1
    assert main([str(tmp_path / "none")]) == 1
    assert "nothing to report" in capsys.readouterr().err


def test_averages_cover_what_every_checkpoint_has(run: Path) -> None:
    write_eval(run, 30, {"toy": [[1], [1], [1], [1]], "extra": [[0], [0]]})
    data = collect(run)
    assert [row.total.accuracy for row in data.rows] == [0.25, 0.75, 1.0]
    assert any("extra" in note for note in data.notes)


def test_two_benchmarks_share_the_average_by_questions(run: Path) -> None:
    shutil.rmtree(run / "eval")
    write_eval(run, 0, {"a": [[1, 0], [1, 1]], "b": [[0], [0]]})
    data = collect(run)
    assert data.rows[0].total.accuracy == pytest.approx(1.5 / 4)
    table = checkpoint_table(data)
    assert table[0][1:4] == ["a (2 x 2)", "b (2)", "all questions"]
    assert table[1][1:4] == ["75.0 ±25.0", "0.0 [0.0, 65.8]", "37.5 ±23.9"]


def test_a_step_of_other_questions_gets_no_gain(run: Path) -> None:
    write_eval(run, 30, {"toy": [[1], [1], [1]]})
    data = collect(run)
    assert any("toy was asked differently" in note for note in data.notes)
    gains = {row.step: row.gain for row in data.rows}
    assert gains[20] is not None and gains[30] is None


def test_a_report_is_of_one_set_of_settings_and_names_the_others(run: Path) -> None:
    write_eval(run, 20, {"toy": [[0], [0], [0], [0]]}, name="warm")
    data = collect(run)
    assert [row.step for row in data.rows] == [0, 20]
    assert any("of the settings s; others (--settings): warm" in note for note in data.notes)
    assert [row.step for row in collect(run, "warm").rows] == [20]
    with pytest.raises(EvaluationError, match="cold"):
        collect(run, "cold")


def test_scores_of_two_graders_are_refused(run: Path, tmp_path: Path) -> None:
    write_eval(run, 20, {"toy": [[1], [0], [1], [1]]})
    path = run / "eval" / "s" / "step_0" / "scores.json"
    path.write_text(path.read_text().replace(VERSION, "0" * 16))
    with pytest.raises(EvaluationError, match="different versions"):
        collect(run)


def test_a_repeated_step_counts_once_with_its_last_line(run: Path) -> None:
    lines = (run / "metrics.jsonl").read_text().rsplit("\n", 1)[0]
    again = json.dumps({"step": 5, "critic/score/mean": 9.0})
    (run / "metrics.jsonl").write_text(f"{lines}\n{again}\n")
    steps, values = collect(run).series("critic/score/mean")
    assert steps == list(range(1, 21)) and values[4] == 9.0


def test_series_leave_out_what_is_not_finite(run: Path) -> None:
    steps, _ = collect(run).series("train/entropy")
    assert 3.0 not in steps and len(steps) == 19


def drawn(figure: figures.Figure | None) -> bytes:
    assert figure is not None
    return charts.png(figure)


def test_pictures_are_the_same_bytes_twice_and_follow_the_data(run: Path) -> None:
    data = collect(run)
    first = drawn(figures.accuracy([data]))
    assert drawn(figures.accuracy([data])) == first
    write_eval(run, 30, {"toy": [[1], [1], [1], [1]]})
    assert drawn(figures.accuracy([collect(run)])) != first


def test_parts_longer_than_the_step_are_not_stacked() -> None:
    def panel(gen: float) -> figures.Panel:
        lines = [{"step": s, "timing_s/step": 5.0, "timing_s/gen": gen} for s in (1, 2)]
        empty: dict[str, Any] = {key: {} for key in ("config", "environment")}
        data = RunData(name="r", metrics=lines, rows=[], eval_settings={}, evaluated={}, **empty)
        figure = figures.step_time([data])
        assert figure is not None
        return figure.panels[0]

    assert panel(4.0).stacked and [c.label for c in panel(4.0).curves] == ["gen", "other"]
    assert [list(c.y) for c in panel(4.0).curves] == [[4.0, 4.0], [1.0, 1.0]]
    assert not panel(6.0).stacked and [c.label for c in panel(6.0).curves] == ["gen", "step"]


def test_a_figure_is_written_as_numbers_too(run: Path) -> None:
    build([run])
    assert (run / "report" / "accuracy.csv").read_text().splitlines() == [
        "panel,unit,curve,training step,value,standard error",
        "Accuracy on held-out questions,per cent right,toy,0,25,25",
        "Accuracy on held-out questions,per cent right,toy,20,75,25",
    ]


def test_every_sample_is_in_the_page(run: Path) -> None:
    shutil.rmtree(run / "eval")
    write_eval(run, 0, {"a": [[1, 0], [1, 1]], "b": [[0, 0]]})
    write_eval(run, 20, {"a": [[1, 1], [1, 1]], "b": [[1, 0]]})
    build([run])
    page = Page((run / "report" / "index.html").read_text())
    index, blocks = json.loads(page.data("sample-index")), unpacked(page)
    assert index["checkpoints"] == [{"run": run.name, "step": s} for s in (0, 20)]
    assert [(q["b"], q["t"]) for q in index["questions"]] == [
        ("a", "question 0"), ("a", "question 1"), ("b", "question 0"),
    ]  # fmt: skip
    assert index["count"] == [4, 4, 4]
    assert index["c"] == [0, 0, 1, 1] * 3 and index["n"] == [0, 1, 0, 1] * 3
    right = [index["statuses"][s] == "correct" for s in index["s"]]
    assert right == [True, False, True, True, True, True, True, True, False, False, True, False]
    assert [len(blocks[str(q)]["r"]) for q in range(3)] == index["count"]
    assert blocks["2"]["p"] == ["question 0\n"]


def test_too_many_samples_leave_out_checkpoints_between(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in (30, 40, 50):
        write_eval(run, step, {"toy": [[1], [0], [1], [1]]})
    monkeypatch.setattr(archive, "MOST", 12)
    (data,) = build([run])
    page = Page((run / "report" / "index.html").read_text())
    steps = [point["step"] for point in json.loads(page.data("sample-index"))["checkpoints"]]
    assert steps == [0, 30, 50]
    assert any("those of 0, 30, 50" in note for note in data.notes)


def test_runs_stand_side_by_side(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(run, other)
    write_eval(other, 20, {"toy": [[1], [1], [1], [1]]})
    with pytest.raises(UsageError, match="--out"):
        build([run, other])
    with pytest.raises(EvaluationError, match="same name"):
        build([run, run], tmp_path / "out")
    build([run, other], tmp_path / "out")
    source = (tmp_path / "out" / "index.html").read_text()
    assert dangers(source) == []
    table = runs_table([collect(run), collect(other)])
    assert [[row[0], *row[2:5], *row[9:]] for row in table[1:]] == [
        ["my <run>", "25.0 ±25.0", "75.0 ±25.0", "20", "7", "2 min 10 s"],
        ["other", "25.0 ±25.0", "100.0 [51.0, 100.0]", "20", "7", "2 min 10 s"],
    ]
    assert table[2][7].startswith("+25.0 [")
    curves = json.loads(Page(source).data("figure-data"))[0]["panels"][0]["curves"]
    assert [curve["label"] for curve in curves] == ["my <run>", "other"]
    assert set(json.loads((tmp_path / "out" / "summary.json").read_text())) == {run.name, "other"}


def test_runs_asked_other_questions_are_not_compared(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree(run, other)
    write_eval(other, 20, {"toy": [[1], [1], [1]]})
    assert runs_table([collect(run), collect(other)])[2][7:9] == ["-", "-"]


def test_what_differs_in_the_configuration_is_named_without_secrets(
    run: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(run, other)
    (other / "config.yaml").write_text(
        "recipe: {seed: 8, name: x}\ntrainer: {api_key: other}\ndata: {max_tokens: 5, more: 1}\n"
    )
    assert configurations_table([collect(run), collect(other)]) == [
        ["key", "my <run>", "other"],
        ["recipe.seed", "7", "8"],
        ["data.more", "-", "1"],
    ]
    assert configurations_table([collect(run)]) == []


def test_checkpoints_of_runs_with_the_same_columns_stand_in_one_table(
    run: Path, tmp_path: Path
) -> None:
    other, third = tmp_path / "other", tmp_path / "third"
    shutil.copytree(run, other)
    shutil.copytree(run, third)
    write_eval(third, 20, {"toy": [[1], [0], [1]]})
    (_, table), (named, rows) = checkpoints_of_all([collect(p) for p in (run, other, third)])
    assert [row[:2] for row in table[1:]] == [
        [name, step] for name in ("my <run>", "other") for step in ("start (step 0)", "step 20")
    ]
    assert named == "third" and len(rows) == 3


def test_panels_of_one_unit_share_their_range(run: Path) -> None:
    lines = [{"step": 1, "template/a/accuracy": 0.1, "template/a/format": 0.2,
              "template/b/accuracy": 1.1, "template/b/format": 1.0}]  # fmt: skip
    (run / "metrics.jsonl").write_text(dump_lines(lines))
    data = collect(run)
    shared, alone = figures.templates([data]), figures.accuracy([data])
    assert shared is not None and shared.y_range() == pytest.approx((0.05, 1.15))
    assert alone is not None and alone.y_range() is None
    other = [figures.Panel(title=p.title, unit=p.title, curves=p.curves) for p in shared.panels]
    assert dataclasses.replace(shared, panels=other).y_range() is None


@pytest.mark.parametrize(("value", "shown"), [(0.0001, "<0.001"), (0.001, "0.001"), (0.5, "0.5")])
def test_a_small_p_value_is_not_spelled_out(value: float, shown: str) -> None:
    assert p_value(Difference(mean=0.1, low=0.0, high=0.2, p_value=value, questions=4)) == shown


def test_the_preview_of_a_rollout_is_its_response(run: Path) -> None:
    rollout = {"prompt": "<|im_start|>system\n", "response": "one\ntwo", "accuracy": 1.0}
    (run / "rollouts" / "step_1.jsonl").write_text(dump_lines([rollout]))
    assert rollout_samples(run)[0].preview == "one two"


def test_published_numbers_stand_beside_a_run_of_the_same_model(run: Path) -> None:
    assert expected_tables([collect(run)], None) == []
    (run / "config.yaml").write_text("actor_rollout_ref: {model: {path: Qwen/Qwen2.5-Math-1.5B}}")
    assert expected_tables([collect(run)], None) == []  # no benchmark in common
    shutil.rmtree(run / "eval")
    write_eval(run, 0, {"amc": [[1, 0], [1, 1]]})
    ((title, table),) = expected_tables([collect(run)], None)
    assert "2602.03190" in title and table[0] == ["", *expected()["prompt_aug-1.5b"]["benchmarks"]]
    assert table[1] == ["start model", "16.7", "43.4", "61.8", "15.1", "28.4"]
    assert table[-1] == ["ours: my <run>, step 0", "-", "75.0 ±25.0", "-", "-", "-"]
    ((_, table),) = [t for t in expected_tables([collect(run)], "ta_grpo-4b") if "pass@32" in t[0]]
    assert table[-1][1:] == ["-"] * 6  # two samples have no pass@32
    with pytest.raises(EvaluationError, match="known are"):
        expected_tables([collect(run)], "nobody")


def test_published_rows_agree_with_the_averages_that_the_papers_print() -> None:
    means = {
        ("prompt_aug-1.5b", "GRPO"): 42.6, ("prompt_aug-1.5b", "DAPO"): 44.1,
        ("cw_grpo-1.5b", "CW-GRPO"): 55.3, ("cw_grpo-7b", "CW-GRPO"): 46.7,
    }  # fmt: skip
    for (name, row), mean in means.items():
        values = expected()[name]["rows"][row]
        assert sum(values) / len(values) == pytest.approx(mean, abs=0.06)
    competition = expected()["ta_grpo-1.7b"]["rows"]["TA-GRPO"][:4]
    assert sum(competition) / 4 == pytest.approx(59.69, abs=0.01)
    assert all(
        len(v) == len(e["benchmarks"]) for e in expected().values() for v in e["rows"].values()
    )


def test_running_mean_by_hand() -> None:
    assert charts.running_mean([1.0, 2.0, 6.0, 3.0], 3).tolist() == [1.5, 3.0, 11 / 3, 4.5]


def test_tables() -> None:
    table = [["name", "x|y"], ["long name", "1"]]
    assert markdown_table(table) == "| name | x\\|y |\n|---|---|\n| long name | 1 |"
    assert share(None) == "-"
    assert share({"accuracy": 0.5, "standard_error": None, "questions": 1}) == "50.0"
    # Wilson: z^2 / (30 + z^2) = 11.4 %, where the standard error is 0.
    assert share({"accuracy": 0.0, "standard_error": 0.0, "questions": 30}) == "0.0 [0.0, 11.4]"


def test_long_text_is_cut_and_says_by_how_much() -> None:
    assert visible("a" * 10, limit=4) == "aaaa\n... and 6 more characters"
    assert visible("\x1b[31mred\u2066\n") == "\\u001b[31mred\\u2066\n"


def test_levels_and_templates_have_tables(run: Path) -> None:
    data = collect(run)
    # Levels 0, 1, 0, 1 by the fixture; right are, at step 20, questions 0, 2 and 3.
    assert level_table(data) == [
        ["benchmark", "level", "start model", "after step 20"],
        ["toy", "0", "50.0 ±50.0", "100.0 [34.2, 100.0]"],
        ["toy", "1", "0.0 [0.0, 65.8]", "50.0 ±50.0"],
    ]
    assert template_table(data) == [
        ["template", "share", "accuracy", "format"],
        ["open-r1", "-", "50.0", "75.0"],
    ]


def test_the_head_says_what_was_trained_and_from_which_code(run: Path) -> None:
    (run / "config.yaml").write_text(
        "actor_rollout_ref: {model: {path: some/model}}\n"
        "recipe: {advantage: {name: grpo}, weights: {name: clip_cov}}\n"
        "data: {train_files: [a.parquet]}\n"
    )
    commit = "0123456789abcdef" * 2 + "01234567"
    (run / "environment.json").write_text(
        json.dumps({"commit": commit, "uncommitted_changes": True})
    )
    os.utime(run / "metrics.jsonl", (0, 86_400))
    assert header_table(collect(run)) == [
        ["model", "some/model"],
        ["method", "advantage grpo, weights clip_cov"],
        ["data", "a.parquet"],
        ["commit", f"{commit} with uncommitted changes"],
        ["date", "1970-01-02 00:00 UTC"],
    ]


@pytest.mark.parametrize(
    ("recipe", "augment", "shown"),
    [
        ({"method": "grpo"}, {"mode": "fixed", "templates": ["a"]}, "grpo (advantage grpo)"),
        ({}, {"mode": "per_question", "templates": ["a"]}, "advantage grpo"),
        (
            {"method": "hapo", "history": {"enable": True}}, {"mode": "fixed", "templates": ["a"]},
            "hapo (advantage grpo, length history)",
        ),
        (
            {"method": "prompt_aug"}, {"mode": "per_question", "templates": None},
            "prompt_aug (prompt augmentation with all templates, advantage grpo)",
        ),
        (
            {}, {"mode": "per_rollout", "templates": ["a", "b"]},
            "prompt augmentation with 2 templates, advantage grpo",
        ),
    ],
)  # fmt: skip
def test_the_method_is_what_the_configuration_makes(
    recipe: dict[str, Any], augment: dict[str, Any], shown: str
) -> None:
    assert (
        method({"recipe": {"advantage": {"name": "grpo"}, "augment": augment, **recipe}}) == shown
    )
    assert method({}) is None


@pytest.mark.parametrize(
    ("value", "hidden"),
    [
        ("hf_abcdefghijklmnop", True),
        ("https://user:password@host/x", True),
        ("0123456789abcdef0123456789abcdef01234567", False),  # a commit
        ("WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567 python", True),
        ("0123456789abcdef0123456789abcdef0123456", True),
        ("sk-abcdefghijklmnop", True),
        ("AKIA" + "IOSFODNN7EXAMPLE", True),  # the form of a key, not one
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", False),
        ("/a/long/path/with/step_10/and_more_than_thirty_two_letters_1/x", False),
        ("recipe.rollout.workers.GroupedAgentLoopManager", False),
    ],
)
def test_a_value_that_looks_like_a_token_is_blanked_whatever_its_key(
    run: Path, value: str, hidden: bool
) -> None:
    (run / "config.yaml").write_text(f"recipe: {{remark: '{value}'}}\n")
    assert (value not in configuration(collect(run))) == hidden


def test_a_token_of_the_command_is_in_no_table_and_the_commit_is(run: Path) -> None:
    token, commit = "hf_abcdefghij1234567890", "0123456789abcdef0123456789abcdef01234567"
    typed = f"python -m recipe.train toy +trainer.hub_token={token}"
    resumed = [{"command": typed, "commit": commit}]
    environment = {"command": typed, "resumed": resumed, "commit": commit, "host": {"cores": 2}}
    (run / "environment.json").write_text(json.dumps(environment))
    shown = environment_table(collect(run))
    assert token not in str(shown) and token not in str(header_table(collect(run)))
    assert ["commit", commit] in shown and ["host cores", "2"] in shown
    assert [row[0] for row in shown] == ["command", "resumed", "commit", "host cores"]


def test_a_template_with_dollars_in_its_name_is_drawn(run: Path) -> None:
    line = {"step": 1, "template/$a{$/accuracy": 0.5, "template/$a{$/format": 0.5}
    (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    assert drawn(figures.templates([collect(run)]))


def test_strict_and_default_stand_side_by_side_where_they_differ(run: Path) -> None:
    assert extraction_table(collect(run)) == []
    (path, *_) = sorted((run / "eval").rglob("step_*/scores.json"))
    scores = json.loads(path.read_text())
    name, entry = next(iter(scores["benchmarks"].items()))
    entry["accuracy_under"] = {"strict": 0.125, "default": 0.5}
    entry["settings"]["extraction"] = "strict"
    path.write_text(json.dumps(scores))
    _, row = extraction_table(collect(run))
    assert row[1:] == [name, "12.5", "50.0", "strict"]
