"""scripts/smollm2.py: no training question is held out, asked twice, or in the warm start."""

import csv
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
import smollm2

from prompt_aug.prepare.filters import OverlapIndex, overlapping, words
from prompt_aug.questions import Question, read_parquet

THINGS = "kites drums coins ropes lamps forks tents belts vases gloves shells stamps".split()


def asked(thing: str, first: str = "Anna") -> str:
    things = f"{thing} in her {thing} box and buys number1 {thing}"
    return f"{first} has number0 {things} , how many {thing} are there ?"


def filled(thing: str) -> str:
    return asked(thing).replace("number0", "7").replace("number1", "2")


def write_csv(path: Path, texts: Sequence[str], answer: float = 9) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["Question", "Numbers", "Equation", "Answer"])
        table.writerows([text, "7.0 2.0", "+ number0 number1", answer] for text in texts)


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two held-out folds and SVAMP share a question with training, in other letters."""
    monkeypatch.setattr(smollm2, "SOLVED", 2)
    data = tmp_path / "svamp" / "data"
    write_csv(data / "cv_asdiv-a/fold0/dev.csv", [asked("KITES"), asked("pipes", "Bob")])
    write_csv(data / "cv_asdiv-a/fold1/dev.csv", ["so " + asked("drums") + " tell me now"])
    write_csv(data / "mawps-asdiv-a_svamp/train.csv", [*map(asked, THINGS), asked("LAMPS")])
    body, _, query = filled("coins").partition(" , ")
    row = {"Body": body, "Question": f"And {query}", "Answer": 9.0}
    (data.parent / "SVAMP.json").write_text(json.dumps([row]))
    return data.parent


def made(clone: Path, out: Path, *para: str) -> dict[str, list[Question]]:
    assert smollm2.main(["data", str(out), str(clone), *para]) == 0
    return {path.stem: read_parquet(path) for path in out.glob("*.parquet")}


def overlaps(questions: Sequence[Question], others: Sequence[Question]) -> int:
    index = OverlapIndex({"others": [q.text for q in others]})
    return len(overlapping(list(enumerate(questions)), index))


def test_training_has_no_held_out_question_and_no_repeat(
    clone: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = made(clone, tmp_path / "out")
    assert {name: len(rows) for name, rows in files.items()} == {
        "train": 7,  # 13 rows: three are held out, one is a repeat, two are of the warm start
        "asdiv_a": 3,
        "svamp": 1,
    }
    assert overlaps(files["train"], [*files["asdiv_a"], *files["svamp"]]) == 0
    assert len({tuple(words(q.text)) for q in files["train"]}) == 7
    output = capsys.readouterr().out
    assert "3 of 13 questions dropped" in output and "1 dropped" in output
    solved, rest = smollm2.training(clone / "data")
    assert len(solved) == 2 and overlaps(rest, solved) == 0


def test_a_repeat_of_a_worked_answer_and_two_answers_to_one_question(clone: Path) -> None:
    train = clone / "data" / smollm2.TRAIN
    solved, before = smollm2.training(clone / "data")
    # All but two words of a worked answer's question, which overlap finds and equality does not.
    near = [
        q.text.replace("7", "number0").replace("2", "number1")[:-2] + "in all ?" for q in solved
    ]
    write_csv(train, [*map(asked, THINGS), *near])
    again, after = smollm2.training(clone / "data")
    assert overlaps(after, again) == 0
    assert len(again) + len(after) <= len(solved) + len(before) + 1
    with train.open("a", newline="") as file:
        csv.writer(file).writerow([asked("Tents"), "7.0 2.0", "- number0 number1", 5])
    assert not [q for part in smollm2.training(clone / "data") for q in part if "ents" in q.text]


def test_rewordings_have_the_answer_and_the_numbers(clone: Path, tmp_path: Path) -> None:
    """A third of the questions with three good rewordings is held out, wording by wording."""
    rows = []
    for number, thing in enumerate(THINGS):
        rows.append({"id": number, "original_text": filled(thing), "ans": 9})
        good = [f"Sum 7 {thing} and 2 {thing} number {n}." for n in "abc"]
        bad = [(f"Sum seven {thing} and 2.", 9), (f"From 7 {thing} take 2.", "5"), ("7 2 ?", "")]
        if thing != THINGS[-1]:  # one question has two only
            bad.append((good.pop(), 9))
        texts = [*bad, *((text, 9) for text in good)]
        for place, (text, answer) in enumerate(texts, start=1):
            rows.append({"id": place * 10_000 + number, "original_text": text, "ans": answer})
    para = tmp_path / "para"
    for name in smollm2.PARAPHRASED:
        (para / name).parent.mkdir(parents=True, exist_ok=True)
        (para / name).write_text("[]" if name.endswith("json") else "id,original_text,ans\n")
    (para / smollm2.PARAPHRASED[0]).write_text(json.dumps(rows))
    files = made(clone, tmp_path / "out", str(para))
    assert files["train"] == made(clone, tmp_path / "other")["train"]
    wordings = [files[f"para_q{n}"] for n in range(4)]
    tested, trained = wordings[0], files["para"]
    assert tested and trained and not {q.uid for q in tested} & {q.uid for q in trained}
    assert {len(part) for part in wordings} == {len(tested)}
    for question in trained:
        assert len(question.rephrasings) == 3 and question.answers == ("9",)
        assert all("7" in text and "2" in text for text in question.rephrasings)
    for same in zip(*wordings, strict=True):  # one order in all files
        assert len({t for t in THINGS if all(t in q.text for q in same)}) == 1
        assert len({q.text for q in same}) == 4
    (para / smollm2.PARAPHRASED[1]).unlink()
    assert smollm2.main(["data", str(tmp_path / "none"), str(clone), str(para)]) == 2
    assert not (tmp_path / "none").exists()
