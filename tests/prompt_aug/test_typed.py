"""The typed reader: every problem of a file in one error that names the file, the key and value."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from pydantic import Field, model_validator

from prompt_aug.base.errors import UserError
from prompt_aug.base.files import FileError
from prompt_aug.typed import (
    Count,
    Record,
    Several,
    Share,
    Text,
    parse_typed,
    parse_yaml,
    read_typed,
)


class Level(Record):
    op: Literal["+", "-"]
    digits: Annotated[int, Field(ge=1, le=6)]


class World(Record):
    levels: Annotated[Several[Level], Field(min_length=1)]
    rate: Share = 0.0
    name: Text | Count | None = None
    by_name: dict[str, Level] | None = None

    @model_validator(mode="after")
    def _whole(self) -> "World":
        if self.rate == 0.5:
            raise ValueError("rate and levels contradict")
        return self


GOOD: dict[str, Any] = {"levels": [{"op": "+", "digits": 2}]}


def test_a_good_file_becomes_a_frozen_record(tmp_path: Path) -> None:
    path = tmp_path / "world.yaml"
    path.write_text("levels: [{op: +, digits: 2}]\nrate: 0.25\n")
    assert read_typed(path, World) == World(levels=(Level(op="+", digits=2),), rate=0.25)


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"levels": []}, ["levels=[]", "at least 1"]),
        ({"levels": [{"op": "*", "digits": 2}]}, ["levels[0].op=*", "'+' or '-'"]),
        ({"levels": [{"op": "+"}]}, ["levels[0].digits: not set"]),
        ({"levels": [{"op": "+", "digits": 2, "digts": 1}]}, ["levels[0].digts", "digits?"]),
        ({"RATE": 1}, ["RATE: unknown key", "did you mean rate?"]),
        ({"zzz": 1}, ["zzz: unknown key. Remove it"]),
        ({"rate": True}, ["rate=true", "number"]),
        ({"rate": 0.5}, ["w.yaml: rate and levels contradict"]),
        ({"name": -1}, ["name=-1", "0"]),
        ({"name": " "}, ["name= :", "empty"]),
        ({"by_name": {"a": {"op": "+"}}}, ["by_name.a.digits: not set"]),
        ({"rate": 2, "name": -1}, ["rate=2", "w.yaml: name=-1"]),
    ],
)
def test_wrong_values_are_named(changes: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(FileError) as error:
        parse_typed(GOOD | changes, World, "w.yaml")
    assert all(part in str(error.value) for part in ["w.yaml", *parts])


@pytest.mark.parametrize(
    "text", ["levels: 1\nlevels: 2", "levels: [", "a: 2020-99-99", "[]", "\xff"]
)
def test_a_file_that_cannot_be_read_names_itself(tmp_path: Path, text: str) -> None:
    class OwnError(UserError):
        pass

    path = tmp_path / "world.yaml"
    for make in (lambda: path.write_bytes(text.encode("latin-1")), path.unlink):
        make()
        with pytest.raises(OwnError, match=r"world\.yaml"):
            read_typed(path, World, OwnError)


NINE = [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]  # 9 ** 8 texts


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("\n".join(["a0: &a0 lol", *NINE]), "line 3: *a1 contains an alias"),
        ("\n".join(["a0: &a0 []", *NINE]), "line 3: *a1 contains an alias"),
        ("[" * 100_000, "line 1: more than 100 levels"),
        ("a: &a\n  - *a", "line 2: *a contains an alias"),
        ("a: 1\nb: 12:30", "line 2: 12:30"),
        ("12:30:10.5: b", "12:30:10.5"),
        ("a: -010", "-010"),
    ],
)
def test_hostile_and_misread_yaml_is_one_line(text: str, named: str) -> None:
    with pytest.raises(FileError) as error:
        parse_yaml(text, "w.yaml")
    assert f"w.yaml, {named}" in str(error.value) or named in str(error.value)
    assert len(str(error.value)) < 120 and "\n" not in str(error.value)


def test_other_yaml_has_the_values_of_yaml() -> None:
    text = "a: &a {b: '12:30', c: 0.10}\nd: [*a, 0, 2026-01-31, 3:a, \"010\"]\ne: {<<: *a, b: 1}\n"
    assert parse_yaml(text, "w.yaml") == yaml.safe_load(text)
