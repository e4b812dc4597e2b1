"""Benchmarks: denominators, digests, files, hub errors, answers as texts, multiple choice."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import datasets
import pytest
import yaml

from eval import EvaluationError
from eval.benchmarks import (
    BenchmarkRequest,
    LoadedBenchmark,
    gold_texts,
    known_benchmarks,
    load,
    multiple_choice,
    parse_request,
    rotated,
    suite_requests,
)
from eval.score import grade_samples
from eval.settings import benchmark_identity, differences, from_run
from prompt_aug.grading import grade
from prompt_aug.grading.choice import LETTERS
from prompt_aug.prepare.sources import SourceError
from prompt_aug.questions import write_parquet
from prompt_aug.templates import load_bank

SIZES = {
    **{"arc-challenge": 1172, "arc-easy": 2376},
    **{"aime24": 30, "aime25": 30, "amc": 83, "amc23": 40, "gpqa-diamond": 198, "gsm8k": 1319},
    **{"math-beyond": 181, "math500": 500, "minerva": 272, "olympiadbench": 675},
}


def request(name: str, path: object, samples: int | None = None) -> BenchmarkRequest:
    return BenchmarkRequest(name=name, path=str(path), samples=samples)


def test_a_request_is_parsed() -> None:
    assert parse_request("toy=a/b.parquet") == request("toy", "a/b.parquet")
    assert parse_request("toy=a/b.parquet:4") == request("toy", "a/b.parquet", 4)
    assert parse_request("toy=a:b/c") == request("toy", "a:b/c")
    assert parse_request("aime25") == BenchmarkRequest(name="aime25")
    for wrong in ("toy", "=x", "toy=", "toy=x:0", "../toy=x", "a/b=x", ".a=x"):
        with pytest.raises(EvaluationError):
            parse_request(wrong)


@pytest.mark.parametrize("name", ["../toy", "a/b", ".a", "/tmp/a", ""])
def test_a_name_that_is_no_folder_is_rejected_from_a_file_too(tmp_path: Path, name: str) -> None:
    config = {"eval": {"benchmarks": [{"name": name, "path": "a.parquet"}]}}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(EvaluationError, match=r"benchmarks\[0\]\.name"):
        from_run(tmp_path)


# ------------------------------------------------------------------------- sizes and digests


def test_the_published_suite_has_its_denominators(shared_data: Path) -> None:
    loaded = {
        r.name: load(r, greedy=True) for r in suite_requests(shared_data / "evaluation_suite")
    }
    sizes = {name: len(benchmark.questions) for name, benchmark in loaded.items()}
    assert sizes == {"aime24": 30, "amc": 83, "math500": 500, "minerva": 272, "olympiadbench": 675}
    assert sum(sizes.values()) == 1560
    assert all(benchmark.samples == 1 for benchmark in loaded.values())
    assert all(question.answers for b in loaded.values() for question in b.questions)
    assert loaded["amc"].questions[0].answers == ("142",)  # stored as the float 142.0
    path = shared_data / "evaluation_suite" / "aime"
    assert load(request("aime24", path), greedy=False).samples == 32
    assert load(request("aime24", path, 5), greedy=False).samples == 5


def test_known_benchmarks_are_pinned_and_sized() -> None:
    known = known_benchmarks()
    assert {name: benchmark.questions for name, benchmark in known.items()} == SIZES
    for name, benchmark in known.items():
        assert benchmark.hub and benchmark.licence, name
        assert benchmark.revision is None or re.fullmatch("[0-9a-f]{40}", benchmark.revision), name
        assert benchmark.digests(local=False) or benchmark.revision, f"{name}: any content"
        assert all(re.fullmatch("[0-9a-f]{64}", d) for d in benchmark.digests(local=True)), name


def test_a_part_of_a_benchmark(make_benchmark: Callable[..., LoadedBenchmark]) -> None:
    whole = make_benchmark(questions=7)
    part = load(request("toy", whole.path), greedy=True, max_questions=3)
    assert (part.questions, part.size) == (whole.questions[:3], 7)
    assert part.sha256 != whole.sha256


@pytest.mark.parametrize("name", ["aime25", "olympiadbench"])  # pinned by its file, by copies
def test_a_changed_hub_data_set_of_the_same_size_is_rejected(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"Question {i}?" for i in range(SIZES[name])]
    rows = datasets.Dataset.from_list([{"problem": t, "question": t, "answer": "7"} for t in texts])
    monkeypatch.setattr("eval.benchmarks.load_rows", lambda *_, **__: rows)
    with pytest.raises(EvaluationError, match=f"{name}: the content of hub:"):
        load(BenchmarkRequest(name=name), greedy=True)


def test_a_changed_copy_of_the_same_size_is_rejected(tmp_path: Path, shared_data: Path) -> None:
    # In memory: a map of the shared folder's rows would write a cache file beside them.
    rows = datasets.load_from_disk(str(shared_data / "evaluation_suite" / "aime")).to_list()
    datasets.Dataset.from_list(rows[::-1]).save_to_disk(str(tmp_path / "backwards"))
    rows[7] = {**rows[7], "answer": "0"}
    datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "changed"))
    load(request("aime24", tmp_path / "backwards"), greedy=True)
    with pytest.raises(EvaluationError, match="aime24: the content"):
        load(request("aime24", tmp_path / "changed"), greedy=True)
    load(request("mine", tmp_path / "changed"), greedy=True)


def test_the_hub_is_asked_for_the_revision_and_its_error_names_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = {}

    def fail(source: str, *_: object, revision: str | None, **__: object) -> None:
        asked[source] = revision
        raise SourceError("no route")

    monkeypatch.setattr("eval.benchmarks.load_rows", fail)
    with pytest.raises(EvaluationError, match=r"no route.*--benchmark math500=PATH"):
        load(BenchmarkRequest(name="math500"), greedy=True)
    assert asked == {"HuggingFaceH4/MATH-500": known_benchmarks()["math500"].revision}


# ------------------------------------------------------------------------- a user's own


def own(
    folder: Path, rows: str = "question,answer\n1 + 1?,2\n2 + 2?,4\n", **changes: object
) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "mine.csv").write_text(rows)
    record = {"questions": 2, "file": "mine.csv", "samples": 3, **changes}
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in record.items() if v is not None}))
    return path


def load_own(path: Path) -> LoadedBenchmark:
    return load(parse_request(f"mine={path}"), greedy=False)


def test_a_users_own_benchmark_is_a_yaml_file(tmp_path: Path) -> None:
    benchmark = load_own(own(tmp_path / "far"))
    found = [(q.text, q.answers) for q in benchmark.questions]
    assert found == [("1 + 1?", ("2",)), ("2 + 2?", ("4",))]
    assert (benchmark.samples, benchmark.name) == (3, "mine")
    load_own(own(tmp_path / "far", sha256=benchmark.sha256))
    rows = "question,answer\n1 + 1?,2\n2 + 2?,5\n"
    with pytest.raises(EvaluationError, match="digest"):
        load_own(own(tmp_path / "far", rows, sha256=benchmark.sha256))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"question": 2}, "question: unknown key, did you mean questions"),
        ({"questions": 3}, "3 questions.*2"),
        ({"questions": 0}, "questions=0"),
        ({"samples": "many"}, "samples=many"),
        ({"samples": 100_000_000}, "samples=100000000"),
        ({"file": None}, "hub and file"),
        ({"hub": "a/b"}, "hub and file"),
        ({"file": "none.csv"}, "none.csv"),
        ({"options": ["x"]}, "options"),
        ({"rows": "wording,answer\nx,1\ny,2"}, "no column"),
        ({"rows": "problem,answer\nx,1\ny, "}, "row 1"),
    ],
)
def test_a_wrong_record_is_rejected(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        load_own(own(tmp_path, **changes))


def test_the_answer_is_the_text_after_the_last_marker(tmp_path: Path) -> None:
    rows = 'question,answer\na?,"first #### 1, so #### 42"\nb?,#### 7\n'
    questions = load_own(own(tmp_path, rows, answer_from="####")).questions
    assert [q.answers for q in questions] == [("42",), ("7",)]
    with pytest.raises(EvaluationError, match="row 1"):
        load_own(own(tmp_path, rows.replace("#### 7", "7"), answer_from="####"))


def write_shots(folder: Path, question: str = "3 + 3?") -> str:
    folder.mkdir(exist_ok=True)
    (folder / "shots.yaml").write_text(f"- {{question: '{question}', answer: '6'}}\n")
    return "shots.yaml"


def test_shots_stand_in_the_record_or_the_request(tmp_path: Path) -> None:
    record = own(tmp_path, shots=write_shots(tmp_path), tolerance=0.01)
    benchmark = load_own(record)
    assert (benchmark.shots, benchmark.tolerance) == ((("3 + 3?", "6"),), 0.01)
    plain = benchmark_identity(load_own(own(tmp_path)), "a template", "default")
    identity = benchmark_identity(benchmark, "a template", "default")
    added = {line.split(":")[0] for line in differences(plain, identity)}
    assert added == {"shots", "shots_sha256", "tolerance"}
    asked = BenchmarkRequest(name="mine", path=str(record), shots=str(tmp_path / "more.yaml"))
    (tmp_path / "more.yaml").write_text("[{question: 4?, answer: four}]")
    assert load(asked, greedy=True).shots == (("4?", "four"),)
    own(tmp_path, shots=write_shots(tmp_path, "2  + 2?"))
    with pytest.raises(EvaluationError, match=r"\[0\] is a question of the benchmark"):
        load_own(record)


CHOICES = "question,answer,one,two\nWhich?,right,wrong,bad\n"


def test_each_cyclic_order_has_every_option_at_every_place(tmp_path: Path) -> None:
    changes = {"questions": 1, "answer": "answer", "options": ["one", "two"], "samples": 4}
    path = own(tmp_path, CHOICES, **changes)

    def loaded(samples: int | None = None, greedy: bool = True) -> LoadedBenchmark:
        request = parse_request(f"mine={path}")
        return load(request, greedy=greedy, samples=samples, cyclic_options=True)

    benchmark = loaded()
    (question,) = benchmark.questions
    orders = [rotated(question, places) for places in range(3)]
    assert orders[0] == question
    for order in orders:
        assert order.options[LETTERS.index(order.answers[0])] == "right"
        assert f"({order.answers[0]}) right" in order.text and order.uid == question.uid
        assert order.text.startswith("Which?\n(A) ") and order.text.count("\n(") == 3
    assert len({order.answers[0] for order in orders}) == 3
    assert (benchmark.samples, loaded(6).samples, loaded(greedy=False).samples) == (3, 6, 6)
    with pytest.raises(EvaluationError, match=r"samples=4: not a multiple of 3 .*Use 6"):
        loaded(4)
    with pytest.raises(EvaluationError, match="does not list its options"):
        rotated(replace(question, text="Which?\nA. right"), 1)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        *((142.0, ("142",)), (0.5, ("0.5",)), (7, ("7",)), (" 9.6\n", ("9.6",))),
        *((["9.6\n", "9.6", "10"], ("9.6", "10")), ("", ()), (None, ()), ([], ())),
    ],
)
def test_answers_become_texts(value: object, wanted: tuple[str, ...]) -> None:
    assert gold_texts(value) == wanted


# ------------------------------------------------------------------------- multiple choice


def test_seed_and_question_determine_the_order_of_options() -> None:
    right, wrong = "right", ["one", "two", "one"]  # two wrong options may be equal
    made = {seed: multiple_choice("Which?", right, wrong, seed) for seed in range(20)}
    assert made[0] == multiple_choice("Which?", right, wrong[::-1], 0)
    other = [multiple_choice(f"{i}?", right, wrong, 0) for i in range(20)]
    for drawn in (made.values(), other):  # by the seed, and by the question
        assert {answers[0] for _, answers, _ in drawn} == set("ABCD")
    for text, (letter,), options in made.values():
        assert f"({letter}) right\n" in text + "\n" and text.count(") one\n") == 2
        assert options["ABCD".index(letter)] == right
        assert sorted(options) == sorted([right, *wrong])
    with pytest.raises(EvaluationError):
        multiple_choice("Which?", "one", ["one", "two", "three"], 0)


def choices(folder: Path, count: int) -> Path:
    rows = [
        f"Question {i}?,right {i} \\%,wrong {i} 1,wrong {i} 2,wrong {i} 2" for i in range(count)
    ]
    columns = {"text": "q", "answer": "right", "options": ["w1", "w2", "w3"]}
    return own(folder, "\n".join(["q,right,w1,w2,w3", *rows]), questions=count, **columns)


def test_multiple_choice_is_graded_by_letter_and_text(tmp_path: Path) -> None:
    made = load_own(choices(tmp_path, 3))
    write_parquet(made.questions, tmp_path / "copy.parquet")
    copy = load(request("copy", tmp_path / "copy.parquet"), greedy=True)
    assert [q.options for q in copy.questions] == [q.options for q in made.questions]
    question = copy.questions[0]
    (letter,), said = question.answers, r"right 0 \%"
    wrong = next(o for o in "ABCD" if o != letter)
    answers = {letter: 1, f"({letter}) {said}": 1, wrong: 0, f"({wrong}) {said}": 0}
    for answer, right in answers.items():
        response = rf"\boxed{{{answer}}}"
        asked = {"question": question.text, "options": question.options}
        assert grade(response, question.answers, **asked).correct == right
        line = {**asked, "uid": "u", "prompt_sha256": "p", "gold": [letter], "asked": True}
        sample = {("u", "p", 0): {"response": response}}
        settings = {"samples": 1, "extraction": "default"}
        (found,) = grade_samples([line], sample, load_bank()["qwen-math"], settings)
        assert found["correct"] == right


ARC = {"text": ["ice", "rain", "hail"], "label": ["1", "2", "3"]}
MMLU = ["ice", "rain", "hail"]


@pytest.mark.parametrize(
    ("options", "key", "letter"),
    [
        *((ARC, "3", "C"), (ARC, "B", None), (ARC, "4", None)),
        *((MMLU, 2, "C"), (MMLU, 0, "A"), (MMLU, 3, None)),
    ],
)
def test_options_in_one_column_keep_their_order(
    tmp_path: Path, options: object, key: object, letter: str | None
) -> None:
    row = {"question": "Which falls?", "choices": options, "answerKey": key}
    (tmp_path / "arc.jsonl").write_text(json.dumps(row) + "\n")
    columns = {"text": "question", "answer": "answerKey", "choices": "choices"}
    path = own(tmp_path, file="arc.jsonl", questions=1, **columns)
    if letter is None:
        with pytest.raises(EvaluationError, match=rf"answerKey={key} is not one of the labels"):
            load_own(path)
        return
    (question,) = load_own(path).questions
    assert (question.answers, question.options) == ((letter,), ("ice", "rain", "hail"))
    assert "(A) ice\n(B) rain\n(C) hail\n" in question.text


def test_a_file_without_the_usual_columns_names_the_yaml_file(tmp_path: Path) -> None:
    (tmp_path / "odd.csv").write_text("q,answer\n1 + 1?,2\n")
    with pytest.raises(EvaluationError, match=r"benchmark odd has no column .* `text: COLUMN`"):
        load(parse_request(f"odd={tmp_path / 'odd.csv'}"), greedy=True)
