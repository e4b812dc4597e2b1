"""Evaluation with a verifier of the user: scores, what is recorded, and grading again."""

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_engine import FakeEngine, session

from eval.benchmarks import LoadedBenchmark
from eval.checkpoints import from_model
from eval.evaluate import Evaluation, Item
from eval.score import regrade
from eval.settings import Settings
from prompt_aug.base.files import read_json, read_lines, write_json
from prompt_aug.grading.pool import GraderError

pytestmark = pytest.mark.config  # starts worker processes

OWN = Settings(max_tokens=64, dtype="float32", verifiers={"toy": "own_verifiers.even"})


def evaluate(
    root: Path, model: Path, benchmark: LoadedBenchmark, settings: Settings, engine: FakeEngine
) -> tuple[Item, dict]:
    evaluation = Evaluation(root, settings, [benchmark])
    evaluation.prepare()
    checkpoint = dataclasses.replace(from_model(str(model)), step=1)
    with session(engine, settings) as held:
        (item,) = evaluation.items(checkpoint)
        return item, evaluation.run(item, held)["benchmarks"]["toy"]


def test_scores_records_and_grades_again(
    tmp_path: Path, model: Path, make_benchmark: Callable[..., LoadedBenchmark]
) -> None:
    """Golds 1 to 6: the grader finds none of them, the verifier takes the three even ones."""
    benchmark, engine = make_benchmark(), FakeEngine(lambda _: "\\boxed{77}")
    plain = OWN.replaced(verifiers=None)
    item, entry = evaluate(tmp_path, model, benchmark, plain, engine)
    assert entry["accuracy"] == 0.0
    assert not {"verifiers", "parts"} & {*entry, *entry["settings"]}
    assert item.is_done()

    item, entry = evaluate(tmp_path, model, benchmark, OWN, engine)
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


def test_a_missing_function_is_named_before_an_engine_starts(
    tmp_path: Path, model: Path, make_benchmark: Callable[..., LoadedBenchmark]
) -> None:
    engine = FakeEngine(lambda _: "1")
    settings = OWN.replaced(verifiers={"toy": "own_verifiers.nothing"})
    with pytest.raises(GraderError, match=r"own_verifiers\.nothing: .* no attribute"):
        evaluate(tmp_path, model, make_benchmark(), settings, engine)
    assert engine.starts == 0
    unused = OWN.replaced(verifiers={"another": "own_verifiers.nothing"})
    evaluate(tmp_path, model, make_benchmark(), unused, engine)  # no question of that source
