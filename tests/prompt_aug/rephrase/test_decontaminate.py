"""Rephrasings of benchmark questions are found, by the checks or a judge; other questions stay."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rephrase_pipeline import lines
from scripted_endpoint import Reply, chat, serving

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


def judging(same: bool) -> Any:
    answer = json.dumps(dict.fromkeys(FIELDS, same) | {"difference": ""})
    return lambda number, body: Reply(chat([answer]))


@pytest.mark.parametrize(
    ("judge", "kept"), [(None, TEXTS[2:]), (True, [TEXTS[2], TEXTS[4]]), (False, TEXTS[2:])]
)
def test_paraphrases_are_removed(judge: bool | None, kept: list[str], tmp_path: Path) -> None:
    questions = [make_question(text=t, answers=["1"], source="own") for t in TEXTS]
    write_parquet(questions, tmp_path / "q.parquet")
    bench, out = tmp_path / "bench.jsonl", tmp_path / "out.parquet"
    bench.write_text("".join(json.dumps({"question": text}) + "\n" for text in BENCHMARK))
    arguments = [str(tmp_path / "q.parquet"), str(out), "--against", str(bench)]
    with serving(judging(bool(judge))) as endpoint:
        more = [] if judge is None else ["--judge", "j", "--base-url", endpoint.url]
        assert decontaminate.main(arguments + more) == 0
        assert len(endpoint.bodies) == (judge is not None)
    assert [question.text for question in read_parquet(out)] == kept
    listed = {line["texts"][0]: line for line in lines(Path(f"{out}.overlaps.jsonl"))}
    assert listed.keys() == {*TEXTS[:2], DOUBTFUL}
    assert listed[SAME]["verdict"] == "same"
    assert listed[DOUBTFUL]["verdict"] == ("same" if judge else "doubtful")
    assert listed[DOUBTFUL]["path"] == ("checks" if judge is None else "judge")
    assert (listed[SAME]["benchmark"], listed[SAME]["index"]) == ("bench", 0)


def test_a_judge_that_fails_leaves_no_question_in_doubt(tmp_path: Path) -> None:
    questions = [make_question(text=t, answers=["1"], source="own") for t in TEXTS]
    write_parquet(questions, tmp_path / "q.parquet")
    bench, out = tmp_path / "bench.jsonl", tmp_path / "out.parquet"
    bench.write_text("".join(json.dumps({"question": text}) + "\n" for text in BENCHMARK))
    arguments = [str(tmp_path / "q.parquet"), str(out), "--against", str(bench)]
    with serving(lambda number, body: Reply({}, status=400)) as endpoint:
        assert decontaminate.main([*arguments, "--judge", "j", "--base-url", endpoint.url]) == 1
    assert not out.exists()


def test_the_shortlist_has_the_nearest_above_the_least_cosine() -> None:
    vectors = {"q": [1.0, 0.0], "near": [4.0, 3.0], "nearest": [2.0, 0.1], "far": [0.0, 1.0]}
    embed = lambda texts: np.array([vectors[text] for text in texts])  # noqa: E731
    found = list(decontaminate.shortlist(["q"], ["far", "near", "nearest"], embed, 2))
    assert [(pair.question, pair.benchmark) for pair in found] == [(0, 2), (0, 1)]
    assert found[1].cosine == pytest.approx(0.8)
