"""Questions of a world: disjoint splits, shares, rephrasings; `sums` unchanged; bad records."""

import functools
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from prompt_aug.questions import to_row
from recipe.toy import world as made
from recipe.toy.world import (
    Level,
    Problem,
    World,
    WorldError,
    load_world,
    problems,
    rephrasings,
    to_question,
)

SUMS = load_world("sums")


@pytest.fixture(autouse=True, scope="module")
def shared() -> Iterator[None]:
    """A world's problems are a function of it: made once for all tests, most of their time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(made, "all_problems", functools.cache(made.all_problems))
        yield


def test_sums_has_the_questions_that_the_published_numbers_are_of() -> None:
    """A change of this hash wants the demo anew."""
    rows = []
    for seed in (0, 3):
        for split, count in (("train", 4096), ("validation", 64), ("test", 512)):
            for p in problems(SUMS, split, count, seed):
                rows.append(json.dumps(to_row(to_question(p, split, seed))))
    text = "".join(rows).replace('"rephrasings"', '"neighbours"')  # the field's name at the time
    for later in ('"options": [], ', ', "pass_rate": null, "row": null'):  # not there at the time
        text = text.replace(later, "")
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "bc2a1a4f0b6e5017"


@pytest.mark.parametrize("name", ["sums", "staircase"])
def test_splits_are_disjoint_and_a_function_of_the_seed(name: str) -> None:
    world = load_world(name)
    of = {s: {(p.a, p.op, p.b) for p in problems(world, s, 60, 0)} for s in made.SPLITS}
    assert not of["train"] & of["test"]
    assert not of["validation"] & (of["train"] | of["test"])
    with pytest.MonkeyPatch.context() as patch:  # made anew, the others' stay
        patch.setattr(made, "all_problems", made.all_problems.__wrapped__)  # type: ignore[attr-defined]
        again = {(p.a, p.op, p.b) for p in problems(world, "test", 60, 0)}
    another = {(p.a, p.op, p.b) for p in problems(world, "test", 60, 1)}
    assert again == of["test"] != another


def test_levels_have_their_shares_and_their_carries() -> None:
    sums = Level(op="+", digits=3, carries=2, share=0.75)
    differences = Level(op="-", digits=3, carries=0, share=0.25)
    world = World(about="two levels", levels=(sums, differences))
    result = problems(world, "train", 40, 0)
    assert [sum(p.level == n for p in result) for n in (1, 2)] == [30, 10]
    for p in result:
        if p.level == 1:
            assert p.op == "+"
            assert p.a % 10 + p.b % 10 > 9
            assert p.a % 100 + p.b % 100 > 99
        else:
            assert p.op == "-"
            assert all(int(x) >= int(y) for x, y in zip(str(p.a), str(p.b), strict=True))


def test_too_many_questions_are_refused() -> None:
    with pytest.raises(WorldError, match=r"level 2 \(2-digit addition with 0 carries\).* 600 want"):
        problems(SUMS, "validation", 4000, 0)


def test_question_has_three_rephrasings() -> None:
    problem = Problem(a=47, op="+", b=38, level=3)
    question = to_question(problem, "train", 0)
    assert question.answers == ("85",)
    assert len({question.text, *question.rephrasings}) == 4
    assert all("47" in text and "38" in text for text in (question.text, *question.rephrasings))
    assert sorted(rephrasings(problem, 0)) == [0, 1, 2, 3]
    firsts = {rephrasings(Problem(a=a, op="+", b=38, level=3), 0)[0] for a in range(40)}
    assert firsts == {0, 1, 2, 3}


LEVEL = {"op": "+", "digits": 2, "share": 1.0}


def written(folder: Path, **changes: Any) -> str:
    """The path of a world's file; a change to None takes the key away."""
    body = {"about": "a test", "levels": [LEVEL], **changes}
    path = folder / "mine.yaml"
    path.write_text(yaml.safe_dump({k: v for k, v in body.items() if v is not None}))
    return str(path)


@pytest.mark.parametrize(
    ("changes", "output"),
    [
        ({"slips": {"cary": 0.5}}, r"slips\.cary: unknown key, did you mean carry"),
        ({"name": "x"}, "name=x: "),  # a world is named as its file
        ({"levels": [{**LEVEL, "share": 0.4}, {**LEVEL, "share": 0.4}]}, "sum to 0.8, not to 1"),
        ({"levels": [{**LEVEL, "carries": 2}]}, "carries=2 should be less than digits=2"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, changes: dict[str, Any], output: str) -> None:
    with pytest.raises(WorldError, match=output):
        load_world(written(tmp_path, **changes))
