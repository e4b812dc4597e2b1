"""Solver and judge: hand values, and planted faults on a scripted solver."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from scripted_endpoint import Reply, chat, serving

from prompt_aug.endpoint.budget import Budget
from prompt_aug.endpoint.client import Endpoint
from prompt_aug.questions import make_question
from prompt_aug.rephrase.candidates import Candidate, usable
from prompt_aug.rephrase.generate.client import Stage
from prompt_aug.rephrase.generate.prompts import load_prompt
from prompt_aug.rephrase.generate.store import Sampling
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
        ("Both are the same.", "doubtful"),
        ("{" * 5000, "doubtful"),
        ("[" * 5000 + "{}", "doubtful"),
    ],
)
def test_a_judge_accepts_only_with_a_whole_verdict(response: str, verdict: str) -> None:
    after = judged(DOUBTFUL, response)
    assert (after.verdict, after.path) == (verdict, "judge")
    assert usable([after], ("accept", "doubtful")) == ([after] if verdict == "accept" else [])


def scripted_solver(number: int, body: dict[str, Any]) -> Reply:
    """Knows "F(a, b)" is a + b; right with a chance that depends on the text, else near it."""
    asked = body["messages"][0]["content"].split("\n")[0]
    rng = random.Random(asked)
    a, b = (int(part) for part in asked.split("F(")[1].split(")")[0].split(","))
    skill = rng.uniform(0.5, 0.95)
    texts = []
    for _ in range(body["n"]):
        value = a + b if rng.random() < skill else a + b + rng.choice([-3, -2, -1, 1, 2, 3, 10])
        texts.append(f"So it is \\boxed{{{value}}}.")
    return Reply(chat(texts))


def test_planted_faults_stay_doubtful_and_good_ones_are_accepted(tmp_path: Path) -> None:
    """80 questions, each with a good and an edited rephrasing, 12 responses to each text."""
    rng, sampling = random.Random(5), Sampling(model="solver")
    with serving(scripted_solver) as server:
        endpoint = Endpoint(base_url=server.url, per_request=12)
        stage = Stage("solver", tmp_path, endpoint, load_prompt("solve"), sampling)
        plan = []
        for i in range(80):
            a, b = rng.randint(10, 99), rng.randint(10, 99)
            question = make_question(text=f"{i} F({a},{b})", answers=[str(a + b)], source="own")
            texts = [f"{i} reworded F({b},{a})", f"{i} edited F({a + rng.randint(4, 9)},{b})"]
            requests = [stage.request(question.uid, t, samples=12) for t in (question.text, *texts)]
            plan.append((question, requests))
        stage.send([r for _, requests in plan for r in requests], Budget())
    flagged = {"good": 0, "edited": 0}
    for question, requests in plan:
        own, *others = (
            answers_of(question, stage.store.responses(request)) for request in requests
        )
        for kind, answers in zip(flagged, others, strict=True):
            flagged[kind] += solved(DOUBTFUL, own, answers, 6).verdict == "doubtful"
    assert flagged["edited"] == 80
    assert flagged["good"] <= 0.2 * 80


def test_the_answers_of_a_text_are_graded_and_grouped() -> None:
    question = make_question(text="q", answers=["1/2"], source="own")
    texts = [r"\boxed{0.5}", r"\boxed{\frac12}", r"\boxed{3}", r"\boxed{3.0}", r"\boxed{4}", "?"]
    assert answers_of(question, texts) == Answers(2, 6, (("3", 2), ("4", 1)))
