"""Grade each skill that a response uses by its columns and its box."""

import re
from collections.abc import Iterable

from recipe.toy.problems import Problem
from recipe.toy.work import columns_of, digits_of

SKILLS = ("operation", "carry", "borrow", "fact", "place", "copy")
_RESTATED = re.compile(r"(\d+)([+-])(\d+)")
_COLUMN = re.compile(r"(\d+)([+-])(\d)([+-]1)?=(\d+)")
_BOX = re.compile(r"\\boxed\{(\d+)\}")


def skills_used(problem: Problem, text: str) -> dict[str, list[bool]]:
    """Return for every skill a list: True or False for each place where the skill was needed.

    With other operands nothing is graded, with unreadable columns only the operation. `place` is
    needed if the last two digits of the computed answer differ. `place` and `copy` are graded only
    if the box holds that answer or a known mistake.
    """
    found: dict[str, list[bool]] = {skill: [] for skill in SKILLS}
    restated = _RESTATED.search(text)
    if restated is None:
        return found
    a, op, b = int(restated[1]), restated[2], int(restated[3])
    if {a, b} != {problem.a, problem.b}:
        return found
    found["operation"].append(op == problem.op)
    count = columns_of(a, b)
    start = restated.start() if count == 1 else restated.end()
    columns = _COLUMN.findall(text, start)[:count]
    if len(columns) < count or any(column[1] != op for column in columns):
        return found
    due, digits = False, ""
    for number, (left, _, right, note, result) in enumerate(columns):
        last = number == count - 1
        if due:
            found["carry" if op == "+" else "borrow"].append(bool(note))
        taken = int(right) + bool(note)
        wanted = int(left) + taken if op == "+" else int(left) - taken
        found["fact"].append(int(result) == wanted)
        due = int(result) > 9 if op == "+" else int(left) > digits_of(a, count)[number]
        digits = (result if last else result[-1]) + digits
    box = _BOX.search(text)
    if box:
        _read_box(found, str(int(digits)), box[1])
    return found


def _read_box(found: dict[str, list[bool]], answer: str, box: str) -> None:
    """Add place and copy to `found`; `answer` is the result of the columns."""
    for copied, wanted in ((True, answer), (False, str(int(answer) + 1))):
        swapped = wanted[:-2] + wanted[:-3:-1]
        if box in (wanted, swapped):
            found["copy"].append(copied)
            if swapped != wanted:
                found["place"].append(box == wanted)
            return


def rates(pairs: Iterable[tuple[Problem, str]]) -> dict[str, tuple[float, int]]:
    """Return, for every skill that was needed, its share of right places and their number."""
    seen: dict[str, list[bool]] = {skill: [] for skill in SKILLS}
    for problem, text in pairs:
        for skill, right in skills_used(problem, text).items():
            seen[skill] += right
    return {skill: (sum(r) / len(r), len(r)) for skill, r in seen.items() if r}
