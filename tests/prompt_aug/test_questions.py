"""Questions: the uid by hand, files there and back, foreign files, refusals with row numbers."""

import hashlib
import json
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prompt_aug.questions import (
    Question,
    QuestionError,
    from_row,
    in_double,
    is_record,
    make_question,
    read_parquet,
    to_row,
    write_parquet,
)
from prompt_aug.verifiers import verifier_row


def ask(text: str = "What is 1 + 1?", answer: str = "2", **values: Any) -> Question:
    return make_question(text=text, answers=[answer], source="test", **values)


def test_uid_by_hand() -> None:
    content = b'["What is 1 + 1?", ["2", "two"]]'
    made = make_question(text=" What is\n1 +  1? ", answers=["2 ", "two"], source="a")
    assert made.uid == hashlib.sha256(content).hexdigest()[:16]
    assert made.text == "What is\n1 +  1?"
    assert made.answers == ("2", "two")


def test_a_text_is_no_list_of_answers() -> None:
    with pytest.raises(QuestionError, match="must be a list"):
        make_question(text="q", answers="12", source="s")


def test_uid_is_of_the_content_alone() -> None:
    assert ask().uid == ask(split="test", level=3, rephrasings=["1 + 1 = ?"]).uid
    assert len({ask().uid, ask(answer="3").uid, ask(text="What is 1 + 2?").uid}) == 3
    # NFC: an e with an accent is the same written in one code point or two
    assert ask(text="caf\u00e9").uid == ask(text="cafe\u0301").uid


def test_row_by_hand() -> None:
    made = ask(split="test", level=4, rephrasings=["1 + 1 = ?"])
    assert to_row(made, 7) == {
        "data_source": "test",
        "prompt": [{"role": "user", "content": "What is 1 + 1?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "2"},
        "extra_info": {
            "uid": made.uid,
            "split": "test",
            "index": 7,
            "level": 4,
            "answers": ["2"],
            "options": [],
            "rephrasings": ["1 + 1 = ?"],
            "pass_rate": None,
            "row": None,
        },
    }


def test_columns_that_no_field_holds_stay_in_the_row() -> None:
    made = from_row(to_row(ask()))
    assert made.row is None
    own = {"reward_model": {"ground_truth": {"tests": [1, 2]}}, "cases": [{"in": "1"}]}
    extra = {"index": 3, "entry": 7, "pass_rate": 0.25}
    made = from_row({**to_row(ask()), **own, "extra_info": extra})
    assert (made.pass_rate, made.answers) == (0.25, ('{"tests": [1, 2]}',))
    assert json.loads(str(made.row)).items() >= own.items()
    assert from_row(to_row(made)) == made  # also through a second file


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda t: t.strip())
# "inf", "nan" and "1e999" are no answers.
ANSWERS = TEXTS.filter(lambda t: not any(c in t.lower() for c in ("inf", "nan", "e")))


@settings(deadline=None)
@given(
    TEXTS,
    st.lists(ANSWERS, min_size=1, max_size=3),
    st.none() | st.integers(1, 5),
    st.none() | TEXTS,
)
def test_there_and_back(
    text: str, answers: list[str], level: int | None, system: str | None
) -> None:
    given = {"split": "test", "level": level, "rephrasings": answers, "system": system}
    made = make_question(text=text, answers=answers, source="s", **given)  # type: ignore[arg-type]
    assert from_row(to_row(made, 3)) == made


def test_writing_is_atomic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "q.parquet"
    write_parquet([ask()], path)
    before = path.read_bytes()

    def killed(table: pa.Table, where: IO[bytes]) -> None:
        where.write(b"half a file")
        raise KeyboardInterrupt

    monkeypatch.setattr(pq, "write_table", killed)
    with pytest.raises(KeyboardInterrupt):
        write_parquet([ask(text="other?")], path)
    assert path.read_bytes() == before


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def foreign(content: str, gold: Any) -> dict[str, Any]:
    chat = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": content}]
    gold = {"style": "rule", "ground_truth": gold}
    return {"data_source": "theirs", "prompt": chat, "reward_model": gold}


def test_foreign_rows(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "f.parquet", [foreign("Q? ", "7"), foreign("R?", "8")])
    rest = {"source": "theirs", "system": "Be brief."}
    wanted = [make_question(text=t, answers=[a], **rest) for t, a in (("Q?", "7"), ("R?", "8"))]
    assert read_parquet(path) == wanted
    assert from_row(foreign("Q?", ["7", "seven"])).answers == ("7", "seven")
    assert from_row(foreign("Q?", 34)).answers == ("34",)
    assert from_row({**foreign("Q?", "7"), "images": []}).text == "Q?"
    for level in (2**63, float("inf"), float("nan"), "hard"):  # none that a file can hold
        assert from_row({**foreign("Q?", "7"), "extra_info": {"level": level}}).level is None


@pytest.mark.parametrize(
    ("gold", "answer"),
    [
        ({"target": ["0"]}, "0"),
        ({"target": "0", "unit": None, "more": [], "note": " "}, "0"),
        ({"a": {"b": 3.0}}, "3"),
        ({"a": 6.02e23}, "602" + 21 * "0"),  # not int(6.02e23), 601999999999999995805696
        ({"target": ["0", "1"]}, None),
        ({"value": "3", "unit": "cm"}, None),
    ],
)
def test_a_record_that_holds_one_text_is_that_text(gold: Any, answer: str | None) -> None:
    made = from_row(foreign("Q?", gold))
    assert made.answers == (answer or json.dumps(gold),)
    assert verifier_row(to_row(made))["reward_model"]["ground_truth"] == gold
    assert is_record(made.answers[0]) == (answer is None)


def test_single_precision_is_its_shortest_decimal(tmp_path: Path) -> None:
    records = pa.list_(pa.struct({"g": pa.float32()}))
    single = pa.array([[{"g": 7.7}], [{"g": 0.1}], [], None], records)
    half = pa.array([np.float16(7.7), np.float16(1e-7), None, np.float16("inf")], pa.float16())
    nested = pa.array([[0.1], [16777216], [float("nan")], None], pa.large_list(pa.float32()))
    named = pa.array([[("a", 0.1)], [], None, []], pa.map_(pa.string(), pa.float32()))
    columns = {"single": single, "half": half, "nested": nested, "text": list("abcd")}
    table = in_double(pa.table({**columns, "named": named}))
    assert table["named"].to_pylist()[:2] == [[{"key": "a", "value": 0.1}], []]
    assert table["single"].to_pylist() == [[{"g": 7.7}], [{"g": 0.1}], [], None]
    assert table["half"].to_pylist() == [7.7, 1e-07, None, float("inf")]
    assert table["nested"].to_pylist()[:2] == [[0.1], [16777216]]
    rows = [foreign("Q?", 7.7), foreign("R?", 0.5)]
    gold = pa.struct([("style", pa.string()), ("ground_truth", pa.float32())])
    typed = pa.table(
        {n: pa.array([r[n] for r in rows], gold if n == "reward_model" else None) for n in rows[0]}
    )
    pq.write_table(typed, tmp_path / "verl.parquet")
    assert [q.answers for q in read_parquet(tmp_path / "verl.parquet")] == [("7.7",), ("0.5",)]


def test_a_verifier_gets_the_row_of_its_file(tmp_path: Path) -> None:
    given = [
        {
            **foreign(f"{i}?", "  1\n"),
            "ability": {"name": "code"},
            "extra_info": {"split": "train", "index": 5000 + i, "level": "hard", "row": 7},
        }
        for i in range(2)
    ]
    read = read_parquet(write_rows(tmp_path / "theirs.parquet", given))
    write_parquet(read[1:], tmp_path / "ours.parquet")
    (made,) = read_parquet(tmp_path / "ours.parquet")
    row = verifier_row(to_row(made))
    assert row["reward_model"]["ground_truth"] == "  1\n"
    assert row["ability"] == {"name": "code"}
    assert row["extra_info"].items() >= given[1]["extra_info"].items()


@pytest.mark.parametrize("reading", ["last", "all"])
def test_a_chat_of_several_turns_ends_with_the_question(reading: Any) -> None:
    row, blanks = foreign("Q?", "7"), {"all": " Q?\n", "last": "Q?"}[reading]
    shown = [{"role": "user", "content": "1?"}, {"role": "assistant", "content": " 1\n"}]
    row["prompt"] = [row["prompt"][0], *shown, {"role": "user", "content": " Q?\n"}]
    made = from_row(row, reading)
    assert (made.text, made.system, len(made.earlier)) == (blanks, "Be brief.", 3)
    assert made.uid == from_row(foreign("Q?", "7")).uid
    if reading == "all":
        assert to_row(made)["prompt"] == row["prompt"]
        assert from_row(to_row(made), "all") == made
    with pytest.raises(QuestionError, match="has the roles user, assistant"):
        from_row(row | {"prompt": shown}, reading)


INFINITE = (float("inf"), [-float("inf")], "inf", "-Infinity", "INF", "1e400", " +2.5E999 ", "nan")


def turns(roles: str) -> dict[str, Any]:
    return {"prompt": [{"role": role, "content": "Q?"} for role in roles.split()]}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"images": ["a.png"]}, "the column 'images' is not empty"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "holds parts"),
        (turns("user assistant user"), "the column 'prompt' has 2 user messages"),
        (turns("system user assistant"), "has the roles system, user, assistant"),
        (turns("system"), "the column 'prompt' has no user message"),
        ({"prompt": [{"role": "system"}, *turns("user")["prompt"]]}, "a message has no"),
        ({"prompt": ' [{"role": "user", "content": "Q?"}]'}, "holds a chat as text"),
        ({"extra_info": '{"index": 1}'}, "is text"),
        ({"reward_model": {"ground_truth": ""}}, "no answer"),
        ({"extra_info": {"pass_rate": 1.5}}, "pass_rate=1.5"),
        ({"extra_info": {"pass_rate": "half"}}, "pass_rate=half"),
        ({"prompt": 5}, "the column 'prompt'"),
        ({"prompt": ["Q?"]}, "the column 'prompt'"),
        *(({"reward_model": {"ground_truth": gold}}, "answer") for gold in INFINITE),
        *(({"prompt": f"Q{half}?"}, "surrogate") for half in ("\ud800", "\udfff")),
        ({"reward_model": {"ground_truth": ["1", "\udc80"]}}, "surrogate"),
        ({"extra_info": {"rephrasings": ["\udc80"]}}, "surrogate"),
    ],
)
def test_rows_that_are_no_question(change: dict[str, Any], named: str) -> None:
    with pytest.raises(QuestionError, match=named):
        from_row(foreign("Q?", "7") | change)


def test_unusable_rows_are_named_by_number(tmp_path: Path) -> None:
    rows = [foreign(f"{i}?", "" if i in (1, 3) else "1") for i in range(5)]
    with pytest.raises(QuestionError, match=r"2 of 5 rows .*\n  row 1: no answer.*\n  row 3: no"):
        read_parquet(write_rows(tmp_path / "bad.parquet", rows))


def test_real_file(shared_data: Path) -> None:
    folder = shared_data / "math_level3to5"
    questions = read_parquet(folder / "SimpleRL-simplelr_qwen_level3to5.test.parquet")
    assert len(questions) == len({q.uid for q in questions}) == 500
    assert all(q.text == q.text.strip() and q.answers for q in questions)
    with pytest.raises(QuestionError, match=r"2 of 8523 rows.*\n.*row 5054.*\n.*row 5158"):
        read_parquet(folder / "SimpleRL-simplelr_qwen_level3to5.train.parquet")
