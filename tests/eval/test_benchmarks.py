"""Benchmarks: denominators, digests, files, hub errors, answers as texts, multiple choice."""

import json
import re
from pathlib import Path
from typing import Any

import datasets
import pytest
import yaml

from eval.ask.benchmarks import (
    Benchmark,
    BenchmarkRequest,
    LoadedBenchmark,
    known_benchmarks,
    load_benchmark,
    multiple_choice,
    parse_request,
)
from prompt_aug.base.errors import UserError
from prompt_aug.questions import Question, QuestionError, from_row, make_question


def request(name: str, path: object, samples: int | None = None) -> BenchmarkRequest:
    return BenchmarkRequest(name=name, path=str(path), samples=samples)


def test_a_request_is_parsed() -> None:
    assert parse_request("toy=a/b.parquet:4") == request("toy", "a/b.parquet", 4)
    assert parse_request("toy=a:b/c") == request("toy", "a:b/c")
    assert parse_request("aime25") == BenchmarkRequest(name="aime25")
    for wrong in ("=x", "toy=", "toy=x:0", "../toy=x", "a/b=x", ".a=x"):
        with pytest.raises(UserError):
            parse_request(wrong)
    with pytest.raises(UserError, match="did you mean aime24"):
        load_benchmark(parse_request("AIME24"), greedy=True)


# ------------------------------------------------------------------------- sizes and digests


def test_the_published_suite_has_its_denominators(shared_data: Path) -> None:
    suite = shared_data / "evaluation_suite"
    folders = {"aime24": "aime", "amc": "amc", "math500": "math", "minerva": "minerva"}
    folders["olympiadbench"] = "olympiad_bench"
    loaded = {n: load_benchmark(request(n, suite / f), greedy=True) for n, f in folders.items()}
    sizes = {name: len(benchmark.questions) for name, benchmark in loaded.items()}
    assert sizes == {"aime24": 30, "amc": 83, "math500": 500, "minerva": 272, "olympiadbench": 675}
    assert sum(sizes.values()) == 1560
    assert all(benchmark.samples == 1 for benchmark in loaded.values())
    assert all(question.answers for b in loaded.values() for question in b.questions)
    assert loaded["amc"].questions[0].answers == ("142",)  # stored as the float 142.0
    assert load_benchmark(request("aime24", suite / "aime"), greedy=False).samples == 32


def test_known_benchmarks_are_pinned() -> None:
    for name, benchmark in known_benchmarks().items():
        assert benchmark.hub and benchmark.licence, name
        assert benchmark.revision is None or re.fullmatch("[0-9a-f]{40}", benchmark.revision), name
        assert benchmark.digests(local=False) or benchmark.revision, f"{name}: any content"
        assert all(re.fullmatch("[0-9a-f]{64}", d) for d in benchmark.digests(local=True)), name


def test_a_changed_hub_data_set_of_the_same_size_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = datasets.Dataset.from_list([{"problem": f"{i}?", "answer": "7"} for i in range(30)])
    monkeypatch.setattr("eval.ask.benchmarks.load_rows", lambda *_, **__: rows)
    with pytest.raises(UserError, match="aime25: the content of hub:"):
        load_benchmark(BenchmarkRequest(name="aime25"), greedy=True)


def test_a_changed_copy_of_the_same_size_is_rejected(tmp_path: Path, shared_data: Path) -> None:
    # In memory: a map of the shared folder's rows would write a cache file beside them.
    rows = datasets.load_from_disk(str(shared_data / "evaluation_suite" / "aime")).to_list()
    datasets.Dataset.from_list(rows[::-1]).save_to_disk(str(tmp_path / "backwards"))
    rows[7] = {**rows[7], "answer": "0"}
    datasets.Dataset.from_list(rows).save_to_disk(str(tmp_path / "changed"))
    load_benchmark(request("aime24", tmp_path / "backwards"), greedy=True)
    with pytest.raises(UserError, match="aime24: the content"):
        load_benchmark(request("aime24", tmp_path / "changed"), greedy=True)
    load_benchmark(request("mine", tmp_path / "changed"), greedy=True)


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
    return load_benchmark(parse_request(f"mine={path}"), greedy=False)


def test_a_users_own_benchmark_is_a_yaml_file(tmp_path: Path) -> None:
    benchmark = load_own(own(tmp_path / "far"))
    result = [(q.text, q.answers) for q in benchmark.questions]
    assert result == [("1 + 1?", ("2",)), ("2 + 2?", ("4",))] and benchmark.samples == 3
    load_own(own(tmp_path / "far", sha256=benchmark.sha256))
    rows = "question,answer\n1 + 1?,2\n2 + 2?,5\n"
    with pytest.raises(UserError, match="digest"):
        load_own(own(tmp_path / "far", rows, sha256=benchmark.sha256))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"question": 2}, "question: unknown key, did you mean questions"),
        ({"questions": 3}, "3 questions.*2"),
        ({"file": "none.csv"}, "none.csv"),
        ({"text": "wording"}, "no column wording for the text"),
    ],
)
def test_a_wrong_record_is_rejected(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_own(own(tmp_path, **changes))


CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1 + 1?"}]
VERL = {
    "data_source": "theirs",
    "prompt": CHAT,
    "reward_model": {"style": "rule", "ground_truth": "2"},
    "extra_info": {"split": "test", "code": "7"},
}


def test_rows_are_read_as_those_of_training(tmp_path: Path) -> None:
    def read(row: dict[str, object], **columns: object) -> tuple[Question, ...]:
        (tmp_path / "data.jsonl").write_text(json.dumps(row))
        return load_own(own(tmp_path, file="data.jsonl", questions=1, **columns)).questions

    for row in (VERL, {**VERL, "question": "2?", "answer": "3"}):
        assert read(row) == (from_row(row),)  # with all its columns, for a verifier
    (chat,) = read({"prompt": CHAT, "meta": {"gold": 2, "level": "Level 3"}, "answer": "B"},
        answer="meta.gold", level="meta.level")  # fmt: skip
    assert chat == make_question(
        text="1 + 1?", answers=["2"], system="Be brief.", level=3, source="mine", split="test"
    )


def test_the_messages_of_a_row_are_read_as_its_run_reads_them(tmp_path: Path) -> None:
    turns = [("user", "1?"), ("assistant", "1"), ("user", " Q?\n")]
    row = {"prompt": [{"role": role, "content": text} for role, text in turns]}
    row |= {"data_source": "own", "reward_model": {"ground_truth": "7"}}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row) + "\n")
    asked = request("own", tmp_path / "rows.jsonl")
    (question,) = load_benchmark(asked, greedy=True, reading="all").questions
    assert (question.text, question.earlier) == (" Q?\n", (("user", "1?"), ("assistant", "1")))
    assert load_benchmark(asked, greedy=True, reading="last").questions[0].text == "Q?"
    with pytest.raises(UserError, match="2 user messages"):
        load_benchmark(asked, greedy=True)


def test_a_copy_of_a_known_benchmark_may_have_other_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = {"text": "task", "answer": "solution", "answer_from": "####", "level": "grade"}
    record = Benchmark(questions=1, hub="a/b", **columns)
    monkeypatch.setattr("eval.ask.benchmarks.known_benchmarks", lambda: {"known": record})
    for row in (
        {"task": "1 + 1?", "solution": "So #### 2"},
        {"problem": "1 + 1?", "answer": "So #### 2"},
        VERL,
    ):
        (tmp_path / "copy.jsonl").write_text(json.dumps(row))
        (question,) = load_benchmark(
            request("known", tmp_path / "copy.jsonl"), greedy=True
        ).questions
        assert (question.text, question.answers) == ("1 + 1?", ("2",))


def test_repeated_rows_are_samples_of_one_question(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def loaded(rows: str, name: str = "mine", **how: Any) -> tuple[int, int, int, int]:
        path = tmp_path / "rows.csv"
        path.write_text("\n".join(["question,answer", *(f"{i}?,{i}" for i in rows)]))
        result = load_benchmark(request(name, path), **{"greedy": False, **how})
        shown = capsys.readouterr().out.count("\n")
        return len(result.questions), result.size, result.samples, shown

    assert loaded("012012012") == loaded("000111222") == (3, 3, 3, 1)
    assert loaded("012012012", greedy=True, samples=5) == (3, 3, 1, 1)
    assert loaded("0012") == (3, 3, 1, 1)  # not all repeat
    assert loaded("001122", samples=5, max_questions=2) == (2, 3, 5, 1)
    record = Benchmark(questions=4, hub="a/b", samples=3)
    monkeypatch.setattr("eval.ask.benchmarks.known_benchmarks", lambda: {"known": record})
    assert loaded("0123" * 4, "known") == (4, 4, 4, 1)
    assert loaded("0012", "known") == (4, 4, 3, 0)  # as published


# ------------------------------------------------------------------------- multiple choice


def test_a_question_determines_the_order_of_its_options() -> None:
    right, wrong = "right", ["one", "two", "one"]  # two wrong options may be equal
    assert multiple_choice("1?", right, wrong) == multiple_choice("1?", right, wrong[::-1])
    made = [multiple_choice(f"{i}?", right, wrong) for i in range(20)]
    assert {answers[0] for _, answers, _ in made} == set("ABCD")
    for text, (letter,), options in made:
        assert f"({letter}) right\n" in text + "\n" and text.count(") one\n") == 2
        assert options["ABCD".index(letter)] == right
        assert sorted(options) == sorted([right, *wrong])
    for bad in (["one", "two", "three"], []):
        with pytest.raises(QuestionError):
            multiple_choice("Which?", "one", bad)
