"""Problems ``a op b``, their splits, their rephrasings, and the questions made of them.

Every choice is a hash of (seed, what for, operands): which split a problem is in, its place in the
order, its first form. So splits are disjoint whatever their sizes,
and a smaller training set is a part of a larger one.
"""

import functools
import hashlib
from dataclasses import dataclass

from prompt_aug.questions import Question, make_question
from recipe.toy.work import carries_due
from recipe.toy.world import Level, World, WorldError

SOURCE = "toy_arithmetic"
SPLITS = {"train": 0.8, "validation": 0.05, "test": 0.15}
DRAWN = 20_000  # problems of an operation and a length from three digits on, where all are too many

PHRASES = {
    "+": (
        "What is {a} + {b}?",
        "Add {a} and {b}.",
        "Find the sum of {a} and {b}.",
        "Tom has {a} apples and gets {b} more. How many apples has he now?",
    ),
    "-": (
        "What is {a} - {b}?",
        "Subtract {b} from {a}.",
        "By how much is {a} larger than {b}?",
        "Ann has {a} coins and spends {b}. How many coins are left?",
    ),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """``a op b`` of one level, counted from 1; its operands have the same number of digits."""

    a: int
    op: str
    b: int
    level: int

    @property
    def answer(self) -> int:
        return self.a + self.b if self.op == "+" else self.a - self.b


def unit(*key: object) -> float:
    """A number in [0, 1) that is a pure function of `key` (BLAKE2b, 64 bits)."""
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


@functools.cache
def _operands(op: str, columns: int) -> tuple[tuple[int, int], ...]:
    """All pairs of up to two digits in order, and `DRAWN` of the longer ones.

    Of a difference the first digit of a is the larger, except with one digit, where a >= b.
    """
    low, high = (0 if columns == 1 else 10 ** (columns - 1)), 10**columns
    if columns <= 2:
        pairs = [(a, b) for a in range(low, high) for b in range(low, high)]
    else:
        places = [unit("operands", op, columns, i, side) for i in range(DRAWN) for side in "ab"]
        numbers = [low + int(place * (high - low)) for place in places]
        pairs = list(dict.fromkeys(zip(numbers[::2], numbers[1::2], strict=True)))
    if op == "-":
        top = 10 ** (columns - 1)
        pairs = [(a, b) for a, b in pairs if a // top > b // top or (columns == 1 and a == b)]
    return tuple(pairs)


def all_problems(world: World) -> list[Problem]:
    """Every problem of the world's levels; one that two levels admit belongs to the first."""
    found: dict[tuple[str, int, int], Problem] = {}
    for op in ("+", "-"):
        numbered = [(i, lv) for i, lv in enumerate(world.levels, start=1) if lv.op == op]
        lengths = sorted({level.digits for _, level in numbered})
        for columns in lengths:
            for a, b in _operands(op, columns):
                due = carries_due(a, op, b)
                for number, level in numbered:
                    if level.digits == columns and level.carries in (None, due):
                        found[op, a, b] = Problem(a=a, op=op, b=b, level=number)
                        break
    return sorted(found.values(), key=lambda p: (p.op == "-", p.a, p.b))


def split_of(problem: Problem, seed: int) -> str:
    """The split of a problem, by a hash of its operands: disjoint whatever the sizes."""
    place, edge = unit(seed, "split", problem.a, problem.op, problem.b), 0.0
    for split, share in SPLITS.items():
        edge += share
        if place < edge:
            return split
    return "test"


def problems(world: World, split: str, count: int, seed: int) -> list[Problem]:
    """`count` problems of `split`, the levels in their shares, each problem once.

    Of one-digit levels there are at most 100 problems: a split has as many of them as there are.
    Raises WorldError where another level has too few problems for its share.
    """
    chosen: list[Problem] = []
    pool = [p for p in all_problems(world) if split_of(p, seed) == split]
    for number, level in enumerate(world.levels, start=1):
        of_level = [p for p in pool if p.level == number]
        ranked = sorted(of_level, key=lambda p: unit(seed, "rank", p.a, p.op, p.b))
        wanted = _wanted(level, count, len(ranked))
        if wanted > len(ranked):
            raise WorldError(
                f"world {world.name}, {split}: level {number} ({level.name}) has {len(ranked)} "
                f"problems, {wanted} wanted: ask for fewer questions"
            )
        chosen += ranked[:wanted]
    return sorted(chosen, key=lambda p: unit(seed, "order", p.a, p.op, p.b))


def _wanted(level: Level, count: int, there: int) -> int:
    wanted = round(count * level.share)
    return min(wanted, there) if level.digits == 1 else wanted


def rephrasings(problem: Problem, seed: int) -> tuple[int, ...]:
    """Indices into `PHRASES`: the form of the question, then those of its rephrasings."""
    count = len(PHRASES[problem.op])
    first = int(unit(seed, "phrase", problem.a, problem.op, problem.b) * count)
    return (first, *(i for i in range(count) if i != first))


def phrase(problem: Problem, rephrasing: int) -> str:
    """The question in one of its rephrasings."""
    return PHRASES[problem.op][rephrasing].format(a=problem.a, b=problem.b)


def to_question(problem: Problem, split: str, seed: int) -> Question:
    """The problem in its first form, the other three as its rephrasings."""
    first, *others = (phrase(problem, i) for i in rephrasings(problem, seed))
    return make_question(
        text=first,
        answers=(str(problem.answer),),
        source=SOURCE,
        split=split,
        level=problem.level,
        rephrasings=tuple(others),
    )
