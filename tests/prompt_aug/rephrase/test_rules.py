"""The rules: the same operands in another form, and nothing that the check rejects."""

import re
from pathlib import Path

from prompt_aug.questions import make_question, read_parquet, write_parquet
from prompt_aug.rephrase import check
from prompt_aug.rephrase.__main__ import main

TOY = {
    "What is 47 + 38?": 85,
    "Add 47 and 38.": 85,
    "Find the sum of 47 and 38.": 85,
    "Tom has 47 apples and gets 38 more. How many apples has he now?": 85,
    "What is 74 - 38?": 36,
    "Subtract 38 from 74.": 36,
    "By how much is 74 larger than 38?": 36,
    "Ann has 74 coins and spends 38. How many coins are left?": 36,
}


def test_every_question_of_the_toy_world_has_three_rephrasings(tmp_path: Path) -> None:
    questions = [make_question(text=t, answers=[str(a)], source="toy") for t, a in TOY.items()]
    write_parquet(questions, tmp_path / "q.parquet")
    out = tmp_path / "out.parquet"
    assert main([str(tmp_path / "q.parquet"), str(out), "--offline", "--most", "8"]) == 0
    for question in read_parquet(out):
        assert len(question.rephrasings) == 3
        for text in question.rephrasings:
            a, b = map(int, re.findall(r"\d+", text))
            assert {a, b} == set(map(int, re.findall(r"\d+", question.text)))
            assert TOY[question.text] in (a + b, abs(a - b))


def test_a_sum_is_not_rephrased_as_a_difference() -> None:
    for one, other in (
        ("What is 74 + 38?", "Subtract 38 from 74."),
        ("What is 74 - 38?", "Add 74 and 38."),
    ):
        assert check(one, other).verdict != "accept"
