"""Solver and judge: hand values."""

import json

import pytest

from prompt_aug.questions import make_question
from prompt_aug.rephrase.candidates import Candidate, usable
from prompt_aug.rephrase.solver import Answers, answers_of, judged, solved
from prompt_aug.rephrase.verify import Reason

CANDIDATE = Candidate(uid="u", text="x", verdict="accept", reasons=())


DOUBTFUL = Candidate(
    uid="u", text="x", verdict="doubtful", reasons=(Reason("numbers", "doubtful", "?"),)
)
SAME = {"same_unknown": True, "same_conditions": True, "same_answer": True, "difference": ""}


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


@pytest.mark.parametrize(
    ("response", "verdict"),
    [
        (json.dumps(SAME), "accept"),
        ("<think>{}</think>So:\n```json\n" + json.dumps(SAME) + "\n```", "accept"),
        (json.dumps(SAME | {"same_answer": False, "difference": "5, 6"}), "doubtful"),
        (json.dumps(SAME | {"same_answer": "yes"}), "doubtful"),
        ("{" * 5000, "doubtful"),
    ],
)
def test_a_judge_accepts_only_with_a_whole_verdict(response: str, verdict: str) -> None:
    after = judged(DOUBTFUL, response)
    assert (after.verdict, after.path) == (verdict, "judge")
    assert usable([after], ("accept", "doubtful")) == ([after] if verdict == "accept" else [])


def test_the_answers_of_a_text_are_graded_and_grouped() -> None:
    question = make_question(text="q", answers=["1/2"], source="own")
    texts = [r"\boxed{0.5}", r"\boxed{\frac12}", r"\boxed{3}", r"\boxed{3.0}", r"\boxed{4}", "?"]
    assert answers_of(question, texts) == Answers(2, 6, (("3", 2), ("4", 1)))
