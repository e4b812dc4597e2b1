"""Sources and column maps: every kind of local data, the presets, and what cannot be read."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from prompt_aug.prepare import sources
from prompt_aug.prepare.sources import (
    Columns,
    SourceError,
    column_names,
    complete,
    load_presets,
    load_rows,
    to_question,
)
from prompt_aug.questions import QuestionError

STEP_BY_STEP = r"Let's think step by step and output the final answer within \boxed{}."
ROWS = [
    {"problem": "What is the sum of 1 and 2?", "answer": "3"},
    {"problem": " Add 2 to 2. ", "answer": " 4 "},
]


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "json", "disk", "dict"])
def test_sources(tmp_path: Path, kind: str) -> None:
    table = datasets.Dataset.from_list(ROWS)
    path = tmp_path / f"data.{kind}"
    if kind == "disk":
        table.save_to_disk(path)
    elif kind == "dict":
        datasets.DatasetDict({"train": table, "test": table.select([0])}).save_to_disk(path)
        assert list(load_rows(str(path), split="test")) == ROWS[:1]
    else:
        getattr(table, {"jsonl": "to_json"}.get(kind, f"to_{kind}"))(path)
    assert list(load_rows(str(path))) == ROWS


DAPO = (
    "Solve it. The last line should be of the form Answer: $Answer where it "
    "is the answer to the problem.\n\nHow many?\nIn all?\n\nRemember to put your answer last."
)
BOXES = "\\boxed{1}, no, $\\boxed{\\frac{1}{2}}$"
PLAIN = {"problem": "Q?", "solution": "so", "answer": "7"}
LEVEL = {"problem": "Q?", "level": "Level 5", "solution": BOXES}


def verl(gold: str, **columns: Any) -> dict[str, Any]:
    return {"reward_model": {"ground_truth": gold}, **columns}


def chat(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


PRESET_ROWS: dict[str, tuple[dict[str, Any], str, str, int | None]] = {
    "math-level3to5": (verl("118", extra_info={"question": "Q?"}), "Q?", "118", None),
    "math-train": (LEVEL, "Q?", "\\frac{1}{2}", 5),
    "gsm8k": ({"question": "Q?", "answer": "6 #### 3\n#### 1,000"}, "Q?", "1,000", None),
    "dapo-math-17k": (verl("34", prompt=chat(DAPO)), "How many?\nIn all?", "34", None),
    "dsr-sub": (verl("12.8", prompt=chat(f"Q? {STEP_BY_STEP}")), "Q?", "12.8", None),
    "open-rs": (PLAIN, "Q?", "7", None),
    "ta-grpo": ({"question": "Q?", "answer": "7", "index": 0, "sub_index": 0}, "Q?", "7", None),
    "openr1-math": (PLAIN, "Q?", "7", None),
}


@pytest.mark.parametrize("name", load_presets())
def test_presets(name: str) -> None:
    row, text, answer, level = PRESET_ROWS[name]
    made = to_question(row, load_presets()[name], name, "train")
    assert (made.text, made.answers, made.level, made.source) == (text, (answer,), level, name)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "x"),
        ("d.jsonl", '{"problem": "1"}\n\n[1, 2]\n'),
        ("a.csv", "question,answer\n"),
        ("b.csv", "question,answer\nWhere?\n"),
        ("c.csv", "question,answer,answer\nWhere?,1,2\n"),
        ("b.jsonl", '{"problem": "\udcff"}\n'),  # a byte that is no UTF-8
        ("d.csv", "question;answer\nWhere, then?;2\n"),
        ("e.csv", "question\tanswer\nWhere?\t2\n"),
        ("f.csv", "question,answer\nWo ist M\udcfcller?,2\n"),
        ("c.jsonl", '{"problem": "a", "answer": "1", "answer": "2"}\n'),
        ("e.jsonl", '{"problem": "a", "more": [{"k": 1, "k": 1}]}\n'),
        ("a.json", '[\n  {"problem": "a", "answer": "1", "answer": "2"}\n]'),
        ("b.json", "[" * 100_000),
        ("c.json", '[{"problem": "a"}, null]'),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, name: str, content: str) -> None:
    path = tmp_path / name
    path.write_text(content, errors="surrogateescape")
    with pytest.raises(SourceError) as caught:
        load_rows(str(path))
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_a_csv_is_text_as_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "q.csv"
    long = "9" * 140_000  # above the limit of Python's csv
    text = f'\ufeffquestion,answer\n"Which, then?",1.50\nWhere?,NA\n{long}?,2\n'
    path.write_text(text, encoding="utf-8")
    assert load_rows(str(path)) == load_rows(str(tmp_path))
    assert load_rows(str(path)) == [
        {"question": "Which, then?", "answer": "1.50"},
        {"question": "Where?", "answer": "NA"},
        {"question": f"{long}?", "answer": "2"},
    ]


def test_a_folder_with_splits_gives_the_requested_one(tmp_path: Path) -> None:
    rows = {name: [{"question": f"{name}?", "answer": "1"}] for name in ("train", "test")}
    for config in ("main", "socratic"):  # as the copy of a hub data set
        (tmp_path / config).mkdir()
        for name, table in rows.items():
            file = tmp_path / config / f"{name}-00000-of-00001.parquet"
            pq.write_table(pa.Table.from_pylist(table), file)
    for name, table in rows.items():
        assert list(load_rows(str(tmp_path / "main"), split=name)) == table
        assert list(load_rows(str(tmp_path), "main", name)) == table
    with pytest.raises(SourceError, match=r"no split 'validation'.*train, test"):
        load_rows(str(tmp_path / "main"), split="validation")
    with pytest.raises(SourceError, match="several folders"):
        load_rows(str(tmp_path))
    (tmp_path / "main" / "more.jsonl").write_text('{"question": "?", "answer": "1"}')
    with pytest.raises(SourceError, match="Name one"):
        load_rows(str(tmp_path / "main"), split="test")


def test_values_of_json_and_of_single_precision_stay_what_they_are(tmp_path: Path) -> None:
    written = ["12345678901234567", "0.5", f"1{'0' * 30}", '"2020-01-02"', "142.0"]
    lines = [f'{{"question": "Q{i}?", "answer": {text}}}' for i, text in enumerate(written)]
    (tmp_path / "q.jsonl").write_text("\n".join([*lines, '{"question": "\u2028?"}']))
    (tmp_path / "q.json").write_text(f"[{', '.join(lines)}]")
    wanted = ["12345678901234567", "0.5", f"1{'0' * 30}", "2020-01-02", "142"]
    for name in ("q.jsonl", "q.json"):
        rows = load_rows(str(tmp_path / name))
        columns = complete(Columns(), column_names(rows), name)
        assert [to_question(r, columns, "", "").answers[0] for r in rows[:5]] == wanted
    single = pa.table({"question": ["Q?"], "answer": pa.array([0.1], pa.float32())})
    pq.write_table(single, tmp_path / "q.parquet")
    assert load_rows(str(tmp_path / "q.parquet"))[0]["answer"] == 0.1
    datasets.Dataset(single).save_to_disk(tmp_path / "disk")
    assert load_rows(str(tmp_path / "disk"))[0]["answer"] == 0.1


@pytest.mark.parametrize(
    "wrapped", [{"data": ROWS}, {"version": 2, "data": ROWS}, {"rows": ROWS}, ROWS]
)
@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_file_may_wrap_its_rows(tmp_path: Path, wrapped: Any, indent: int | None) -> None:
    (tmp_path / "q.json").write_text(json.dumps(wrapped, indent=indent))
    assert load_rows(str(tmp_path / "q.json")) == ROWS
    row = {"prompt": chat("Q?"), "answer": "1"}  # the chat is no list of rows
    (tmp_path / "chat.jsonl").write_text(json.dumps(row))
    assert load_rows(str(tmp_path / "chat.jsonl")) == [row]


def test_all_missing_columns_are_named_at_once() -> None:
    with pytest.raises(SourceError, match=r"--text-column.*--answer-column") as caught:
        complete(Columns(), ["Frage", "Antwort"], "x.csv")
    with pytest.raises(SourceError, match="index for the group") as other:
        complete(Columns(), ["question", "answer"], "x.csv", others=[("group", "index")])
    assert "--group" not in str(other.value)
    assert "Antwort, Frage" in str(caught.value) and "\n" not in str(caught.value)


def hub(monkeypatch: pytest.MonkeyPatch, *configs: str) -> None:
    """Replace the hub by one data set, which has configurations."""

    def load(repository: str, *, name: str | None, **_: Any) -> datasets.Dataset:
        if configs and name not in configs:
            pick = "Please pick one among the available configs"
            why = f"BuilderConfig '{name}' not found. Available" if name else pick
            raise ValueError(f"Config name is missing.\n{why}: {[*configs]}\nExample of usage:")
        return datasets.Dataset.from_list([{"question": str(name), "answer": "1"}])

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(sources, "hub_answers", lambda _: True)


def test_a_configuration_of_a_hub_data_set(monkeypatch: pytest.MonkeyPatch) -> None:
    hub(monkeypatch, "main", "other")
    assert load_rows("some/set:other")[0] == load_rows("some/set", "other")[0]
    for source in ("some/set", "some/set:mian"):
        with pytest.raises(SourceError, match="'main', 'other'"):
            load_rows(source)
    hub(monkeypatch)
    assert load_rows("some/set")[0]["question"] == "None"


def test_a_local_copy_with_configurations_is_told_their_names(tmp_path: Path) -> None:
    """Its card names them, as that of openai/gsm8k."""
    configs = [f"- config_name: {x}\n  data_files: {x}/*.jsonl\n" for x in ("main", "socratic")]
    (tmp_path / "README.md").write_text(f"---\nconfigs:\n{''.join(configs)}---\n")
    for name in ("main", "socratic"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train.jsonl").write_text('{"question": "Q?", "answer": "1"}\n')
    with pytest.raises(SourceError, match=r"main.*socratic"):
        load_rows(str(tmp_path))
    assert len(load_rows(str(tmp_path / "main"))) == 1


@pytest.mark.parametrize(
    ("value", "answers"),
    [
        (["4", None, float("nan")], ("4",)),
        (["2", 3.0, [0.5]], ("2", "3", "0.5")),
        (float("nan"), None),
        (b"4", None),
        ([b"4"], None),
        ({"value": "2", "unit": "m"}, None),
        ([{"value": ["2"]}, "3"], ("2", "3")),
        # hostile lists are texts
        *((text, (text,)) for text in ("[" * 10**5 + "]", "[__import__('os')]", "[1, 2]", "[]")),
    ],
)
def test_only_texts_and_numbers_are_answers(value: Any, answers: tuple[str, ...] | None) -> None:
    row = {"question": "Q?", "answer": value}
    columns = complete(Columns(), row, "s")
    with nullcontext() if answers else pytest.raises(QuestionError):
        assert to_question(row, columns, "s", "train").answers == answers


def test_a_list_of_one_answer_as_text_is_that_answer() -> None:
    """As Skywork-OR1 writes it in verl's columns. A verifier gets what the file has."""
    chat = [{"role": "user", "content": "Q?"}]
    row = {"data_source": "s", "prompt": chat, "reward_model": {"ground_truth": '["34"]'}}
    made = to_question(row, Columns(**sources.VERL_COLUMNS), "s", "train")
    for gold, answer in ((r'["9.6\n"]', "9.6"), ('["{1, 2}"]', "{1, 2}")):
        of = row | {"reward_model": {"ground_truth": gold}}
        read = to_question(of, Columns(**sources.VERL_COLUMNS), "s", "train").answers
        assert [text.strip() for text in read] == [answer]
    code = row | {"reward_model": {"ground_truth": '["assert f(1) == 2"]'}}  # of a verifier
    assert to_question(code, Columns(**sources.VERL_COLUMNS), "s", "train").answers[0][0] == "["
    assert made.answers == ("34",) and made.row and '[\\"34\\"]' in made.row
