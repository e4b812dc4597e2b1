"""The review page and the decisions that come back from it."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rephrase_pipeline import BAD, GOOD, command, lines, rephrase, write_questions
from scripted_endpoint import Reply, chat, serving

from prompt_aug.questions import read_parquet
from prompt_aug.rephrase import review
from prompt_aug.rephrase.__main__ import main
from prompt_aug.rephrase.inputs import read_decisions

HOSTILE = "</script><script>alert(1)</script> <img src=x onerror=alert(1)> 10 & 30 {{ 7*7 }}"


class Tags(HTMLParser):
    """The tags of a page, and what its script holds."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.script = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [name for name, _ in attrs]

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] == ["script"]:
            self.script += data


def run(tmp_path: Path, script: Any, *more: str) -> tuple[Path, Path]:
    questions = tmp_path / "q.parquet"
    if not questions.exists():
        write_questions(questions, 2)
    out = tmp_path / "out.parquet"
    with serving(script) as endpoint:
        assert main(command(questions, out, endpoint.url, *more)) == 0
    return questions, out


def test_both_texts_are_marked_where_they_differ() -> None:
    own, other = review.marked("Ann has 12 apples.", "Ann owns 13 apples.")
    assert own == [("Ann ", False), ("has", True), (" ", False), ("12", True), (" apples.", False)]
    assert [piece for piece, differs in other if differs] == ["owns", "13"]
    assert "".join(piece for piece, _ in other) == "Ann owns 13 apples."


def test_nothing_that_a_model_wrote_becomes_markup(tmp_path: Path) -> None:
    def hostile(_: int, body: dict[str, Any]) -> Reply:
        return Reply(chat([HOSTILE] * body["n"]))

    questions, out = run(tmp_path, hostile)
    assert review.main([str(questions), str(out), str(tmp_path / "p.html")]) == 0
    html = (tmp_path / "p.html").read_text()
    page = Tags(html)
    assert page.tags.count("script") == 2
    assert "img" not in page.tags
    assert not any(name.startswith("on") for name in page.attributes)
    assert not {"src", "href", "action"} & set(page.attributes), "the page loads nothing"
    data = json.loads(re.search(r"const all = (.*);\n", page.script)[1])  # type: ignore[index]
    assert data[0]["text"] == HOSTILE, "the text itself is whole"
    assert "<" not in re.search(r"const all = (.*);\n", html)[1]  # type: ignore[index]


def test_decisions_are_applied_with_the_reviewers_name(tmp_path: Path) -> None:
    questions, out = run(tmp_path, rephrase)
    question = read_parquet(questions)[0]
    words = {"name": "Ada", "a": 10, "b": 30, "c": 11, "s": 40}
    edited, good = BAD[0].format(**words), GOOD[0].format(**words)
    said = [
        {"uid": question.uid, "text": edited, "verdict": "reject", "reviewer": "Rae"},
        {"uid": question.uid, "text": edited, "verdict": "accept", "reviewer": "Rae"},
        {"uid": question.uid, "text": good, "verdict": "reject", "reviewer": "Rae"},
    ]
    file = tmp_path / "decisions.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in said))
    run(tmp_path, rephrase, "--decisions", str(file))
    first = read_parquet(out)[0]
    assert edited in first.rephrasings, "the last word counts"
    assert good not in first.rephrasings
    reviewed = [c for c in lines(review.beside(out, ".candidates.jsonl")) if c["reviewer"]]
    assert {(c["text"], c["verdict"], c["reviewer"]) for c in reviewed} == {
        (edited, "accept", "Rae"),
        (good, "reject", "Rae"),
    }
    assert all(c["reasons"] for c in reviewed if c["text"] == edited), "the reasons stay"


@pytest.mark.parametrize(
    "line",
    [
        {"uid": "u", "text": "t", "verdict": "maybe", "reviewer": "Rae"},
        {"uid": "u", "text": "t", "verdict": "accept", "reviewer": " "},
        {"uid": "u", "text": "", "verdict": "accept", "reviewer": "Rae"},
    ],
)
def test_a_decision_that_is_none_is_an_error(line: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "decisions.jsonl"
    file.write_text(json.dumps(line) + "\n")
    with pytest.raises(review.RephraseError, match="line 1"):
        read_decisions(file)


def test_a_page_without_candidates_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions = write_questions(tmp_path / "q.parquet", 1)
    assert review.main([str(questions), str(tmp_path / "none.parquet"), "p.html"]) == 1
    assert "python -m prompt_aug.rephrase" in capsys.readouterr().err
