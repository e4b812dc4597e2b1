"""Skills are read off a response as they were put into it."""

import pytest

from recipe.toy.demonstrations import demonstration
from recipe.toy.diagnose import skills_used
from recipe.toy.problems import Problem
from recipe.toy.work import Mistakes

SUM = Problem(a=346, op="+", b=285, level=1)  # 631, two carries
DIFFERENCE = Problem(a=52, op="-", b=27, level=1)  # 25, one borrow


@pytest.mark.parametrize(
    ("problem", "mistakes", "wrong"),
    [
        (SUM, Mistakes(), {}),
        (DIFFERENCE, Mistakes(), {}),
        (SUM, Mistakes(forget=frozenset({2})), {"carry": [True, False]}),
        (DIFFERENCE, Mistakes(forget=frozenset({1})), {"borrow": [False]}),
        (SUM, Mistakes(fact=frozenset({1})), {"fact": [True, False, True]}),
        (SUM, Mistakes(place=True), {"place": [False]}),
        (SUM, Mistakes(copy=True), {"copy": [False]}),
        (SUM, Mistakes(copy=True, place=True), {"copy": [False], "place": [False]}),
        # 47 - 38 for 47 + 38: its one borrow is due and kept, and 9 has no places
        (
            Problem(a=47, op="+", b=38, level=1),
            Mistakes(operation=True),
            {"operation": [False], "carry": [], "borrow": [True], "place": []},
        ),
    ],
)
@pytest.mark.parametrize("template", ["qwen-math", "deepseek-r1", "reflective_prompt"])
def test_a_mistake_is_found_where_it_was_made(
    problem: Problem, mistakes: Mistakes, wrong: dict[str, list[bool]], template: str
) -> None:
    columns = len(str(problem.a))
    due = [True] * (columns - 1)
    right: dict[str, list[bool]] = {
        "operation": [True],
        "carry": due if problem.op == "+" else [],
        "borrow": due if problem.op == "-" else [],
        "fact": [True] * columns,
        "place": [True],
        "copy": [True],
    }
    assert skills_used(problem, demonstration(problem, template, mistakes)) == {**right, **wrong}


def test_what_cannot_be_read_shows_nothing() -> None:
    assert not any(skills_used(SUM, "I do not know.").values())
    assert not any(skills_used(SUM, "345+285: 5+5=10, 4+8+1=13, 3+2+1=6. \\boxed{630}").values())
    cut = skills_used(SUM, "346+285: 6+5=11, 4+8")
    assert cut == {**{key: [] for key in cut}, "operation": [True]}
    other = skills_used(SUM, "346+285: 6+5=11, 4+8+1=13, 3+2+1=6. \\boxed{999}")
    assert other["place"] == other["copy"] == []
