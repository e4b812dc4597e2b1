"""Verifiers of the user: what they are called with, and every way in which one can fail."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from prompt_aug.grading import Extraction, pool
from prompt_aug.grading.pool import GraderError
from prompt_aug.questions import from_row, to_row
from prompt_aug.verifiers import Verified, VerifierLimits, Verifiers, source_digest, verifier_row
from prompt_aug.verifiers.worker import verdict

pytestmark = pytest.mark.config  # starts, and kills, worker processes

LIMITS = VerifierLimits(cpu_seconds=0.5, wall_seconds=60.0, memory_gib=0.05)
FUNCTIONS = "awaited letters text_part hangs says prints leaks too_big raises dies imports".split()


@pytest.fixture(scope="module")
def verifiers() -> Iterator[Verifiers]:
    functions = {name: f"own_verifiers.{name}" for name in FUNCTIONS}
    made = Verifiers(functions | {"verl": "own_verifiers.compute_score"}, LIMITS)
    yield made
    made.close()


def ask(verifiers: Verifiers, source: str, response: str = "a 7", **columns: Any) -> Verified:
    """Grade over the way that a row takes: the user's file, ours, verl's loader."""
    given = {
        "data_source": source,
        "prompt": [{"role": "user", "content": "Seven?"}],
        "reward_model": {"ground_truth": "7"},
        **columns,
    }
    return verifiers.grade(response, verifier_row(to_row(from_row(given))), Extraction())


def test_the_columns_of_the_file_reach_the_function(verifiers: Verifiers) -> None:
    gold = {"letters": ["a", "b", "c", "d"]}
    graded = ask(verifiers, "letters", reward_model={"ground_truth": gold}, count=2)
    assert (graded.status, graded.score, graded.extracted) == ("wrong", 0.5, "a")
    assert graded.parts == {"length": 3.0}
    more = {"reward_model": {"ground_truth": gold}, "count": 2, "extra_info": None}
    assert ask(verifiers, "letters", "ab", **more).correct


def test_verls_signature_as_it_is_and_an_async_function(verifiers: Verifiers) -> None:
    for least, score in ((3, 1.0), (4, -1.0)):
        graded = ask(verifiers, "verl", extra_info={"least": least})
        assert (graded.score, graded.correct) == (score, score == 1.0)
    assert [ask(verifiers, "awaited", text).score for text in ("7", "8")] == [1.0, 0.0]


def test_a_function_of_a_file_with_arguments(tmp_path: Path) -> None:
    """As verl's custom_reward_function, whose arguments override those of the call."""
    file = tmp_path / "my rewards (1).py"
    file.write_text(
        "def score(data_source, solution_str, ground_truth, extra_info=None, right=1, names=()):\n"
        "    return {'score': right * (solution_str == ground_truth), 'names': len(names)}\n"
    )
    path = f"{file}:score(right=0.5, names=['a', ')'])"
    made = Verifiers({"s": path}, LIMITS)
    assert [ask(made, "s", text).score for text in ("7", "8")] == [0.5, 0.0]
    assert ask(made, "s", "7").parts == {"names": 2.0}
    made.close()
    before = source_digest(path)
    file.write_text(file.read_text() + "\n")
    assert source_digest(path) != before
    for given in ("x=y", "1", "**{'right': 1}"):  # no literal, no name
        with pytest.raises(GraderError, match=r"score\(.*\)"):
            source_digest(f"{file}:score({given})")
    with pytest.raises(GraderError, match="no such file"):
        source_digest(f"{tmp_path}/other.py:score")


def test_parts_of_a_result(verifiers: Verifiers) -> None:
    graded = ask(verifiers, "text_part", "it is \\boxed{8}")
    assert (graded.score, graded.correct, graded.extracted) == (1.0, False, "8")
    assert graded.parts == {"a_b_c": 1.0}


def test_an_accuracy_below_one_is_wrong_and_keeps_its_score() -> None:
    """verl's reward functions may return any, such as the share of passed tests."""
    for acc, status in ((0.5, "wrong"), (True, "correct"), (1.0, "correct")):
        made = verdict({"score": 0.5, "acc": acc})
        assert (made["status"], made["score"]) == (status, 0.5)


@pytest.mark.parametrize(
    "response", ["nan", "text", "billion", "googol", "none", "no score", "nan part"]
)
def test_a_result_that_is_no_score_is_worth_nothing(verifiers: Verifiers, response: str) -> None:
    graded = ask(verifiers, "says", response)
    assert (graded.status, graded.score, graded.correct) == ("bad_result", 0.0, False)
    assert graded.detail


@pytest.mark.parametrize(
    ("name", "status", "detail"),
    [
        ("hangs", "timeout", "cpu"),
        ("too_big", "error", "memory limit"),
        ("raises", "error", "SystemExit"),
        ("dies", "error", "SIGKILL"),
        ("letters", "error", "TypeError"),  # a gold that it does not know
    ],
)
def test_a_function_that_fails_has_a_status_and_the_next_is_served(
    verifiers: Verifiers, name: str, status: str, detail: str
) -> None:
    graded = ask(verifiers, name)
    assert (graded.status, graded.score, graded.parts) == (status, 0.0, {})
    assert detail in graded.detail
    assert ask(verifiers, "prints").score == 0.25  # what it prints is no reply


def test_a_function_that_sleeps_ends_at_the_wall_limit() -> None:
    impatient = Verifiers({"s": "own_verifiers.sleeps"}, LIMITS.model_copy(update=SHORT))
    graded = ask(impatient, "s")
    impatient.close()
    assert (graded.status, graded.detail, graded.score) == ("timeout", "wall", 0.0)


@pytest.mark.parametrize("name", ["forks_and_resets", "leaves_a_program"])
def test_what_a_function_starts_ends_with_it_and_the_next_is_served(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "_SLACK_SECONDS", 1.0)
    paths = {"s": f"own_verifiers.{name}", "prints": "own_verifiers.prints"}
    impatient = Verifiers(paths, LIMITS.model_copy(update=SHORT))
    for _ in range(3):
        assert ask(impatient, "s").status == "timeout"
    assert ask(impatient, "prints").score == 0.25
    assert not [p for p in psutil.process_iter(["cmdline"]) if p.info["cmdline"] == LEFT]
    impatient.close()


@pytest.mark.parametrize(
    ("name", "statuses"),
    [
        ("writes_everywhere", {"error"}),
        ("writes_later", {"wrong", "error"}),  # the second if it writes in time
        ("leaves_a_thread_that_answers", {"wrong", "error"}),
        ("leaves_a_process_that_answers", {"wrong", "error"}),
        ("never_returns", {"correct", "error"}),  # its own reply is all that it can forge
        ("forges_nonsense", {"error"}),
        ("changes_the_process", {"wrong"}),
        ("closes", {"error"}),
        ("replies_without_end", {"error"}),
    ],
)
def test_no_reply_is_that_of_another_call(
    name: str, statuses: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROMPT_AUG_GRADING_WORKERS", "1")
    paths = {"hostile": f"own_verifiers.{name}", "even": "own_verifiers.even"}
    shared = Verifiers(paths, LIMITS.model_copy(update={"wall_seconds": 20.0}))
    for _ in range(2):
        assert ask(shared, "hostile").status in statuses
        for gold in (1, 2, 3, 4):
            graded = ask(shared, "even", f"it is {gold}", reward_model={"ground_truth": str(gold)})
            wanted = ("wrong", 0.5) if gold % 2 else ("correct", 1.0)
            assert (graded.status, graded.score) == wanted
            assert graded.extracted == f"is {gold}"[-3:]
    shared.close()


LEFT = ["sleep", "613"]
SHORT = {"wall_seconds": 0.3}


def test_a_leak_costs_no_response_its_score(verifiers: Verifiers) -> None:
    """Four calls fill the memory of a process; the fifth is made again in a fresh one."""
    assert [ask(verifiers, "leaks").score for _ in range(12)] == [1.0] * 12


def test_imports_inside_a_function_are_made_once(verifiers: Verifiers) -> None:
    assert [ask(verifiers, "imports").score for _ in range(2)] == [1.0, 1.0]


def test_a_decorator_that_hides_verls_parameters_is_refused() -> None:
    """Called by position, its response would be the function's data_source."""
    hidden = Verifiers({"s": "own_verifiers.hidden"}, LIMITS)
    with pytest.raises(GraderError, match=r"functools\.wraps"):
        ask(hidden, "s")
    hidden.close()


@pytest.mark.parametrize("path", ["own_verifiers.nothing", "nowhere.check", "check"])
def test_a_function_that_cannot_be_loaded_is_named(path: str) -> None:
    missing = Verifiers({"s": path}, LIMITS)
    with pytest.raises(GraderError, match=rf"verifiers\.DATA_SOURCE={path}: .*PYTHONPATH"):
        ask(missing, "s")
    missing.close()


def test_the_record_has_the_used_functions_and_the_digest_of_their_file(
    verifiers: Verifiers, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert verifiers.record({"other"}) == {}
    record = verifiers.record({"verl", "other"})
    assert record["functions"] == {"verl": "own_verifiers.compute_score"}
    assert record["limits"]["cpu_seconds"] == 0.5
    module = tmp_path / "graded_by.py"
    monkeypatch.syspath_prepend(tmp_path)
    digests = set()
    for text in ("def check(a, b, c): return 1", "def check(a, b, c): return 0"):
        module.write_text(text)
        digests.add(source_digest("graded_by.check"))
    assert len(digests) == 2
    with pytest.raises(GraderError, match="no module nowhere"):
        source_digest("nowhere.check")
