"""Worlds are read into one record, and refused with what is wrong."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from recipe.toy.world import Level, Slips, WorldError, load_world, names

LEVEL = {"op": "+", "digits": 2, "share": 1.0}


def written(folder: Path, **changes: Any) -> str:
    """The path of a world's file; a change to None takes the key away."""
    body = {"about": "a test", "levels": [LEVEL], **changes}
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in body.items() if v is not None}))
    return str(path)


def test_a_world_of_defaults(tmp_path: Path) -> None:
    world = load_world(written(tmp_path, slips={"carry": 0.5}))
    assert world.name == "mine"
    assert world.levels == (Level(op="+", digits=2, share=1.0, carries=None),)
    assert world.slips == Slips(carry=0.5)
    assert world.adds is None
    assert world.label_noise == 0.0
    assert world.questions.train == 4096


def test_the_worlds_of_the_project_say_what_they_are_for() -> None:
    assert {"sums", "staircase", "primed", "unprimed"} <= set(names())
    for name in names():
        assert len(load_world(name).about) > 40


def test_the_control_differs_in_the_priming_alone() -> None:
    primed, control = load_world("primed").record(), load_world("unprimed").record()
    assert {key for key in primed if primed[key] != control[key]} == {"name", "adds"}
    assert control["adds"] == (0.5, 0.5, 0.5, 0.5)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"slips": {"cary": 0.5}}, r"slips\.cary is no key; known are borrow, carry"),
        ({"level": 3}, "level is no key"),
        ({"name": "x"}, "name is no key"),  # a world is named as its file
        ({"slips": {"carry": 1.5}}, r"slips\.carry=1\.5 must be a number from 0 to 1"),
        ({"slips": {"carry": "half"}}, "'half' must be a number"),
        ({"slips": [0.5]}, "must be keys and values"),
        ({"label_noise": -0.1}, "label_noise=-0.1"),
        ({"label_noise": True}, "label_noise=True"),
        ({"levels": []}, "one entry at least"),
        ({"levels": None}, "`about` and `levels` must be there"),
        ({"levels": [{**LEVEL, "share": 0.4}, {**LEVEL, "share": 0.4}]}, "sum to 0.8, not to 1"),
        ({"levels": [{**LEVEL, "op": "*"}]}, r"entry 1: op='\*'"),
        ({"levels": [{**LEVEL, "digits": 0}]}, "digits=0 must be a whole number from 1 to 6"),
        ({"levels": [{**LEVEL, "digits": 2.0}]}, r"digits=2\.0 must be a whole number"),
        ({"levels": [{**LEVEL, "carries": 2}]}, "carries=2 must be a whole number from 0 to 1"),
        ({"levels": [{"op": "+", "digits": 2}]}, "entry 1: share must be there"),
        ({"adds": [0.5, 0.5]}, "must list 4 numbers, one a form"),
        ({"adds": [0.5, 0.5, 0.5, 2]}, "adds=2 must be a number from 0 to 1"),
        ({"questions": {"train": 0}}, r"questions\.train=0 must be a whole number from 1"),
        ({"updates": "many"}, "updates='many'"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(WorldError, match=said):
        load_world(written(tmp_path, **changes))


def test_a_world_that_is_not_there_and_one_that_is_no_yaml(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match=r"there is no summs\.yaml; known are .*sums"):
        load_world("summs")
    (tmp_path / "broken.yaml").write_text("levels: [")
    with pytest.raises(WorldError, match="no readable yaml"):
        load_world(str(tmp_path / "broken.yaml"))
