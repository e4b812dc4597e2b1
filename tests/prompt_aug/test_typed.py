"""The typed reader: every problem of a file in one error that names the file, the key and value."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field, model_validator

from prompt_aug import typed
from prompt_aug.base.files import FileError


class Level(typed.Record):
    op: Literal["+", "-"]
    digits: Annotated[int, Field(ge=1, le=6)]


class World(typed.Record):
    levels: Annotated[typed.Several[Level], Field(min_length=1)]
    rate: typed.Share = 0.0
    name: typed.Text | typed.Count | None = None
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
    assert typed.read_typed(path, World) == World(levels=(Level(op="+", digits=2),), rate=0.25)


def test_every_problem_is_named_with_its_key() -> None:
    with pytest.raises(FileError) as error:
        typed.parse_typed(GOOD | {"rate": 2, "levels": [{"op": "+", "digts": 1}]}, World, "w.yaml")
    for part in ("w.yaml: rate=2", "levels[0].digits: not set", "levels[0].digts: unknown key"):
        assert part in str(error.value)


@pytest.mark.parametrize("text", ["[]", "null", '{"n": "3"}', '{"n": 1, "of": {"a": "b"}}', "{}"])
@pytest.mark.parametrize("kind", ["json", "yaml"])
def test_a_stored_record_has_its_types(text: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_text(text)
    with pytest.raises(FileError, match=str(path)):
        typed.read_record(path, "n", n=int, of=dict[str, int])
    path.write_text('{"n": 1, "more": "x"}')
    assert typed.read_record(path, "n", n=int, of=dict[str, int]) == {"n": 1, "more": "x"}


@pytest.mark.parametrize("text", ["levels: 1\nlevels: 2", "levels: [", "a: 2020-99-99"])
def test_repeated_keys_and_broken_yaml_are_refused(text: str) -> None:
    with pytest.raises(FileError, match=r"w\.yaml"):
        typed.parse_yaml(text, "w.yaml")
