"""The typed reader: every problem of a file in one error that names the file, the key and value."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, model_validator

from prompt_aug.base.errors import UserError
from prompt_aug.base.files import FileError
from prompt_aug.typed import Count, Record, Several, Share, Text, parse_typed, read_typed


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
        ({"levels": None}, ["levels: not set"]),
        ({"levels": [{"op": "*", "digits": 2}]}, ["levels[0].op=*", "'+' or '-'"]),
        ({"levels": [{"op": "+", "digits": "2"}]}, ["levels[0].digits=2", "whole number"]),
        ({"levels": [{"op": "+"}]}, ["levels[0].digits: not set"]),
        ({"levels": [{"op": "+", "digits": 2, "digts": 1}]}, ["levels[0].digts", "digits?"]),
        ({"rat": 1}, ["rat: unknown key", "rate?"]),
        ({"RATE": 1}, ["RATE: unknown key", "did you mean rate?"]),
        ({"zzz": 1}, ["zzz: unknown key", "Known keys: by_name, levels"]),
        ({"rate": True}, ["rate=true", "number"]),
        ({"rate": float("inf")}, ["rate=inf", "finite"]),
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
