"""Which of a world's skills a response used rightly: read off its columns, not off its answer."""

import re
from collections.abc import Iterable

from recipe.toy.problems import Problem
from recipe.toy.work import columns_of, digits_of

SKILLS = ("operation", "carry", "borrow", "fact", "place", "copy")
_RESTATED = re.compile(r"(\d+)([+-])(\d+)")
_COLUMN = re.compile(r"(\d+)([+-])(\d)([+-]1)?=(\d+)")
_BOX = re.compile(r"\\boxed\{(\d+)\}")


def skills_used(problem: Problem, text: str) -> dict[str, list[bool]]:
    """For every skill whether it was right, once for each place where it was due.

    A response that restates other operands, or whose columns cannot be read, shows nothing but
    its operation. `place` is due where the last two digits of the answer as worked out differ;
    a box that holds neither that answer, nor it with a mistake, shows neither place nor copy.
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
    """`answer` is what the columns give."""
    for copied, wanted in ((True, answer), (False, str(int(answer) + 1))):
        swapped = wanted[:-2] + wanted[:-3:-1]
        if box in (wanted, swapped):
            found["copy"].append(copied)
            if swapped != wanted:
                found["place"].append(box == wanted)
            return


def rates(pairs: Iterable[tuple[Problem, str]]) -> dict[str, tuple[float, int]]:
    """For every skill that was due: its share of right places, and the number of places."""
    seen: dict[str, list[bool]] = {skill: [] for skill in SKILLS}
    for problem, text in pairs:
        for skill, right in skills_used(problem, text).items():
            seen[skill] += right
    return {skill: (sum(r) / len(r), len(r)) for skill, r in seen.items() if r}
