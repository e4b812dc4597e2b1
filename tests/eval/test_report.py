"""The report of a hand-written run: its numbers, its figures, text that attacks the page.

Also of verl's console output: small logs in the formats of several versions of verl.
"""

import base64
import csv
import gzip
import hashlib
import json
import math
import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_engine import changing, write_checkpoint

from eval.report import build, main
from eval.scores.metrics import Difference, Estimate
from eval.show import answers, figures, tables
from eval.show.answers import archive, rollouts, visible
from eval.show.charts import png
from eval.show.data import collect, side_by_side, summary
from eval.show.logs import as_run, overrides, read_log
from eval.show.tables import configurations_table
from prompt_aug.base.errors import UsageError, UserError
from prompt_aug.base.files import dump_lines, write_json
from recipe.run.folder import read_config, read_metrics

pytestmark = pytest.mark.config  # whole reports with their figures: half a second each

ATTACK = (
    "<script>alert(1)</script><img src=x onerror=alert(1)></pre></details>"
    "<iframe src='https://evil.example/'></iframe>{{ 7*7 }}{% raw %} &lt;b&gt; \u202e\x00\ud800"
)
COMMIT = "0123456789abcdef0123456789abcdef01234567"
Outcomes = dict[str, list[list[int]]]


def write_eval(run: Path, step: int, benchmarks: Outcomes, name: str = "s") -> None:
    """Write scores and samples of given 0/1 outcomes, one row of samples per question."""
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
            "train/entropy": None if step == 3 else 1.0,  # as NaN is written
            "template/open-r1/share": 0.5,
            "template/open-r1/accuracy": 0.5,
            "template/open-r1/format": 0.75,
            "template/$a{$/share": 0.5,
            "template/$a{$/accuracy": 0.25,  # between dollars matplotlib reads a formula
            **{"timing_s/step": 5.0, "timing_s/gen": 3.0, "timing_s/update_actor": 1.0},
            "grade/correct": 0.5,
            "train/optimizer_steps": 2 * step,
            "train/wall_seconds": 6.5 * step,
        }
        for step in range(1, 21)
    ]
    (folder / "metrics.jsonl").write_text(dump_lines(lines) + '{"step": 21, "crit')
    rollout = {"template": "open-r1", "prompt": ATTACK, "response": ATTACK, "gold": ATTACK}
    for step in (1, 20):
        found = [{**rollout, "accuracy": float(a), "reward": 1.75} for a in (0, 1, 1)]
        (folder / "rollouts" / f"step_{step}.jsonl").write_text(dump_lines(found))
    write_eval(folder, 0, {"toy": [[0], [0], [1], [0]]})
    write_eval(folder, 20, {"toy": [[1], [0], [1], [1]]})
    return folder


@pytest.fixture
def other(run: Path, tmp_path: Path) -> Path:
    """A copy of `run` under another name."""
    return Path(shutil.copytree(run, tmp_path / "other"))


class Page(HTMLParser):
    """Elements, attributes, text and scripts as a browser sees them."""

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

    def script(self, name: str) -> str:
        return next(text for found, text in self.scripts if found.get("id") == name)

    def data(self, name: str) -> Any:
        """Return the JSON of the data block with that id."""
        return json.loads(self.script(name))

    def blocks(self) -> dict[str, Any]:
        """Return the content of all blocks of samples."""
        found: dict[str, Any] = {}
        for attributes, text in self.scripts:
            if (attributes.get("id") or "").startswith("block-"):
                found |= json.loads(gzip.decompress(base64.b64decode(text)))
        return found


def page_of(run: Path) -> Page:
    build([run])
    return Page((run / "report" / "index.html").read_text())


def dangers(source: str) -> list[str]:
    """Return what leads to another page, or is a script that the page's policy does not allow."""
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


def test_report_of_one_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"start \(step 0\) +25.0 ±25.0", out)
    assert f"report: {run / 'report' / 'index.html'}" in out
    numbers = json.loads((run / "report" / "summary.json").read_text())
    assert numbers["start_accuracy"] == 0.25
    (checkpoint,) = numbers["checkpoints"]
    assert (checkpoint["accuracy"], checkpoint["questions"]) == (0.75, 4)
    assert checkpoint["standard_error"] == pytest.approx(0.25)  # std 1/2 of (1, 0, 1, 1), over 2
    assert checkpoint["gain"] == 0.5
    # Differences (1, 0, 0, 1): std with n - 1 is 1/sqrt(3), over 2.
    assert checkpoint["gain_standard_error"] == pytest.approx(1 / math.sqrt(12))
    assert (numbers["optimizer_steps"], numbers["training_steps"]) == (40, 20)
    assert (numbers["seed"], numbers["wall_seconds"]) == (7, 130.0)
    # p: half of the sign flips of the differences (1, 0, 0, 1) give a mean as far from 0.
    row = r"step 20 +75.0 ±25.0 +\+50.0 ±28.9 +(\S+) +25.0 +25.0 +10"
    (chance,) = re.findall(row, out)
    assert float(chance) == pytest.approx(0.5, abs=0.02)
    pictures = {path.name for path in (run / "report").glob("*.png")}
    assert {"accuracy.png", "reward.png", "templates.png", "step_time.png"} <= pictures
    assert (run / "report" / "accuracy.csv").read_text().splitlines() == [
        "panel,unit,curve,training step,value,standard error",
        "Accuracy on held-out questions,percent right,toy,0,25,25",
        "Accuracy on held-out questions,percent right,toy,20,75,25",
    ]
    source = (run / "report" / "index.html").read_text()
    assert "hunter2" not in source and "max_tokens: 5" in source
    assert ">By template</h3>" in source and ">pass@k" not in source  # no table without rows


def test_shares_begin_at_0_and_a_measure_has_one_color(run: Path) -> None:
    write_eval(run, 20, {"toy": [[0], [0], [0], [0]]})
    write_eval(run, 0, {"toy": [[0], [0], [0], [0]]})
    drawn = {figure["name"]: figure for figure in page_of(run).data("figure-data")}
    assert drawn["accuracy"]["panels"][0]["y_range"] == [0, 1]
    assert drawn["reward"]["panels"][0]["y_range"] is None
    colors: dict[str, set[int]] = {}
    for panel in (panel for name in ("reward", "templates") for panel in drawn[name]["panels"]):
        for curve in panel["curves"]:
            colors.setdefault(curve["label"], set()).add(curve["color"])
    assert all(len(places) == 1 for places in colors.values()) and len(colors) == 3


def test_an_unknown_error_is_no_error_of_0(run: Path) -> None:
    """Of one question, and where all are right or wrong."""
    write_eval(run, 0, {"one": [[1, 0]], "toy": [[0]] * 4}, "newer")
    write_eval(run, 20, {"one": [[1, 0]], "toy": [[1], [0], [1], [1]]}, "newer")
    errors = {
        c.label: c.error for c in figures.accuracy_by_step([collect(run, "newer")]).panels[0].curves
    }
    assert errors == {"one": [None, None], "toy": [None, 25.0], "all questions": [None, None]}
    build([run], settings="newer")
    assert "toy,0,0,\n" in (run / "report" / "accuracy.csv").read_text()


def test_no_name_is_a_formula_in_a_spreadsheet() -> None:
    names = ["=HYPERLINK(1)", "+1", "-1", "@x", "\tx", "a=1"]
    panel = figures.Panel("=t", "%", [figures.Curve(name, [1], [-2]) for name in names])
    lines = list(csv.reader(figures.Figure("f", "f", "", [panel]).as_csv().splitlines()))[1:]
    assert [line[2] for line in lines] == [*(f"'{name}" for name in names[:-1]), "a=1"]
    assert {(line[0], line[4]) for line in lines} == {("'=t", "-2")}


@pytest.mark.parametrize(
    ("path", "changes", "place"),
    [
        ("scores.json", {"benchmarks": []}, "benchmarks"),
        ("scores.json", {"settings": "x"}, "settings"),
        ("toy/questions.jsonl", {"gold": 5}, "line 1: gold"),
        ("toy/samples-*.jsonl", {"response": ["x"]}, "line 2: response"),
        ("toy/grades.jsonl", {"correct": "yes"}, "line 2: correct"),
        ("../../../environment.json", None, "environment.json"),
        ("../../../hf/step_20/manifest.json", None, "manifest.json"),
    ],
)
def test_a_record_of_another_kind_has_one_line_with_its_place(
    run: Path, path: str, changes: dict[str, Any] | None, place: str, capsys: Any
) -> None:
    (run / "hf" / "step_20").mkdir(parents=True)
    (run / "hf" / "step_20" / "manifest.json").write_text("{}")
    (file,) = (run / "eval" / "s" / "step_20").glob(path)
    if changes is None:
        file.write_text("[1]")
    else:
        lines = file.read_text().splitlines() if path.endswith("l") else [file.read_text()]
        changed = 1 if "samples" in path or "grades" in path else 0
        lines[changed] = json.dumps(json.loads(lines[changed]) | changes)
        file.write_text("\n".join(lines) + "\n")
    assert main([str(run)]) == 1
    error = capsys.readouterr().err
    assert place in error and error.count("\n") == 1


def test_model_text_stays_text_in_the_page(run: Path) -> None:
    page = page_of(run)
    source = (run / "report" / "index.html").read_text()
    assert dangers(source) == []
    assert len(page.data("figure-data")) > 4
    assert "<script>alert(1)</script><img src=x onerror=alert(1)>" in page.text
    assert "{{ 7*7 }}" in page.text
    assert "\\u202e\\u0000\\ud800" in page.text
    assert not {"\u202e", "\x00", "\ud800"} & set(page.text)
    assert {r[1] for q in page.blocks().values() for r in q["r"]} == {ATTACK}
    # Negative control: the same text unescaped is detected.
    assert len(dangers(source.replace("</main>", ATTACK + "</main>"))) >= 4


def test_missing_data_becomes_a_note(run: Path, tmp_path: Path) -> None:
    notes = "\n".join(build([run])[0].notes)
    assert "no picture of 'Response length'" in notes and "'Reward'" not in notes
    (run / "eval").rename(tmp_path / "gone")
    (data,) = build([run])
    assert any("python -m eval.sweep" in note for note in data.notes)
    assert summary(data)["checkpoints"] == [] == tables.checkpoints_of_all([data])
    (tmp_path / "gone").rename(run / "eval")
    for name in ("metrics.jsonl", "environment.json", "config.yaml"):
        (run / name).unlink()
    (data,) = build([run])
    assert "no training curves" in "\n".join(data.notes)
    assert summary(data)["optimizer_steps"] is None
    assert main([str(tmp_path)]) == 1  # neither scores nor metrics


# ------------------------------------------------------------------------- scores


def test_averages_are_over_the_questions_of_the_benchmarks_of_all_checkpoints(run: Path) -> None:
    write_eval(run, 30, {"toy": [[1], [1], [1], [1]], "extra": [[0], [0]]})
    data = collect(run)
    assert [row.total.accuracy for row in data.rows] == [0.25, 0.75, 1.0]
    assert any("extra" in note for note in data.notes)
    data.result.benchmarks["toy"]["mean_tokens"] = None  # which no server reported
    assert [row[-1] for row in tables.checkpoint_table(data)] == ["tokens", "10", "10", "-"]
    write_eval(run, 0, {"a": [[1, 0], [1, 1]], "b": [[0], [0]]}, "others")
    head, row = tables.checkpoint_table(collect(run, "others"))
    assert head[1:4] == ["a (2 x 2)", "b (2)", "all questions"]
    assert row[1:4] == ["75.0 ±25.0", "0.0 [0.0, 65.8]", "37.5 ±12.5"]  # benchmarks are strata


# ------------------------------------------------------------------------- answers


def test_every_sample_is_in_the_page(run: Path) -> None:
    write_eval(run, 0, {"a": [[1, 0], [1, 1]], "b": [[0, 0]]}, "newer")
    write_eval(run, 20, {"a": [[1, 1], [1, 1]], "b": [[1, 0]]}, "newer")
    page = page_of(run)
    index, blocks = page.data("sample-index"), page.blocks()
    assert index["checkpoints"] == [{"run": run.name, "step": s} for s in (0, 20)]
    assert [q["b"] + q["t"][-1] for q in index["questions"]] == ["a0", "a1", "b0"]
    samples = [sample for question in index["questions"] for sample in question["s"]]
    assert [sample[:2] for sample in samples] == [[0, 0], [0, 1], [1, 0], [1, 1]] * 3
    right = [index["statuses"][status] == "correct" for _, _, status, _ in samples]
    assert right == [True, False, True, True, True, True, True, True, False, False, True, False]
    assert [len(blocks[str(q)]["r"]) for q in range(3)] == [4, 4, 4]


def test_a_page_has_limits(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints in between are left out first, then answers of those that are shown."""
    for step in range(0, 50, 10):
        write_eval(run, step, {"a": [[1, 0, 1, 0], [1, 1, 0, 0]]}, "newer")
    prompt = len("question 0\n") + len(ATTACK)  # and the extracted answer
    for limits in ((11, 10**9), (10**9, 11 * (len(ATTACK) + prompt))):
        for name, limit in zip(("PAGE_SAMPLES", "PAGE_CHARACTERS"), limits, strict=True):
            monkeypatch.setattr(answers, name, limit)
        data = collect(run)
        index = archive([data]).index
        assert [point["step"] for point in index["checkpoints"]] == [0, 40]
        shown = [sample[0] for question in index["questions"] for sample in question["s"]]
        assert 10 <= len(shown) <= 11 and abs(shown.count(0) - shown.count(1)) <= 1
        assert any(f"{len(shown)} of 16 answers" in note for note in data.notes)


@pytest.mark.skipif(not shutil.which("node"), reason="runs the page's script")
def test_amounts_of_money_and_percent_are_no_formulas() -> None:
    """By the page's own functions; KaTeX is replaced by brackets around what it would be given."""
    source = Path(answers.__file__).with_name("report.js").read_text()
    part = source[source.index("const FORMULA") : source.index("const index")]
    cases = {
        "typeset": {
            "$2 for an egg and $5 for a hat, or $7?": "$2 for an egg and $5 for a hat, or $7?",
            "($5)-($7)": "($5)-($7)",
            r"\$5, so $x = 5$ and $y$.": r"\$5, so [x = 5] and [y].",
            r"$20% of \$50$, \(a\), $$b$$": r"[20\% of \$50], [a], [b]",
        },
        "typesetGold": {
            **{plain: plain for plain in ("50%", "New York", "$50", "{1, 2}", "25 % of it")},
            **{r"\frac{1}{2}": r"[\frac{1}{2}]", "x^2": "[x^2]", r"10\%": r"[10\%]"},
        },
    }
    script = (
        part
        + f"""
        const visible = (text) => text, make = () => ({{}});
        const katex = {{ render: (text, place) => {{ place.text = `[${{text}}]`; }} }};
        const read = (nodes) => nodes.map((node) => node.text ?? node).join("");
        const functions = {{ typeset, typesetGold }}, found = {{}};
        for (const [name, texts] of Object.entries({json.dumps(cases)}))
          for (const text in texts) (found[name] ??= {{}})[text] = read(functions[name](text));
        console.log(JSON.stringify(found));
    """
    )
    done = subprocess.run(["node", "-e", script], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == cases


def test_a_rollout_is_shortened_and_its_control_characters_are_spelled_out(run: Path) -> None:
    rollout = {"prompt": "<|im_start|>system\n", "response": "one\ntwo", "accuracy": 1.0}
    rows = [{**rollout, "status": "correct"}, {**rollout, "accuracy": 0.0, "status": "echo"}]
    (run / "rollouts" / "step_1.jsonl").write_text(dump_lines(rows))
    found = rollouts(run)
    # The status "correct" repeats the verdict.
    assert {r["correct"]: r["facts"] for r in found[:2]} == {True: [], False: [("status", "echo")]}
    assert [(r["step"], r["correct"]) for r in found[2:]] == [(20, False), (20, True)]
    assert visible("a" * 10, limit=4) == "aaaa\n... and 6 more characters"
    assert visible("\x1b[31mred\u2066\n") == "\\u001b[31mred\\u2066\n"


# ------------------------------------------------------------------------- several runs


def test_runs_side_by_side(run: Path, other: Path, tmp_path: Path) -> None:
    write_eval(other, 20, {"toy": [[1], [1], [1], [1]]})
    with pytest.raises(UsageError, match="--out"):
        build([run, other])
    with pytest.raises(UserError, match="same name"):
        build([run, run], tmp_path / "out")
    build([run, other], tmp_path / "out")
    source = (tmp_path / "out" / "index.html").read_text()
    assert dangers(source) == []
    table = tables.runs_table([collect(run), collect(other)])
    assert [[row[0], *row[2:5], *row[9:]] for row in table[1:]] == [
        ["my <run>", "25.0 ±25.0", "75.0 ±25.0", "20", "7", "2 min 10 s"],
        ["other", "25.0 ±25.0", "100.0 [51.0, 100.0]", "20", "7", "2 min 10 s"],
    ]
    assert table[2][7].startswith("+25.0 [")
    curves = Page(source).data("figure-data")[0]["panels"][0]["curves"]
    assert [curve["label"] for curve in curves] == ["my <run>", "other"]
    assert set(json.loads((tmp_path / "out" / "summary.json").read_text())) == {run.name, "other"}
    write_eval(other, 20, {"toy": [[1], [1], [1]]})  # other questions are not compared
    assert tables.runs_table([collect(run), collect(other)])[2][7:9] == ["-", "-"]


def test_only_runs_that_were_asked_alike_are_compared(
    run: Path, other: Path, tmp_path: Path
) -> None:
    """Greedy and sampled scores: both runs have the greedy ones, of fewer steps in one of them."""
    sampled = {"template": "qwen-math", "temperature": 1.0}
    for step in (0, 10, 20):
        write_checkpoint(other / "eval" / "t", step, {"toy": [[1]] * 4}, settings=sampled)
    for step in (0, 20):
        with changing(other / "eval" / "s" / f"step_{step}" / "scores.json") as record:
            record["settings"]["seed"] = 1  # of the samples
    build([run, other], tmp_path / "out")
    lines = (tmp_path / "out" / "accuracy.csv").read_text().splitlines()
    assert lines[1:] == [f"toy,percent right,{x},{y}" for x in (run.name, "other")
                         for y in ("0,25,25", "20,75,25")]  # fmt: skip
    shutil.rmtree(other / "eval" / "s")
    runs = build([run, other], tmp_path / "out")
    assert any("temperature: 0.0 -> 1.0" in note for note in runs[1].notes)
    assert tables.runs_table(runs)[2][2:4] == ["-", "-"] == tables.runs_table(runs)[2][7:9]
    panels = figures.accuracy_by_step(runs).panels
    assert [[curve.label for curve in panel.curves] for panel in panels] == [[run.name], ["other"]]
    assert len(tables.checkpoints_of_all(runs)) == 2


def test_totals_of_several_runs_are_over_the_benchmarks_of_all(run: Path, other: Path) -> None:
    for step in (0, 20):
        write_eval(other, step, {"hard": [[0]] * 4, "toy": [[1], [0], [1], [1]]})
    runs = side_by_side([collect(run), collect(other)])
    assert [row[2:4] for row in tables.runs_table(runs)[1:]] == [
        ["25.0 ±25.0", "75.0 ±25.0"],
        ["75.0 ±25.0", "75.0 ±25.0"],
    ]
    assert any("hard" in note for note in runs[1].notes) and runs[1].rows[-1].gain is not None
    assert [panel.title for panel in figures.accuracy_by_step(runs).panels] == ["toy"]


def test_differing_configuration_without_secrets(run: Path, other: Path) -> None:
    (other / "config.yaml").write_text(
        "recipe: {seed: 8, name: x}\ntrainer: {api_key: other}\ndata: {max_tokens: 5, more: 1}\n"
    )
    assert tables.configurations_table([collect(run), collect(other)]) == [
        ["key", "my <run>", "other"],
        ["recipe.seed", "7", "8"],
        ["data.more", "-", "1"],
    ]


# ------------------------------------------------------------------------- tables


def test_cells() -> None:
    # Wilson: z^2 / (30 + z^2) = 11.4 %, where the standard error is 0.
    zero = Estimate(accuracy=0.0, standard_error=0.0, questions=30)
    assert tables.share(zero) == "0.0 [0.0, 11.4]"
    for value, shown in ((0.0001, "<0.001"), (0.001, "0.001"), (0.5, "0.5")):
        given = {"mean": 0.1, "standard_error": None, "low": 0.0, "high": 0.2, "questions": 4}
        assert tables.p_value(Difference(p_value=value, **given)) == shown


def test_template_table(run: Path) -> None:
    assert tables.template_table(collect(run))[1:] == [
        ["$a{$", "50.0", "25.0", "-"],
        ["open-r1", "50.0", "50.0", "75.0"],
    ]


def test_validation_and_every_logged_metric_are_drawn(run: Path, other: Path) -> None:
    """A part of a verifier may be named accuracy, and a source may have a slash."""
    lines = [{"step": step, "actor/lr": 1e-6 * step, "note": None} for step in range(1, 4001)]
    lines[9] |= {"val/a/b/accuracy": 0.25, "val/a/b/standard_error": 0.125, "val/a/b/questions": 4}
    lines[9] |= {"val/a/b/part/accuracy": 1.0}
    lines[19] |= {"val/a/b/accuracy": 0.5}
    (run / "metrics.jsonl").write_text(dump_lines(lines))
    shutil.rmtree(run / "eval")
    page = page_of(run)
    drawn = next(f for f in page.data("figure-data") if f["name"] == "validation")
    ((curve,),) = [panel["curves"] for panel in drawn["panels"]]
    assert curve | {"error": [12.5, None]} == curve  # that of step 20 is not logged
    assert curve | {"label": "a/b", "x": [10, 20], "y": [25, 50], "color": 0} == curve
    rows = csv.reader((run / "report" / "validation.csv").read_text().splitlines())
    assert [row[-1] for row in rows][1:] == ["12.5", ""]
    values = json.loads(gzip.decompress(base64.b64decode(page.script("metric-block"))))
    assert values["val/a/b/questions"] == [[[10], [4]]] and "note" not in values
    ((steps, rates),) = values["actor/lr"]
    assert len(steps) == 2000 and rates[1] == pytest.approx(1e-6 * steps[1])
    several = figures.validation([collect(run), collect(other)])  # a panel a source, a curve a run
    assert [(p.title, [c.label for c in p.curves]) for p in several.panels] == [("a/b", [run.name])]


def test_a_spike_between_many_points_is_kept(run: Path) -> None:
    lines = [{"step": step, "g": 1e3 if step == 1234 else -step} for step in range(1, 5002)]
    (run / "metrics.jsonl").write_text(dump_lines(lines))
    ((steps, values),) = figures.logged([collect(run)])["g"]
    assert len(steps) <= figures.MOST_POINTS and steps == sorted(steps)
    assert (1234, 1e3) in zip(steps, values, strict=True) and min(values) == -5001


def test_a_picture_shows_every_name_and_tells_many_runs_apart() -> None:
    def drawn(*labels: str, color: int = 0) -> bytes:
        curves = [figures.Curve(label, [1, 2], [1, 2], color=color) for label in labels]
        return png(figures.Figure("f", "f", "", [figures.Panel("t", "%", curves)]))

    assert drawn("_a", "b") != drawn("_c", "b")
    assert len({drawn("a", color=color) for color in range(15)}) == 15


def test_the_facts_of_a_run_have_no_token(run: Path) -> None:
    (run / "config.yaml").write_text(
        "actor_rollout_ref: {model: {path: some/model}}\n"
        "recipe: {advantage: {name: grpo}, weights: {name: clip_cov}}\n"
        "data: {train_files: [a.parquet]}\n"
    )
    token = "hf_abcdefghij1234567890"
    typed = f"python -m recipe.train toy +trainer.hub_token={token}"
    environment = {"command": typed, "resumed": [{"command": typed, "commit": COMMIT}]}
    environment |= {"commit": COMMIT, "uncommitted_changes": True, "host": {"cores": 2}}
    (run / "environment.json").write_text(json.dumps(environment))
    os.utime(run / "metrics.jsonl", (0, 86_400))
    assert tables.header_table(collect(run)) == [
        ["model", "some/model"],
        ["method", "advantage grpo, weights clip_cov"],
        ["data", "a.parquet"],
        ["command", "(left out)"],
        ["commit", f"{COMMIT} with uncommitted changes"],
        ["date", "1970-01-02 00:00 UTC"],
    ]
    shown = dict(tables.environment_table(collect(run)))
    assert token not in str(shown) and (shown["commit"], shown["host cores"]) == (COMMIT, "2")


@pytest.mark.parametrize(
    ("value", "hidden"),
    [
        ("hf_abcdefghijklmnop", True),
        (COMMIT, False),
        (f"WANDB_API_KEY={COMMIT} python", True),
        ("AKIA" + "IOSFODNN7EXAMPLE", True),  # the form of a key, not one
        ("/a/long/path/with/step_10/and_more_than_thirty_two_letters_1/x", False),
    ],
)
def test_a_value_that_looks_like_a_token_is_hidden(run: Path, value: str, hidden: bool) -> None:
    (run / "config.yaml").write_text(f"recipe: {{remark: '{value}'}}\n")
    assert (value not in tables.configuration(collect(run))) == hidden


# ------------------------------------------------------------------------- verl's logs

PREFIX = "\x1b[36m(TaskRunner pid=7)\x1b[0m "
OLD = """\
python3 -m verl.trainer.main_ppo \\
    data.train_batch_size=8 \\
    "trainer.logger=['console','wandb']" \\
    +trainer.val_before_train=False \\
    actor_rollout_ref.actor.optim.lr=1.5e-06 trainer.experiment_name=2025-06-01

Training from scratch
step:0 - timing/gen:1.500 - critic/lr(1e-4):0.100 - val/test_score/openai/gsm8k:0.250
the next step:1 is fine, and so is step:9
step:1 - timing/gen:2.000 - glued:0.50.7 - actor/ppo_kl:-0.001 - perf/throughput:10.250Bar:  50%|
"""


def test_an_old_log_by_hand() -> None:
    zero = {"timing_s/gen": 1.5, "critic/lr(1e-4)": 0.1, "val/openai/gsm8k/accuracy": 0.25}
    one = {"timing_s/gen": 2.0, "actor/ppo_kl": -0.001, "perf/throughput": 10.25}
    assert read_log(OLD) == [{"step": 0, **zero}, {"step": 1, **one}]
    assert dict(overrides(OLD)) == {
        "data.train_batch_size": 8,
        "trainer.logger": ["console", "wandb"],
        "trainer.val_before_train": False,
        "actor_rollout_ref.actor.optim.lr": 1.5e-06,
        "trainer.experiment_name": "2025-06-01",
    }


def test_lines_of_a_step_are_merged_and_a_restart_discards_what_it_repeats() -> None:
    lines = ["step:1 - a:1.0", "step:2 - a:2.0", "step:2 - val-core/my/data/acc/mean@4:0.5"]
    lines += ["step:3 - a:3.0 - b:3.0", "step:2 - a:np.float64(5.0)", "step:3 - a:1e-06"]
    found = read_log("\n".join(PREFIX + line for line in lines))
    assert found == [{"step": n, "a": a} for n, a in ((1, 1.0), (2, 5.0), (3, 1e-06))]


def test_a_resume_that_validates_its_step_keeps_the_training_of_it() -> None:
    lines = ["step:1 - a:1.0", "step:2 - a:2.0 - val-core/d/acc/mean@1:0.5", "step:3 - a:3.0"]
    lines += ["step:2 - val-core/d/acc/mean@1:0.75 - val-aux/d/x:1.0", "step:3 - a:4.0"]
    found = read_log("\n".join(PREFIX + line for line in lines))
    assert [line["a"] for line in found] == [1.0, 2.0, 4.0] and found[1]["val/d/accuracy"] == 0.75


def test_what_verl_prints_is_read() -> None:
    """Round trip through the function of the installed verl."""
    from verl.utils.logger.aggregate_logger import concat_dict_to_str

    metrics = {
        "critic/score/mean": np.float64(0.1) + 0.2,
        "perf/total_num_tokens": 1234567,
        "actor/lr": 1e-06,
        "actor/ppo_kl": -3.5e-05,
        "actor/grad_norm": math.inf,
        "actor/entropy": math.nan,
        "text": "left out by verl",
    }
    (line,) = read_log(PREFIX + concat_dict_to_str(metrics, step=12) + "\n")
    finite = {key: value for key, value in metrics.items() if not isinstance(value, str)}
    finite |= {"step": 12, "actor/grad_norm": None, "actor/entropy": None}
    assert line == finite


def test_a_report_of_a_log(tmp_path: Path) -> None:
    log, out = tmp_path / "run.log", tmp_path / "out"
    log.write_bytes(b"\xff" + OLD.encode() + b"step:2 - critic/score/mean:0.75 - c:1.0\n")
    assert main(["--log", str(log), "--out", str(out)]) == 0
    run = out / "logs" / "run"
    assert [line["step"] for line in read_metrics(run)] == [0, 1, 2]
    assert read_config(run)["data"] == {"train_batch_size": 8}
    assert "2,0.75" in (out / "reward.csv").read_text()
    assert "0,25" in (out / "validation.csv").read_text()
    assert "eval.sweep" not in (out / "index.html").read_text()  # it is no run of ours


def test_a_log_beside_a_run_has_no_table_of_its_keys(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.log").write_text(OLD)
    run = as_run(tmp_path / "a.log", tmp_path / "run")
    write_json(
        run / "config.yaml", {"data": {"train_batch_size": 16}, "k": dict.fromkeys("xyz", 1)}
    )
    table = configurations_table(
        [collect(run), collect(as_run(tmp_path / "b.log", tmp_path / "b"))]
    )
    assert table[1:] == [["data.train_batch_size", "16", "8"]]
