"""The command prepare: refusals by row, manifest, options, killed and run again, real data."""

import hashlib
import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from prompt_aug.base.files import read_json, write_lines
from prompt_aug.prepare import __main__ as prepare
from prompt_aug.prepare import filters, sources
from prompt_aug.prepare.sources import column_names, complete, load_presets, load_rows
from prompt_aug.questions import make_question, read_parquet

ROWS = [
    {"problem": "What is the sum of 1 and 2?", "answer": "3"},
    {"problem": " Add 2 to 2. ", "answer": " 4 "},
    {"problem": "", "answer": "5"},
    {"problem": "What is 3 + 3?", "answer": ""},
    {"problem": "Add  2 to 2.", "answer": "4.0"},
    {"problem": "What is one half of one?", "answer": "\\frac{1}{2}"},
    {"problem": "What is two squared?", "answer": "4"},
    {"problem": "What is two squared?", "answer": "5"},
    {
        "problem": "Find the number of pears that Ann has if Bob has nine and she has two more.",
        "answer": "11",
    },
]
SUMS = [{"question": f"What is {i} plus {i * i}?", "answer": str(i + i * i)} for i in range(9)]
BENCHMARK = [
    {"question": "FIND the number of pears that Ann has, if Bob has nine and she has 2 more!"},
    {"question": "Something else altogether, of no concern to anybody here."},
]


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    write_lines(path, rows)
    return path


def run(tmp_path: Path, *options: str, rows: list[dict[str, Any]] | None = None) -> int:
    source = jsonl(tmp_path / "source.jsonl", ROWS if rows is None else rows)
    against = jsonl(tmp_path / "bench.jsonl", BENCHMARK)
    out = tmp_path / "out" / "train.parquet"
    checks = [] if "--no-benchmarks" in options else ["--against", f"pears={against}"]
    return prepare.main([str(source), str(out), *checks, *options])


def manifest_of(tmp_path: Path) -> dict[str, Any]:
    return read_json(tmp_path / "out" / "train.parquet.manifest.json")


def test_rows_are_refused_by_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path) == 0
    out = tmp_path / "out" / "train.parquet"
    questions = read_parquet(out)
    assert [(q.text, q.answers) for q in questions] == [
        ("What is the sum of 1 and 2?", ("3",)),
        ("Add 2 to 2.", ("4",)),
        ("What is one half of one?", ("\\frac{1}{2}",)),
    ]
    manifest = manifest_of(tmp_path)
    assert manifest["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()
    assert (manifest["rows"], manifest["kept"]) == (9, 3)
    assert [(r["row"], r["reason"]) for r in manifest["refused_rows"]] == [
        (2, "empty"),
        (3, "empty"),
        (6, "contradiction"),
        (7, "contradiction"),
        (8, "benchmark_overlap"),
    ]
    assert manifest["duplicates_of_row"] == {"1": [4]}
    assert sum(manifest["refused"].values()) + manifest["kept"] == manifest["rows"]
    assert manifest["benchmarks"] == {"pears": 2}
    assert "of question 0 of pears" in manifest["refused_rows"][4]["detail"]
    shown = capsys.readouterr().out
    assert "row 8: 0.80 of question 0 of pears" in shown  # 17 words, 10 8-grams, 2 with "two"


def test_run_again_it_gives_the_same_bytes_and_killed_it_leaves_no_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def written() -> dict[str, bytes]:
        assert run(tmp_path) == 0
        return {file.name: file.read_bytes() for file in (tmp_path / "out").iterdir()}

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    first = written()
    assert first.keys() == {".lock", "train.parquet", "train.parquet.manifest.json"}
    assert written() == first
    with monkeypatch.context() as patch:
        patch.setattr(prepare, "write_parquet", killed)
        assert run(tmp_path) == 130
    assert "prompt_aug.prepare: interrupted; no manifest was written" in capsys.readouterr().err
    assert {f.name for f in (tmp_path / "out").iterdir()} == {".lock", "train.parquet"}
    assert written() == first


def test_the_records_of_benchmarks_say_what_to_keep_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    records = tmp_path / "records"
    records.mkdir()
    for name, rows in (("pears", BENCHMARK), ("plums", [{"question": "Another one?"}])):
        jsonl(records / f"{name}.jsonl", rows)
        (records / f"{name}.yaml").write_text(f"questions: 1\nfile: {name}.jsonl\n")
    source, out = str(jsonl(tmp_path / "in.jsonl", ROWS)), str(tmp_path / "out.parquet")
    kept = {}
    for given in ("pears.jsonl", "pears.yaml", "plums.yaml"):
        assert prepare.main([source, out, "--against", str(records / given)]) == 0
        manifest = json.loads(Path(f"{out}.manifest.json").read_text())
        kept[given] = manifest["kept"]
        assert list(manifest["benchmarks"]) == [given.partition(".")[0]]
    assert kept["pears.jsonl"] == kept["pears.yaml"] < kept["plums.yaml"]
    with monkeypatch.context() as patch:  # by its name, as eval.sweep knows it
        (records / "known.yaml").write_text("pears: {questions: 1, file: pears.jsonl}")
        patch.setattr(prepare, "KNOWN", records / "known.yaml")
        assert prepare.load_benchmarks(["pears"]).keys() == {"pears"}
    assert "\naime24:" in prepare.KNOWN.read_text()
    wrong = {"": "is no record of a benchmark", "file: pears.jsonl\ntext: [a]": "text=['a']: not"}
    for content, why in wrong.items():
        (records / "pears.yaml").write_text(f"questions: 1\n{content}\n")
        assert prepare.main([source, out, "--against", str(records / "pears.yaml")]) == 1
        assert why in capsys.readouterr().err


def test_columns_and_lists(tmp_path: Path) -> None:
    golds = {"3?": "['3', 'three']", "4?": "[0, 1]"}
    rows = [{"q": {"text": text}, "gold": gold} for text, gold in golds.items()]
    options = ["--text-column", "q.text", "--answer-column", "gold", "--no-benchmarks"]
    assert run(tmp_path, *options, "--name", "n", rows=rows) == 0
    made = read_parquet(tmp_path / "out" / "train.parquet")
    assert [(q.text, q.answers, q.source) for q in made] == [
        ("3?", ("3", "three"), "n"),
        ("4?", ("[0, 1]",), "n"),
    ]


def test_real_rows_and_the_real_suite(shared_data: Path) -> None:
    """All real evaluation questions; the head of the training rows (the whole takes a minute)."""
    counts = {"aime": 30, "amc": 83, "math": 500, "minerva": 272, "olympiad_bench": 675}
    folder = shared_data / "evaluation_suite"
    suite = prepare.load_benchmarks([f"{name}={folder}@{name}" for name in counts])
    assert {name: len(texts) for name, texts in suite.items()} == counts
    file = shared_data / "math_level3to5" / "SimpleRL-simplelr_qwen_level3to5.train.parquet"
    rows = load_rows(str(file)).select(range(200))
    columns = load_presets()["math-level3to5"]
    columns = complete(columns, column_names(rows), str(file))
    questions, report = filters.prepare(rows, columns=columns, source="m", benchmarks=suite)
    assert report["rows"] == 200
    assert [(r["row"], r["reason"]) for r in report["refused_rows"]] == [(170, "benchmark_overlap")]
    assert len(questions) == 199


def test_a_validation_split_is_held_out_by_content(tmp_path: Path) -> None:
    def split(rows: list[dict[str, str]], name: str) -> tuple[set[str], set[str]]:
        source, out = jsonl(tmp_path / f"{name}.jsonl", rows), tmp_path / f"{name}.parquet"
        assert prepare.main([str(source), str(out), "--no-benchmarks", "--validation", "3"]) == 0
        held = read_parquet(out.with_name(f"{name}.validation.parquet"))
        assert {question.split for question in held} == {"validation"}
        return {q.text for q in read_parquet(out)}, {q.text for q in held}

    trained, held = split(SUMS, "a")
    assert len(held) == 3 and not trained & held and len(trained | held) == 9
    assert split(SUMS[::-1], "b") == (trained, held)  # the order of the rows does not matter
    manifest = read_json(tmp_path / "a.parquet.manifest.json")
    for key, name in (("sha256", "a.parquet"), ("held_out_sha256", "a.validation.parquet")):
        assert manifest[key] == hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()
    for count in ("0", "9"):
        command = [str(tmp_path / "a.jsonl"), str(tmp_path / "a.parquet"), "--no-benchmarks"]
        assert prepare.main([*command, "--validation", count]) == 1


LONG = "A question of one template, with words, and of many more, about the number "


def test_near_duplicates_are_counted_and_listed_up_to_a_limit(tmp_path: Path) -> None:
    rows = [{"question": f"{LONG} {'very ' * 20}{i}?", "answer": str(i)} for i in range(30)]
    assert run(tmp_path, "--no-benchmarks", rows=[*rows, *ROWS[:2]]) == 0
    manifest = manifest_of(tmp_path)
    assert manifest["near_duplicate_pairs"] == 30 * 29 // 2
    assert len(manifest["near_duplicates"]) == 100
    assert manifest["near_duplicate_rows"] == [*range(30)]


def test_golds_that_are_sentences_or_records(tmp_path: Path) -> None:
    texts = ["There are 13 pens.", "He has 5 and buys 8, so there are 13.", "Paris", {"a": ["7"]}]
    rows = [{"question": f"Question {i}?", "answer": gold} for i, gold in enumerate(texts)]
    rows += [{"question": "Half?", "answer": "\ud800"}, {"question": "\ud800?", "answer": "1"}]
    assert run(tmp_path, "--no-benchmarks", rows=rows) == 0
    kept, manifest = read_parquet(tmp_path / "out" / "train.parquet"), manifest_of(tmp_path)
    assert [q.answers for q in kept] == [("13",), ("Paris",), ("7",)]
    assert kept[0].uid == make_question(text="Question 0?", answers=["13"], source="").uid
    (changed,) = manifest["sentences"]
    assert (changed["row"], changed["read_as"]) == (0, ["13"])
    refused = [(r["row"], r["reason"]) for r in manifest["refused_rows"]]
    assert refused == [(1, "ungradable"), (4, "empty"), (5, "empty")]
    assert run(tmp_path, "--no-benchmarks", "--allow-text", rows=rows) == 0
    kept = read_parquet(tmp_path / "out" / "train.parquet")
    assert [q.answers[0] for q in kept] == [*texts[:3], "7"]
    golds = {"Q?": {"value": "3", "unit": "cm"}, "R?": "1"}  # of verl's columns
    verl = [{"prompt": q, "reward_model": {"ground_truth": gold}} for q, gold in golds.items()]
    assert run(tmp_path, "--no-benchmarks", rows=verl) == 0
    assert manifest_of(tmp_path)["refused"]["ungradable"] == 1


@pytest.mark.parametrize("name", ["write_parquet", "write_json"])
def test_a_full_disk_is_one_line_and_leaves_no_mixed_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    assert run(tmp_path, "--no-benchmarks", "--validation", "3", rows=SUMS) == 0
    before = {f.name: f.read_bytes() for f in (tmp_path / "out").iterdir()}
    monkeypatch.setattr(prepare, name, full)
    capsys.readouterr()
    assert run(tmp_path, "--no-benchmarks", "--validation", "4", rows=SUMS) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "train.parquet" in line and "No space left" in line
    after = {f.name: f.read_bytes() for f in (tmp_path / "out").iterdir()}
    changed = {n for n in before if n.endswith(".parquet") and after.get(n, before[n]) != before[n]}
    assert not any("manifest" in n for n in after) and len(changed) in (0, 2)


GSM8K, OPENR1 = "openai/gsm8k", "open-r1/OpenR1-Math-220k"


@pytest.mark.parametrize(
    ("source", "repository", "config", "name", "answer"),
    [
        *((source, GSM8K, "main", "gsm8k", "2") for source in ("gsm8k", GSM8K, f"{GSM8K}:main")),
        *((f"{x}:socratic", GSM8K, "socratic", "gsm8k", "2") for x in ("gsm8k", GSM8K)),
        (OPENR1, OPENR1, "default", "openr1-math", "1 #### 2"),
    ],
)
def test_the_hub_is_asked_for_a_presets_id(
    tmp_path: Path,
    monkeypatch: Any,
    source: str,
    repository: str,
    config: str,
    name: str,
    answer: str,
) -> None:
    def hub(asked: str, **how: Any) -> datasets.Dataset:
        assert (asked, how) == (repository, {"name": config, "split": "train", "revision": None})
        row = dict.fromkeys(("question", "problem"), "1 + 1?") | {"answer": "1 #### 2"}
        made = datasets.Dataset.from_list([row])
        made.info.download_checksums = {f"hf://datasets/{source}@{'ab' * 20}/{config}.parquet": {}}
        return made

    monkeypatch.setattr(datasets, "load_dataset", hub)
    monkeypatch.setattr(sources, "hub_answers", lambda _: True)
    out = tmp_path / "q.parquet"
    assert prepare.main([source, str(out), "--no-benchmarks"]) == 0
    (question,) = read_parquet(out)
    assert (question.text, question.answers, question.source) == ("1 + 1?", (answer,), name)
    assert read_json(tmp_path / "q.parquet.manifest.json")["revision"] == "ab" * 20


def test_every_preset_has_a_hub_id_of_its_own() -> None:
    presets = load_presets()
    assert len({preset.hub for preset in presets.values()}) == len(presets)


def test_rows_that_rephrase_one_question_are_joined(tmp_path: Path) -> None:
    def row(index: int, sub_index: int, question: str, answer: str = "2") -> dict[str, Any]:
        return {"index": index, "sub_index": sub_index, "question": question, "answer": answer}

    rows = [
        row(0, 2, "Add one and one."),
        row(0, 0, "What is 1 + 1?"),
        row(0, 1, "Find the sum of 1 and 1."),
        row(0, 3, "Find the  sum of 1 and 1."),
        row(0, 4, "What is 1 + 2?", "3"),
        row(0, 5, ""),
        row(1, 0, "What is 2 + 2?", "4"),
        row(1, 1, "Two and two make what?", "4"),
        row(-1, 0, ""),
    ]
    assert run(tmp_path, "--preset", "ta-grpo", "--no-benchmarks", rows=rows) == 0
    first, second = read_parquet(tmp_path / "out" / "train.parquet")
    assert first.text == "What is 1 + 1?"
    assert first.rephrasings == ("Find the sum of 1 and 1.", "Add one and one.")
    assert second.rephrasings == ("Two and two make what?",)
    manifest = manifest_of(tmp_path)
    assert manifest["rows_left_out"] == {"padding": 2, "another answer": 1, "repeated": 1}
