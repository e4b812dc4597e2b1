"""Denominators, files, hub errors, and answers as texts."""

import re
from pathlib import Path

import datasets
import pytest
import yaml

from eval.benchmarks import (
    BenchmarkRequest,
    answer_texts,
    known_benchmark,
    known_benchmarks,
    load,
    multiple_choice,
    parse_request,
    suite_requests,
)
from eval.errors import EvaluationError
from eval.score import grade_samples
from prompt_aug.grading import grade
from prompt_aug.prepare.sources import SourceError
from prompt_aug.questions import make_question, write_parquet
from prompt_aug.templates import load_bank


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
    assert load(request, greedy=False).samples == known_benchmark("aime24").samples == 32
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
        raise SourceError("no route")

    monkeypatch.setattr("eval.benchmarks.loading.load_rows", fail)
    with pytest.raises(EvaluationError, match=r"no route.*--benchmark aime25=PATH"):
        load(BenchmarkRequest(name="aime25"), greedy=True)


def test_every_known_benchmark_is_a_whole_record() -> None:
    known = known_benchmarks()
    sizes = {name: benchmark.questions for name, benchmark in known.items()}
    assert sizes == {
        "aime24": 30,
        "aime25": 30,
        "amc": 83,
        "amc23": 40,
        "gpqa-diamond": 198,
        "gsm8k": 1319,
        "math-beyond": 181,
        "math500": 500,
        "minerva": 272,
        "olympiadbench": 675,
    }
    assert all(benchmark.hub and benchmark.licence for benchmark in known.values())


def test_every_hub_data_set_is_held_to_a_revision_or_to_copies() -> None:
    for name, benchmark in known_benchmarks().items():
        if benchmark.revision is not None:
            assert re.fullmatch("[0-9a-f]{40}", benchmark.revision), name
        held = benchmark.digests(local=False) or benchmark.revision
        assert held, f"{name} would load whatever the hub has"
        assert all(re.fullmatch("[0-9a-f]{64}", d) for d in benchmark.digests(local=True)), name


def test_the_revision_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = {}

    def note(source: str, *_: object, revision: str | None, **__: object) -> None:
        asked[source] = revision
        raise SourceError("no route")

    monkeypatch.setattr("eval.benchmarks.loading.load_rows", note)
    with pytest.raises(EvaluationError):
        load(BenchmarkRequest(name="math500"), greedy=True)
    assert asked == {"HuggingFaceH4/MATH-500": known_benchmark("math500").revision}


def numbered(count: int, answer: str = "7") -> datasets.Dataset:
    return datasets.Dataset.from_list(
        [{"problem": f"Question {i}?", "question": f"Question {i}?", "answer": answer}
         for i in range(count)]
    )  # fmt: skip


@pytest.mark.parametrize("name", ["aime25", "olympiadbench"])  # held to its file, to the copies
def test_a_changed_hub_data_set_of_the_same_size_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = numbered(known_benchmark(name).questions)
    monkeypatch.setattr("eval.benchmarks.loading.load_rows", lambda *_, **__: rows)
    with pytest.raises(EvaluationError, match=f"{name}: the content of hub:.* have changed"):
        load(BenchmarkRequest(name=name), greedy=True)


def test_a_changed_copy_of_the_same_size_is_refused(tmp_path: Path, shared_data: Path) -> None:
    # In memory: a map of the shared folder's rows would leave a cache file beside them.
    rows = datasets.load_from_disk(str(shared_data / "evaluation_suite" / "aime")).to_list()
    datasets.Dataset.from_list(rows[::-1]).save_to_disk(str(tmp_path / "backwards"))
    rows[7] = {**rows[7], "answer": "0"}
    datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "changed"))
    load(BenchmarkRequest(name="aime24", path=str(tmp_path / "backwards")), greedy=True)
    with pytest.raises(EvaluationError, match="its questions or answers have changed"):
        load(BenchmarkRequest(name="aime24", path=str(tmp_path / "changed")), greedy=True)
    load(BenchmarkRequest(name="mine", path=str(tmp_path / "changed")), greedy=True)


def own(
    folder: Path, rows: str = "question,answer\n1 + 1?,2\n2 + 2?,4\n", **changes: object
) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "mine.csv").write_text(rows)
    record = {"questions": 2, "file": "mine.csv", "samples": 3, **changes}
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in record.items() if v is not None}))
    return path


def test_a_users_own_benchmark_is_a_yaml_file_in_their_folder(tmp_path: Path) -> None:
    request = parse_request(f"mine={own(tmp_path / 'far')}")
    benchmark = load(request, greedy=False)
    assert [(q.text, q.answers) for q in benchmark.questions] == [
        ("1 + 1?", ("2",)),
        ("2 + 2?", ("4",)),
    ]
    assert (benchmark.samples, benchmark.name) == (3, "mine")
    pinned = own(tmp_path / "far", sha256=benchmark.sha256)
    load(parse_request(f"mine={pinned}"), greedy=False)
    changed = own(
        tmp_path / "far", "question,answer\n1 + 1?,2\n2 + 2?,5\n", sha256=benchmark.sha256
    )
    with pytest.raises(EvaluationError, match="have changed"):
        load(parse_request(f"mine={changed}"), greedy=False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"question": 2}, "did you mean questions"),
        ({"questions": 3}, "has 3 questions, but .* has 2"),
        ({"questions": 0}, "questions is 0"),
        ({"samples": "many"}, "samples is 'many'"),
        ({"file": None}, "one of hub and file"),
        ({"hub": "a/b"}, "one of hub and file"),
        ({"file": "none.csv"}, "does not exist"),
        ({"options": ["x"]}, "options need the answer's column"),
    ],
)
def test_a_wrong_record_is_refused(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        load(BenchmarkRequest(name="mine", path=str(own(tmp_path, **changes))), greedy=True)


def test_an_answer_is_what_follows_the_marker_for_the_last_time(tmp_path: Path) -> None:
    rows = 'question,answer\na?,"first #### 1, so #### 42"\nb?,#### 7\n'
    path = own(tmp_path, rows, answer_from="####")
    questions = load(BenchmarkRequest(name="mine", path=str(path)), greedy=True).questions
    assert [q.answers for q in questions] == [("42",), ("7",)]
    path = own(tmp_path, rows.replace("#### 7", "7"), answer_from="####")
    with pytest.raises(EvaluationError, match="row 1 has no question or no answer"):
        load(BenchmarkRequest(name="mine", path=str(path)), greedy=True)


def test_the_order_of_options_is_that_of_the_stored_seed() -> None:
    right, wrong = "right", ["one", "two", "three"]
    made = {seed: multiple_choice("Which?", right, wrong, seed) for seed in range(20)}
    assert made[0] == multiple_choice("Which?", right, wrong[::-1], 0)
    assert {answers[0] for _, answers, _ in made.values()} == set("ABCD")
    for text, (letter,), options in made.values():
        assert f"({letter}) right\n" in text + "\n"
        assert options["ABCD".index(letter)] == right
        assert set(options) == {right, *wrong}


def test_two_wrong_options_may_be_the_same_but_none_the_right_one() -> None:
    text, (letter,), options = multiple_choice("Which?", "right", ["one", "two", "one"], 0)
    assert sorted(options) == ["one", "one", "right", "two"]
    assert options["ABCD".index(letter)] == "right"
    assert text.count(") one\n") == 2
    with pytest.raises(EvaluationError, match="a wrong option is the right one"):
        multiple_choice("Which?", "one", ["one", "two", "three"], 0)


def choices(folder: Path, count: int) -> Path:
    rows = [
        f"Question {i}?,right {i} \\%,{','.join(f'wrong {i} {j}' for j in (1, 2, 2))}"
        for i in range(count)
    ]
    return own(
        folder,
        "\n".join(["q,right,w1,w2,w3", *rows]),
        questions=count,
        text="q",
        answer="right",
        options=["w1", "w2", "w3"],
    )


def test_multiple_choice_is_graded_by_the_letter_and_its_text(tmp_path: Path) -> None:
    path = choices(tmp_path, 3)
    benchmark = load(BenchmarkRequest(name="mine", path=str(path)), greedy=True)
    question = benchmark.questions[0]
    (letter,), said = question.answers, r"right 0 \%"
    other = next(o for o in "ABCD" if o != letter)

    def right(answer: str) -> bool:
        asked = {"question": question.text, "options": question.options}
        return grade(rf"\boxed{{{answer}}}", question.answers, **asked).correct

    assert right(letter)
    assert right(f"({letter}) {said}")
    assert not right(other)
    assert not right(f"({other}) {said}")


def test_options_travel_with_the_question(tmp_path: Path) -> None:
    path = choices(tmp_path, 3)
    benchmark = load(BenchmarkRequest(name="mine", path=str(path)), greedy=True)
    write_parquet(benchmark.questions, tmp_path / "copy.parquet")
    copy = load(BenchmarkRequest(name="copy", path=str(tmp_path / "copy.parquet")), greedy=True)
    assert [q.options for q in copy.questions] == [q.options for q in benchmark.questions]
    assert all(len(q.options) == 4 for q in copy.questions)
    line = {
        "uid": "u",
        "prompt_sha256": "p",
        "question": copy.questions[0].text,
        "gold": list(copy.questions[0].answers),
        "options": list(copy.questions[0].options),
        "asked": True,
    }
    said = f"({line['gold'][0]}) right 0 \\%"
    sample = {("u", "p", 0): {"response": rf"\boxed{{{said}}}"}}
    template = load_bank()["qwen-math"]
    (with_options,) = grade_samples([line], sample, 1, template)
    assert with_options["correct"]
    assert with_options["extracted"] == line["gold"][0]


def test_options_have_a_fixed_order_that_hides_the_right_one(tmp_path: Path) -> None:
    request = BenchmarkRequest(name="mine", path=str(choices(tmp_path, 198)))
    benchmark = load(request, greedy=True)
    assert benchmark == load(request, greedy=True)
    letters = [question.answers[0] for question in benchmark.questions]
    counts = {letter: letters.count(letter) for letter in "ABCD"}
    # Uniform over four places: 49.5 +- 6.1 each; a fixed place would have 198.
    assert all(25 < count < 75 for count in counts.values()), counts


def test_a_folder_without_the_needed_columns_is_refused(tmp_path: Path) -> None:
    datasets.Dataset.from_list([{"wording": "x", "answer": "1"}]).save_to_disk(str(tmp_path / "d"))
    with pytest.raises(EvaluationError, match="no column"):
        load(BenchmarkRequest(name="toy", path=str(tmp_path / "d")), greedy=True)


def test_a_row_without_an_answer_is_refused_with_its_number(tmp_path: Path) -> None:
    rows = [{"problem": "x", "answer": "1"}, {"problem": "y", "answer": " "}]
    datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "d"))
    with pytest.raises(EvaluationError, match="row 1"):
        load(BenchmarkRequest(name="toy", path=str(tmp_path / "d")), greedy=True)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="does not exist"):
        load(BenchmarkRequest(name="toy", path=str(tmp_path / "none.parquet")), greedy=True)
