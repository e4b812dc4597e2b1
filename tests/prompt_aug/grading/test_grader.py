"""The public grader: statuses, golds, templates, threads, forks."""

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from prompt_aug.grading import Extraction, Grade, grade, grade_answer, grade_many, grader
from prompt_aug.grading.pool import PoolSettings, WorkerPool

NEEDS_ALGEBRA = ("(x+3)(x-3)", "x^2-9")


@pytest.fixture(autouse=True, scope="module")
def quick_pool() -> Iterator[None]:
    """One worker that gives up early: the time-outs below are endless at any limit."""
    quick = WorkerPool(PoolSettings(workers=1, cpu_seconds=0.4))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grader, "default_pool", lambda: quick)
        yield
    quick.close()


@pytest.mark.parametrize(
    ("response", "gold", "status"),
    [
        (r"so \boxed{5}", "5", "correct"),
        (r"so \boxed{6}", "5", "wrong"),
        (r"\boxed{x^2-1}", "(x+1)(x-1)", "correct"),
        (r"\boxed{x^2+1}", "(x+1)(x-1)", "wrong"),
        ("no idea", "5", "no_answer"),
        (r"\boxed{}", "5", "no_answer"),
        (r"\boxed{\frac{}{}}", "5", "unparsable"),
        (r"\boxed{" + "1" * 1001 + "}", "5", "too_long"),
        (r"\boxed{" + "{" * 41 + "5" + "}" * 41 + "}", "5", "too_long"),
        (r"\boxed{9^{9^{9^9}}}", "5", "too_long"),
        (r"\boxed{((9!)!)!}", "5", "too_long"),
        (r"\boxed{\prod_{k=1}^{9999} k^{k}}", "5", "timeout"),
    ],
)
def test_statuses(response: str, gold: str, status: str) -> None:
    result = grade(response, gold)
    assert result.status == status
    assert result.correct == (status == "correct")


def test_a_failing_worker_is_an_error_and_not_a_wrong_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing = SimpleNamespace(ask=lambda _: {"status": "error", "detail": "memory limit"})
    monkeypatch.setattr(grader, "default_pool", lambda: failing)
    result = grade_answer("(x+7)(x-7)", "x^2-49")
    assert (result.status, result.detail) == ("error", "memory limit")


def test_a_fault_of_the_grader_itself_is_an_error_with_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(_text: str) -> str:
        raise IndexError("a bug")

    monkeypatch.setattr(grader, "canonical", broken)
    result = grade_answer("5", "6")
    assert (result.status, result.detail) == ("error", "internal: IndexError: a bug")


def test_a_timeout_on_one_gold_does_not_hide_the_next() -> None:
    slow = r"\prod_{k=1}^{9998} k^{k}"
    assert grade_answer(NEEDS_ALGEBRA[0], [slow, NEEDS_ALGEBRA[1]]).correct


def test_any_gold_may_match_and_blank_ones_are_ignored() -> None:
    assert grade_answer("7", ["6", " ", "7\n"]).correct
    assert not grade_answer("8", ["6", "7"]).correct
    assert grade_answer("6, 7", "\\boxed{6}\n\\boxed{7}").correct


@pytest.mark.parametrize(
    ("gold", "message"),
    [*((gold, "gold is empty") for gold in ("", "  ", [], ["", "\n"])), ([5], "gold must be text")],
)
def test_an_unusable_gold_is_refused(gold: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        grade_answer("5", gold)


def test_a_verdict_does_not_depend_on_earlier_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """The responses of a group are often equal; the limit of calls counts known verdicts too."""

    def ask(pair: dict[str, str]) -> dict[str, str]:
        same = Counter(pair["gold"]) == Counter(pair["pred"])
        return {"status": "correct" if same else "wrong", "detail": ""}

    monkeypatch.setattr(grader, "default_pool", lambda: SimpleNamespace(ask=ask))
    gold = ", ".join(rf"\int_0^{n} f(x)dx" for n in range(1, 8))
    pred = ", ".join(rf"\int_0^{n} dxf(x)" for n in range(7, 0, -1))
    assert len({grade_answer(pred, gold).status for _ in range(4)}) == 1


def test_settings_of_the_extraction() -> None:
    tagged = "<result>5</result> <answer>6</answer>"
    assert grade(tagged, "5", extraction=Extraction(answer_tag="result")).correct
    assert grade("<answer>6</answer>", "6").extracted == "6"
    assert grade("The answer is 5.", "5").correct
    assert grade("The answer is 5.", "5", extraction=Extraction(strict=True)).status == "no_answer"
    assert grade("we get 5", "5").status == "no_answer"
    assert grade("we get 5", "5", extraction=Extraction(last_number=True)).correct


def test_grade_many_keeps_the_order_and_reports_progress() -> None:
    seen: list[Grade] = []
    pairs = [(rf"\boxed{{{n}}}", str(n if n % 2 else n + 1)) for n in range(50)]
    results = grade_many(
        [*pairs, (rf"\boxed{{{NEEDS_ALGEBRA[0]}}}", NEEDS_ALGEBRA[1])], on_grade=seen.append
    )
    assert [result.correct for result in results] == [*(n % 2 == 1 for n in range(50)), True]
    assert len(seen) == 51


def test_many_threads_and_coroutines_at_once() -> None:
    pairs = [(f"(x+{n})(y-{n})", f"xy-{n}x+{n}y-{n * n}") for n in range(2, 14)]
    with ThreadPoolExecutor(24) as threads:
        assert all(r.correct for r in threads.map(lambda pair: grade_answer(*pair), pairs))

    async def together() -> list[Grade]:
        return await asyncio.gather(*(asyncio.to_thread(grade_answer, *pair) for pair in pairs))

    assert all(result.correct for result in asyncio.run(together()))


@pytest.mark.config  # starts worker processes
def test_a_fork_grades_with_workers_of_its_own() -> None:
    assert grade_answer(*NEEDS_ALGEBRA).correct
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        outcome = b"0"
        try:
            outcome = b"1" if grade_answer("(x+5)(x-5)", "x^2-25").correct else b"0"
        finally:
            os.write(write, outcome)
            os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 1) == b"1"
    assert grade_answer("(x+6)(x-6)", "x^2-36").correct
