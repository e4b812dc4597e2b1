"""Denominators, files, hub errors, and answers as texts."""

from pathlib import Path

import datasets
import pytest

from eval.benchmarks import (
    KNOWN,
    BenchmarkRequest,
    answer_texts,
    load,
    parse_request,
    suite_requests,
)
from eval.errors import EvaluationError
from prompt_aug.questions import make_question, write_parquet


@pytest.fixture
def parquet(tmp_path: Path) -> Path:
    questions = [
        make_question(text=f"What is {i} + 1?", answers=(str(i + 1),), source="toy")
        for i in range(7)
    ]
    write_parquet(questions, tmp_path / "toy.parquet")
    return tmp_path / "toy.parquet"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("toy=a/b.parquet", BenchmarkRequest(name="toy", path="a/b.parquet")),
        ("toy=a/b.parquet:4", BenchmarkRequest(name="toy", path="a/b.parquet", samples=4)),
        ("toy=a:b/c", BenchmarkRequest(name="toy", path="a:b/c")),
        ("aime25", BenchmarkRequest(name="aime25")),
    ],
)
def test_a_request_is_read(text: str, wanted: BenchmarkRequest) -> None:
    assert parse_request(text) == wanted


@pytest.mark.parametrize("text", ["toy", "=x", "toy=", "toy=x:0", "../toy=x", "a/b=x", ".a=x"])
def test_a_bad_request_is_refused(text: str) -> None:
    with pytest.raises(EvaluationError):
        parse_request(text)


def test_the_real_suite_has_its_denominators(shared_data: Path) -> None:
    requests = suite_requests(shared_data / "evaluation_suite")
    sizes = {}
    for request in requests:
        benchmark = load(request, greedy=True)
        sizes[request.name] = len(benchmark.questions)
        assert benchmark.samples == 1
        assert all(question.answers for question in benchmark.questions)
    assert sizes == {"aime24": 30, "amc": 83, "math500": 500, "minerva": 272, "olympiadbench": 675}
    assert sum(sizes.values()) == 1560


def test_float_answers_of_the_real_amc_file_are_whole_numbers(shared_data: Path) -> None:
    request = BenchmarkRequest(name="amc", path=str(shared_data / "evaluation_suite" / "amc"))
    assert load(request, greedy=True).questions[0].answers == ("142",)


def test_a_known_name_with_another_number_of_questions_is_refused(parquet: Path) -> None:
    with pytest.raises(EvaluationError, match=r"500 questions.*has 7"):
        load(BenchmarkRequest(name="math500", path=str(parquet)), greedy=True)
    assert len(load(BenchmarkRequest(name="toy", path=str(parquet)), greedy=True).questions) == 7


def test_a_part_keeps_the_size_of_the_whole_and_has_another_digest(parquet: Path) -> None:
    request = BenchmarkRequest(name="toy", path=str(parquet))
    whole = load(request, greedy=True)
    part = load(request, greedy=True, max_questions=3)
    assert (len(part.questions), part.size) == (3, 7)
    assert part.questions == whole.questions[:3]
    assert part.sha256 != whole.sha256


def test_samples_are_those_asked_for_else_the_tables_else_one(
    shared_data: Path,
) -> None:
    path = str(shared_data / "evaluation_suite" / "aime")
    request = BenchmarkRequest(name="aime24", path=path)
    assert load(request, greedy=True).samples == 1
    assert load(request, greedy=False).samples == KNOWN["aime24"].samples == 32
    asked = BenchmarkRequest(name="aime24", path=path, samples=5)
    assert load(asked, greedy=False).samples == 5


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (142.0, ("142",)),
        (0.5, ("0.5",)),
        (7, ("7",)),
        (" 9.6\n", ("9.6",)),
        (["9.6\n", "9.6", "10"], ("9.6", "10")),
        ("", ()),
        (None, ()),
        ([], ()),
    ],
)
def test_answers_become_texts(value: object, wanted: tuple[str, ...]) -> None:
    assert answer_texts(value) == wanted


def test_an_unreachable_hub_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ConnectionError("no route")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(EvaluationError, match=r"no route.*--benchmark aime25=PATH"):
        load(BenchmarkRequest(name="aime25"), greedy=True)


def gpqa_rows(count: int) -> datasets.Dataset:
    return datasets.Dataset.from_list(
        [
            {
                "Question": f"Question {i}?",
                "Correct Answer": f"right {i}",
                **{f"Incorrect Answer {j}": f"wrong {i} {j}" for j in (1, 2, 3)},
            }
            for i in range(count)
        ]
    )


def test_gpqa_options_have_a_fixed_order_that_hides_the_right_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: gpqa_rows(198))
    benchmark = load(BenchmarkRequest(name="gpqa-diamond"), greedy=True)
    assert benchmark == load(BenchmarkRequest(name="gpqa-diamond"), greedy=True)
    letters = []
    for index, question in enumerate(benchmark.questions):
        (letter,) = question.answers
        assert f"({letter}) right {index}\n" in question.text
        letters.append(letter)
    counts = {letter: letters.count(letter) for letter in "ABCD"}
    # Uniform over four places: 49.5 +- 6.1 each; a fixed place would have 198.
    assert all(25 < count < 75 for count in counts.values()), counts


def test_a_folder_without_the_needed_columns_is_refused(tmp_path: Path) -> None:
    datasets.Dataset.from_list([{"prompt": "x", "answer": "1"}]).save_to_disk(str(tmp_path / "d"))
    with pytest.raises(EvaluationError, match="columns"):
        load(BenchmarkRequest(name="toy", path=str(tmp_path / "d")), greedy=True)


def test_a_row_without_an_answer_is_refused_with_its_number(tmp_path: Path) -> None:
    rows = [{"problem": "x", "answer": "1"}, {"problem": "y", "answer": " "}]
    datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "d"))
    with pytest.raises(EvaluationError, match="row 1"):
        load(BenchmarkRequest(name="toy", path=str(tmp_path / "d")), greedy=True)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="does not exist"):
        load(BenchmarkRequest(name="toy", path=str(tmp_path / "none.parquet")), greedy=True)
