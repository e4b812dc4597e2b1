"""The review page, in headless Chromium too, and the decisions that come back from it."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from rephrase_pipeline import BAD, GOOD, Pipeline, rephrase, write_questions

from prompt_aug.base.files import write_lines
from prompt_aug.rephrase import review
from prompt_aug.rephrase.inputs import read_decisions

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
HOSTILE = (
    "</script><script>document.title='owned'</script><img src=x onerror=document.title='owned'>"
)
KEYS = """<script>
const press = key => document.dispatchEvent(new KeyboardEvent("keydown", {key}));
press("a");                                  // without a name nothing is decided
document.getElementById("result").dataset.unnamed = show("done").textContent;
show("reviewer").value = "Rae";
press("a"); press("d"); press("j"); press("r"); press("k"); press("u"); press("k");
const wide = document.documentElement.scrollWidth - window.innerWidth;
Object.assign(document.getElementById("result").dataset, {
  decisions: Object.values(decisions).map(d => d.text + "=" + d.verdict).join(" "),
  wide: wide > 0, place: show("place").textContent,
  formulas: document.querySelectorAll("math").length,
});
</script>"""


def entry(text: str, verdict: str, **more: object) -> dict[str, object]:
    question = "If $\\frac{1}{x} \\le 2$, find \\(x\\)."
    own, other = review.marked(question, text)
    empty = {"reasons": [], "pass_rate": None, "path": "checks", "solver": None, "judge": None}
    shown = {"uid": "u", "text": text, "verdict": verdict, "question": own, "candidate": other}
    return empty | shown | {"answers": ["1/2"]} | more


LISTED = [
    entry(
        "Find $x$ with $\\frac{1}{x} \\le 2$.",
        "doubtful",
        solver={"right": 3, "responses": 4, "wrong": [["7", 1]]},
        reasons=[{"filter": "formulas", "verdict": "doubtful", "detail": "<b>x</b> went missing"}],
    ),
    entry(HOSTILE, "reject"),
    entry("Of which $x$ is $1/x$ at most 2?", "accept"),
]


def test_both_texts_are_marked_where_they_differ() -> None:
    own, other = review.marked("Ann has 12 apples.", "Ann owns 13 apples.")
    assert own == [("Ann ", False), ("has", True), (" ", False), ("12", True), (" apples.", False)]
    assert [piece for piece, differs in other if differs] == ["owns", "13"]
    assert "".join(piece for piece, _ in other) == "Ann owns 13 apples."


def test_decisions_are_applied_with_the_reviewers_name(tmp_path: Path) -> None:
    made = Pipeline(tmp_path, 2)
    assert made.run(rephrase) == 0
    words = {"name": "Ada", "a": 10, "b": 30, "c": 11, "s": 40}
    edited, good = BAD[0].format(**words), GOOD[0].format(**words)
    said = {"uid": made.asked()[0].uid, "reviewer": "Rae"}
    listed = [
        {**said, "text": text, "verdict": verdict}
        for text, verdict in ((edited, "reject"), (edited, "accept"), (good, "reject"))
    ]
    assert made.run(rephrase, "--decisions", made.write("decisions.jsonl", listed)) == 0
    first = made.written()[0]
    assert edited in first.rephrasings, "the last word counts"
    assert good not in first.rephrasings
    reviewed = [c for c in made.candidates() if c["reviewer"]]
    assert {(c["text"], c["verdict"], c["reviewer"]) for c in reviewed} == {
        (edited, "accept", "Rae"),
        (good, "reject", "Rae"),
    }
    assert all(c["reasons"] for c in reviewed if c["text"] == edited), "the reasons stay"


def test_a_rejected_candidate_is_replaced(tmp_path: Path) -> None:
    """By another one, as if the checks had rejected it."""
    made = Pipeline(tmp_path, 2)
    assert made.run(rephrase, "--n", "2", "--most", "2") == 0
    uid, chosen = made.asked()[0].uid, made.written()[0].rephrasings
    said = {"uid": uid, "reviewer": "Rae", "verdict": "reject"}
    file = made.write("decisions.jsonl", [{**said, "text": text} for text in chosen])
    assert made.run(rephrase, "--n", "2", "--most", "5", "--decisions", file) == 0
    assert len([c for c in made.candidates() if c["uid"] == uid]) > len(chosen)
    assert not set(chosen) & set(made.written()[0].rephrasings)


@pytest.mark.parametrize("change", [{"verdict": "maybe"}, {"reviewer": " "}, {"text": ""}])
def test_a_decision_that_is_none_is_an_error(change: dict[str, str], tmp_path: Path) -> None:
    line = {"uid": "u", "text": "t", "verdict": "accept", "reviewer": "Rae"}
    write_lines(file := tmp_path / "decisions.jsonl", [line | change])
    with pytest.raises(review.RephraseError, match="object 1"):
        read_decisions(file)


def test_a_page_without_candidates_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = write_questions(tmp_path / "q.parquet", 1)
    assert review.main([str(questions), str(tmp_path / "none.parquet"), "p.html"]) == 1
    assert "python -m prompt_aug.rephrase" in capsys.readouterr().err


def test_no_text_ends_the_script_and_the_page_loads_nothing() -> None:
    html = review.page(LISTED, "out.parquet")
    data = re.search(r"const all = (.*);\n", html)
    assert data is not None
    assert "<" not in data[1]
    assert json.loads(data[1])[1]["text"] == HOSTILE
    assert html.count("<script") == html.count("</script>") == 2
    assert not re.search(r"<[^>]*\b(?:src|href|action|on\w+)=", html.partition("<script")[0])


@pytest.mark.config
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
@pytest.mark.parametrize("width", [390, 1440])
def test_the_page_in_a_browser(width: int, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    page = review.page(LISTED, "out.parquet")
    path.write_text(page.replace("</body>", f'<i id="result"></i>{KEYS}</body>'))
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    command += [f"--window-size={width},900", f"--user-data-dir={tmp_path}/user", path.as_uri()]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=120).stdout
    result = shown.partition('<i id="result"')[2].partition(">")[0]
    assert 'data-unnamed="0 decided"' in result
    assert f'data-decisions="{LISTED[0]["text"]}=accept"'.replace("\\", "\\") in result
    assert 'data-wide="false"' in result
    assert 'data-place="1 of 3"' in result
    assert 'data-formulas="0"' not in result
    assert "Solver: 3 of 4 right; wrong: 1 times 7." in shown
    assert "&lt;b&gt;x&lt;/b&gt; went missing" in shown
    assert "<title>Review of" in shown, "the hostile candidate is text"
