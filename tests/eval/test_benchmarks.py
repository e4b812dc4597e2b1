"""Benchmarks: denominators, digests, files, hub errors, answers as texts, multiple choice."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import datasets
import pytest
import yaml

from eval import EvaluationError
from eval.benchmarks import (
    Benchmark,
    BenchmarkRequest,
    LoadedBenchmark,
    known_benchmarks,
    load,
    multiple_choice,
    parse_request,
    suite_requests,
)
from eval.score import grade_samples
from eval.settings import benchmark_identity, differences, from_run
from prompt_aug.grading import grade
from prompt_aug.prepare.sources import SourceError
from prompt_aug.questions import (
    Question,
    QuestionError,
    from_row,
    make_question,
    write_parquet,
)
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
    with pytest.raises(EvaluationError, match="did you mean aime24"):
        parse_request("AIME24")


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
        ({"text": "wording"}, "no column wording for the text"),
        ({"answer": "answer_value"}, "no column answer_value for the answer"),
        ({"answer": "meta.answer"}, r"no column meta\.answer"),
        ({"level": "lvl"}, "no column lvl for the level"),
        ({"answer": "answer", "options": ["question", "x"]}, "no column x for the options"),
        ({"answer": "answer", "choices": "x"}, "no column x for the choices"),
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


CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]
VERL = {
    "data_source": "theirs",
    "prompt": CHAT,
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "extra_info": {"split": "test", "code": "7"},
}


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow"])
def test_rows_are_read_as_those_of_training(tmp_path: Path, kind: str) -> None:
    def read(row: dict[str, object], **columns: object) -> tuple[Question, ...]:
        rows = datasets.Dataset.from_list([row])
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        if kind == "arrow":
            rows.save_to_disk(folder / "data.arrow")
        else:
            folder.mkdir()
            getattr(rows, {"jsonl": "to_json"}.get(kind, f"to_{kind}"))(folder / f"data.{kind}")
        return load_own(own(folder, file=f"data.{kind}", questions=1, **columns)).questions

    for row in (VERL, {**VERL, "question": "2?", "answer": "3"}):
        assert read(row) == (from_row(row),)  # with all its columns, for a verifier
    (chat,) = read({"prompt": CHAT, "meta": {"gold": 2, "level": "Level 3"}, "answer": "B"},
        answer="meta.gold", level="meta.level")  # fmt: skip
    assert chat == make_question(
        text="1 + 1?", answers=["2"], system="Be brief.", level=3, source="mine", split="test"
    )


def test_a_copy_of_a_known_benchmark_may_have_other_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"text": "task", "answer": "solution", "answer_from": "####", "level": "grade"}
    record = Benchmark(questions=1, hub="a/b", **columns)
    monkeypatch.setattr("eval.benchmarks.known_benchmarks", lambda: {"known": record})
    for row in (
        {"task": "1 + 1?", "solution": "So #### 2"},
        {"problem": "1 + 1?", "answer": "So #### 2"},
        VERL,
    ):
        (tmp_path / "copy.jsonl").write_text(json.dumps(row))
        (question,) = load(request("known", tmp_path / "copy.jsonl"), greedy=True).questions
        assert (question.text, question.answers) == ("1 + 1?", ("2",))


def test_repeated_rows_are_samples_of_one_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def loaded(rows: str, **how: object) -> tuple[int, int, int, int]:
        path = tmp_path / "rows.csv"
        path.write_text("\n".join(["question,answer", *(f"{i}?,{i}" for i in rows)]))
        found = load(request(str(how.pop("name", "mine")), path), **{"greedy": True, **how})
        shown = capsys.readouterr().out.count("\n")
        return len(found.questions), found.size, found.samples, shown

    assert loaded("012012012") == loaded("000111222") == (3, 3, 3, 1)
    assert loaded("0012") == (3, 3, 1, 1)  # not all repeat
    assert loaded("012") == (3, 3, 1, 0)
    assert loaded("001122", samples=5, max_questions=2) == (2, 3, 5, 1)
    record = Benchmark(questions=4, hub="a/b", samples=3)
    monkeypatch.setattr("eval.benchmarks.known_benchmarks", lambda: {"known": record})
    assert loaded("0123" * 4, name="known", greedy=False) == (4, 4, 4, 1)
    assert loaded("0012", name="known", greedy=False) == (4, 4, 3, 0)  # as published


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
    for bad in (["one", "two", "three"], []):
        with pytest.raises(QuestionError):
            multiple_choice("Which?", "one", bad, 0)


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
    with pytest.raises(EvaluationError, match=r"benchmark odd: .* has no column .* `text: COLUMN`"):
        load(parse_request(f"odd={tmp_path / 'odd.csv'}"), greedy=True)
