"""The solver check: hand values, and planted faults on a scripted solver."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from scripted_endpoint import Reply, chat, serving

from prompt_aug.questions import make_question
from prompt_aug.rephrase.candidates import Candidate
from prompt_aug.rephrase.generate.budget import Budget
from prompt_aug.rephrase.generate.client import Endpoint, Generation
from prompt_aug.rephrase.generate.store import Sampling, Store
from prompt_aug.rephrase.solver import (
    Answers,
    agreement,
    answers_of,
    fisher,
    judge,
    solve_requests,
)

CANDIDATE = Candidate(uid="u", text="x", verdict="accept", reasons=())


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ((3, 4, 0, 4), 4 / 56),  # C(4,3) / C(8,3)
        ((1, 1, 0, 1), 1 / 2),
        ((2, 4, 2, 4), (6 * 6 + 4 * 4 + 1) / 70),
        ((0, 4, 3, 4), 1.0),
    ],
)
def test_fishers_probability(table: tuple[int, int, int, int], expected: float) -> None:
    assert fisher(*table) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("question", "answers", "verdict"),
    [
        (Answers(8, 8, ()), Answers(0, 8, (("12", 8),)), "doubtful"),
        (Answers(8, 8, ()), Answers(0, 8, tuple((str(i), 1) for i in range(8))), "accept"),
        (Answers(8, 8, ()), Answers(5, 8, (("12", 3),)), "accept"),
        (Answers(1, 8, (("12", 7),)), Answers(0, 8, (("12.0", 8),)), "accept"),
        (Answers(3, 8, (("12", 5),)), Answers(1, 8, (("13", 7),)), "doubtful"),
        (Answers(8, 8, ()), Answers(0, 2, (("12", 2),)), "accept"),
        (Answers(0, 0, ()), Answers(0, 8, (("12", 8),)), "accept"),
    ],
)
def test_only_a_new_dominant_wrong_answer_is_doubted(
    question: Answers, answers: Answers, verdict: str
) -> None:
    judged = judge(CANDIDATE, question, answers)
    assert judged.verdict == verdict
    assert {reason.filter for reason in judged.reasons} <= {"solver"}


def test_agreement_is_with_the_gold_and_with_the_most_frequent_answer() -> None:
    found = agreement(Answers(1, 8, (("12", 7),)), Answers(2, 8, (("12", 6),)))
    assert found["gold"][0] == 0.25  # type: ignore[index]
    assert found["most_frequent"][0] == 0.75  # type: ignore[index]
    nothing = agreement(Answers(1, 8, ()), Answers(0, 0, ()))
    assert nothing == {"gold": [0, 0, 1], "most_frequent": [0, 0, 1], "responses": 0}


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


def test_planted_faults_are_recalled_and_good_ones_are_not_flagged(tmp_path: Path) -> None:
    """80 questions, each with a good and an edited rephrasing, 12 responses to each text."""
    rng, sampling = random.Random(5), Sampling(model="solver")
    plan = []
    for i in range(80):
        a, b = rng.randint(10, 99), rng.randint(10, 99)
        question = make_question(text=f"{i} F({a},{b})", answers=[str(a + b)], source="own")
        texts = [f"{i} reworded F({b},{a})", f"{i} edited F({a + rng.randint(4, 9)},{b})"]
        requests = solve_requests(question, [question.text, *texts], sampling, 12)
        plan.append((question, requests))
    store = Store(tmp_path)
    with serving(scripted_solver) as server:
        endpoint = Endpoint(base_url=server.url, per_request=12)
        run = Generation(store, endpoint, Budget()).run([r for _, rs in plan for r in rs])
        asyncio.run(run)
    flagged = {"good": 0, "edited": 0}
    for question, requests in plan:
        own, *others = (answers_of(question, request, store) for request in requests)
        for kind, answers in zip(flagged, others, strict=True):
            flagged[kind] += judge(CANDIDATE, own, answers).verdict == "doubtful"
    assert flagged["edited"] >= 0.9 * 80
    assert flagged["good"] <= 0.05 * 80


def test_the_answers_of_a_text_are_graded_and_grouped(tmp_path: Path) -> None:
    question = make_question(text="q", answers=["1/2"], source="own")
    request = solve_requests(question, ["q"], Sampling(model="solver"), 6)[0]
    texts = [r"\boxed{0.5}", r"\boxed{\frac12}", r"\boxed{3}", r"\boxed{3.0}", r"\boxed{4}", "?"]
    store = Store(tmp_path)
    store.add(
        {"key": request.key, "sample": i, "status": "answer", "text": t}
        for i, t in enumerate(texts)
    )
    assert answers_of(question, request, store) == Answers(2, 6, (("3", 2), ("4", 1)))
