"""Which candidates become rephrasings: rules, solver and distance by hand."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from prompt_aug.questions import make_question, read_parquet, write_parquet
from prompt_aug.rephrase.__main__ import main
from prompt_aug.rephrase.candidates import (
    Answers,
    Candidate,
    answers_of,
    choose,
    clean,
    distance,
    solved,
)
from prompt_aug.rephrase.checks import Reason

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


ASKED = "What is the sum of 3 and 4?"
HALF = "Ann has 3 apples and buys 4."


@pytest.mark.parametrize(
    ("response", "question"),
    [
        *((f"{thoughts}\n{ASKED}", ASKED) for thoughts in ("<think>?</think>", "[THINK]?[/THINK]")),
        (f"◁think▷Add them?◁/think▷{ASKED}", ASKED),
        (f"analysisWe add them?assistantfinal{ASKED}", ASKED),
        *((f"**{label}:** {ASKED}", ASKED) for label in ("Rephrased", "Rewritten", "Paraphrase")),
        (f"Reworded problem: {ASKED}", ASKED),
        (f"{ASKED}\n\nQuestion: What is 7 + 8?\nRephrased: Add 7 and 8.", ASKED),
        (f"{HALF}\nQuestion: How many are there?", f"{HALF}\nQuestion: How many are there?"),
    ],
)
def test_a_response_is_cut_down_to_its_question(response: str, question: str) -> None:
    assert clean(response) == question


QUESTION = "alpha beta gamma delta"


def test_the_distance_is_that_of_the_longest_common_subsequence() -> None:
    assert distance("apple pear", "apple pear") == 0
    assert distance("apple pear plum fig", "apple melon plum grape") == 1 - 2 * 2 / 8


def test_the_farthest_comes_first() -> None:
    near, middle, far = "alpha beta gamma epsilon", "alpha beta zeta eta", "theta iota kappa mu"
    assert choose(QUESTION, [near, middle, far], 2) == [2, 1]
    assert choose(QUESTION, [near], 3) == [0]
    assert choose(QUESTION, [], 3) == []


CANDIDATE = Candidate(uid="u", text="x", verdict="accept", reasons=())
DOUBTFUL = Candidate("u", "x", "doubtful", (Reason("numbers", "doubtful", "?"),))


@pytest.mark.parametrize(
    ("question", "answers", "checks", "verdict", "path"),
    [
        (Answers(4, 4, ()), Answers(3, 4, ()), DOUBTFUL, "accept", "solver"),
        (Answers(4, 4, ()), Answers(3, 4, ()), CANDIDATE, "accept", "checks"),
        (Answers(4, 4, ()), Answers(2, 4, ()), DOUBTFUL, "doubtful", "checks"),
        (Answers(4, 4, ()), Answers(0, 4, (("12", 4),)), CANDIDATE, "doubtful", "solver"),
        (Answers(2, 4, (("12", 2),)), Answers(0, 4, (("12", 4),)), CANDIDATE, "accept", "checks"),
        (Answers(4, 4, ()), Answers(2, 4, (("12", 2),)), CANDIDATE, "accept", "checks"),
        (Answers(1, 4, (("12", 3),)), Answers(0, 4, (("12.0", 4),)), CANDIDATE, "accept", "checks"),
        (Answers(1, 4, (("12", 3),)), Answers(0, 4, (("13", 4),)), CANDIDATE, "doubtful", "solver"),
        (Answers(0, 0, ()), Answers(0, 0, ()), DOUBTFUL, "doubtful", "checks"),
    ],
)
def test_a_solver_accepts_at_m_of_k_and_doubts_a_new_common_wrong_answer(
    question: Answers, answers: Answers, checks: Candidate, verdict: str, path: str
) -> None:
    after = solved(checks, question, answers, 3)
    assert (after.verdict, after.path) == (verdict, path)


def test_a_solver_accepts_no_copy_of_a_sibling() -> None:
    text, all_right = "How many apples does Ann have now?", Answers(4, 4, ())
    doubtful = replace(DOUBTFUL, text=text)
    assert solved(doubtful, all_right, all_right, 3, ["What is 3 + 4?"]).verdict == "accept"
    assert solved(doubtful, all_right, all_right, 3, [f"{text} "]).verdict == "reject"


def test_the_answers_of_a_text_are_graded_and_grouped() -> None:
    question = make_question(text="q", answers=["1/2"], source="own")
    texts = [r"\boxed{0.5}", r"\boxed{\frac12}", r"\boxed{3}", r"\boxed{3.0}", r"\boxed{4}", "?"]
    assert answers_of(question, [{"text": text} for text in texts]) == Answers(
        2, 6, (("3", 2), ("4", 1))
    )
    # Of a cache, or of a server that begins with the same seed.
    assert answers_of(question, [{"text": text} for text in texts[:2] * 4]).right == 2
