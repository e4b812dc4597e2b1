"""Worlds are read into one record, and refused with what is wrong."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from recipe.toy.world import WorldError, load_world

LEVEL = {"op": "+", "digits": 2, "share": 1.0}


def written(folder: Path, **changes: Any) -> str:
    """The path of a world's file; a change to None takes the key away."""
    body = {"about": "a test", "levels": [LEVEL], **changes}
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in body.items() if v is not None}))
    return str(path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"slips": {"cary": 0.5}}, r"slips\.cary: unknown key, did you mean carry"),
        ({"level": 3}, "level: unknown key, did you mean levels"),
        ({"name": "x"}, "name=x: "),  # a world is named as its file
        ({"slips": {"carry": 1.5}}, r"slips\.carry=1\.5: should be less than or equal to 1"),
        ({"levels": []}, "levels=.*: should have at least 1 item"),
        ({"levels": None}, "levels: not set"),
        ({"levels": [{**LEVEL, "share": 0.4}, {**LEVEL, "share": 0.4}]}, "sum to 0.8, not to 1"),
        ({"levels": [{**LEVEL, "op": "*"}]}, r"levels\[0\]\.op=\*: should be '\+' or '-'"),
        ({"levels": [{**LEVEL, "digits": 0}]}, "digits=0: should be greater than or equal to 1"),
        ({"levels": [{**LEVEL, "carries": 2}]}, "carries=2 should be less than digits=2"),
        ({"levels": [{"op": "+", "digits": 2}]}, r"levels\[0\]\.share: not set"),
        ({"questions": {"train": 0}}, r"questions\.train=0: should be greater"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, changes: dict[str, Any], said: str) -> None:
    with pytest.raises(WorldError, match=said):
        load_world(written(tmp_path, **changes))


def test_a_world_that_is_not_there_and_one_that_is_no_yaml(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match=r"there is no summs\.yaml; known are .*sums"):
        load_world("summs")
    (tmp_path / "broken.yaml").write_text("levels: [")
    with pytest.raises(WorldError, match="not valid yaml"):
        load_world(str(tmp_path / "broken.yaml"))
