"""Rephrasings of benchmark questions are found, by the checks or a judge; other questions stay."""

import json
from pathlib import Path

import numpy as np
import pytest
from scripted_endpoint import Reply, chat, serving

from prompt_aug.base.files import read_lines, write_lines
from prompt_aug.questions import make_question, read_parquet, write_parquet
from prompt_aug.rephrase import decontaminate
from prompt_aug.rephrase.solver import FIELDS

BENCHMARK = [
    "Ann has 12 apples and buys 5 more. How many apples does Ann have now?",
    "A train covers 240 miles in 4 hours. What is its mean speed in miles an hour?",
]
SAME = "After purchasing 5 apples in addition to her 12, what number of apples is Ann left with?"
DOUBTFUL = "In four hours a train travels 240 miles. Which speed has it, if 4 hours are 4 hours?"
TEXTS = [
    BENCHMARK[0],
    SAME,
    SAME.replace("5", "6"),
    DOUBTFUL,
    "What is the area of a square with a side of 7 inches?",
]


@pytest.mark.parametrize(
    ("judge", "kept"),
    [(None, TEXTS[2:]), (True, [TEXTS[2], TEXTS[4]]), (False, TEXTS[2:]), ("fails", None)],
)
def test_paraphrases_are_removed(judge: object, kept: list[str] | None, tmp_path: Path) -> None:
    questions = [make_question(text=t, answers=["1"], source="own") for t in TEXTS]
    write_parquet(questions, tmp_path / "q.parquet")
    bench, out = tmp_path / "bench.jsonl", tmp_path / "out.parquet"
    write_lines(bench, ({"question": text} for text in BENCHMARK))
    arguments = [str(tmp_path / "q.parquet"), str(out), "--against", str(bench)]
    answer = json.dumps(dict.fromkeys(FIELDS, bool(judge)) | {"difference": ""})
    reply = Reply({}, status=400) if judge == "fails" else Reply(chat([answer]))
    with serving(lambda number, body: reply) as endpoint:
        more = [] if judge is None else ["--judge", "j", "--base-url", endpoint.url]
        assert decontaminate.main(arguments + more) == (kept is None)
        assert len(endpoint.bodies) == (judge is not None)
    assert out.exists() == (kept is not None), "without its judge no question is in doubt"
    if kept is None:
        return
    assert [question.text for question in read_parquet(out)] == kept
    listed = {line["texts"][0]: line for line in read_lines(Path(f"{out}.overlaps.jsonl"))}
    assert listed.keys() == {*TEXTS[:2], DOUBTFUL}
    assert listed[SAME]["verdict"] == "same"
    assert listed[DOUBTFUL]["verdict"] == ("same" if judge else "doubtful")
    assert listed[DOUBTFUL]["path"] == ("checks" if judge is None else "judge")
    assert (listed[SAME]["benchmark"], listed[SAME]["index"]) == ("bench", 0)


def test_the_shortlist_has_the_nearest_above_the_least_cosine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vectors = {
        "q": [1.0, 0.0],
        "near": [4.0, 3.0],
        "nearest": [2.0, 0.1],
        "far": [0.0, 1.0],
        "third": [1.0, 1.0],
    }
    embed = lambda texts: np.array([vectors[text] for text in texts])  # noqa: E731
    monkeypatch.setattr(decontaminate, "NEAREST", 2)
    for listed in (["far", "near", "nearest"], ["third", "near", "nearest"]):
        pairs = list(decontaminate.shortlist(["q"], listed, embed))
        assert [(pair.question, pair.benchmark) for pair in pairs] == [(0, 2), (0, 1)]
        assert pairs[1].cosine == pytest.approx(0.8)
