"""Evaluation with a verifier of the user: scores, what is recorded, and grading again."""

import copy
from collections.abc import Callable

import pytest
from fake_engine import FakeEngine, Runner

from eval.benchmarks import LoadedBenchmark
from eval.score import regrade
from prompt_aug.base.files import read_json, read_lines, write_json

pytestmark = pytest.mark.config  # starts worker processes

OWN = {"toy": "own_verifiers.even"}


def test_scores_records_and_grades_again(
    run: Runner, make_benchmark: Callable[..., LoadedBenchmark]
) -> None:
    """Golds 1 to 6: the grader finds none of them, the verifier takes the three even ones."""
    benchmark, engine = make_benchmark(), FakeEngine(lambda _: "\\boxed{77}")
    entry = run(engine, benchmark)["benchmarks"]["toy"]
    assert entry["accuracy"] == 0.0
    assert not {"verifiers", "parts"} & {*entry, *entry["settings"]}
    assert run.items[0].is_done()

    entry = run(engine, benchmark, verifiers=OWN)["benchmarks"]["toy"]
    (item,) = run.items
    assert len(engine.asked) == 6  # the same responses, graded again
    assert entry["accuracy"] == 0.5
    assert entry["accuracy_under"] == {"strict": 0.5, "default": 0.5}
    assert entry["parts"] == {"score": 0.75}
    assert entry["settings"]["verifiers"]["functions"] == {"toy": "own_verifiers.even"}
    lines = read_lines(item.folder.grades)[1:]
    assert [line["parts"]["score"] for line in lines] == [0.5, 1.0] * 3
    assert {line["extracted"] for line in lines} == {"77}"}
    assert item.is_done()

    older = copy.deepcopy(entry)
    older["settings"]["verifiers"]["sha256"] = {"own_verifiers.even": "older"}
    write_json(item.folder.scores, older)
    assert not item.is_done()  # scores of another version of the function
    made = regrade(item.evaluation)["benchmarks"]["toy"]
    assert made == entry == read_json(item.folder.scores)
    assert item.is_done()
