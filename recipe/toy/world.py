"""A world: its questions, their splits, and the rates of the mistakes that the start model makes.

A world is a short yaml, ``recipe/toy/worlds/NAME.yaml``, read into one typed record:

  levels       kinds of problems with their shares: digits, and how many carries are due
  slips        rates of mistakes, drawn independently: a problem may have several
  questions    sizes of the splits; updates: supervised updates of the start model

Every choice is a hash of (seed, purpose, operands): the split of a problem, its place in the order,
its first form. So splits are disjoint whatever their sizes, and a smaller training set is a part of
a larger one.
"""

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from prompt_aug.questions import Question, make_question
from prompt_aug.typed import Count, Positive, Record, Several, Share, Text, read_typed
from recipe.errors import ConfigError

WORLDS = Path(__file__).with_name("worlds")
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


class WorldError(ConfigError):
    """A world that does not exist, is malformed, or has too few problems."""


class Level(Record):
    """Problems ``a op b`` of `digits` digits each with exactly `carries` carries or borrows."""

    op: Literal["+", "-"]
    digits: Annotated[int, Field(ge=1, le=6)]
    share: Share
    carries: Count | None = None  # None: any number

    @model_validator(mode="after")
    def _has_columns(self) -> Self:
        if self.carries is not None and self.carries >= self.digits:
            raise ValueError(f"carries={self.carries} should be less than digits={self.digits}")
        return self

    @property
    def name(self) -> str:
        kind, noun = ("addition", "carries") if self.op == "+" else ("subtraction", "borrows")
        due = "" if self.carries is None else f" with {self.carries} {noun}"
        return f"{self.digits}-digit {kind}{due}"


class Slips(Record):
    """Rates at which the demonstrations make each mistake; see `Mistakes`."""

    carry: Share = 0.0  # of the carries that are due, each by itself
    borrow: Share = 0.0  # of the borrows that are due
    fact: Share = 0.0  # of the columns
    place: Share = 0.0  # of the answers whose last two digits differ
    copied: Share = Field(default=0.0, alias="copy")  # of all answers; pydantic has a `copy`
    format: Share = 0.0  # of the templates that have a format


class Questions(Record):
    """Sizes of the splits."""

    train: Positive = 4096
    validation: Positive = 64
    test: Positive = 512


def _sum_to_1(levels: tuple[Level, ...]) -> tuple[Level, ...]:
    total = sum(level.share for level in levels)
    if abs(total - 1) > 1e-9:
        raise ValueError(f"the shares sum to {total:g}, not to 1")
    return levels


class World(Record):
    """The record of a yaml file; see the head of this module."""

    name: Annotated[str, Field(max_length=0)] = ""  # that of the file, which may not set it
    about: Text
    levels: Annotated[Several[Level], Field(min_length=1), AfterValidator(_sum_to_1)]
    slips: Slips = Slips()
    questions: Questions = Questions()
    updates: Positive = 1100

    def record(self) -> dict[str, Any]:
        """Return the content of digest and manifest: all but `about`."""
        return self.model_dump(by_alias=True, exclude={"about"})


def names() -> list[str]:
    """Return the worlds of the project."""
    return sorted(path.stem for path in WORLDS.glob("*.yaml"))


def load_world(name: str) -> World:
    """Return the world called `name`, or that of a yaml file. Raises WorldError."""
    path = Path(name) if name.endswith(".yaml") else WORLDS / f"{name}.yaml"
    if not path.is_file():
        raise WorldError(
            f"recipe.toy.world={name}: there is no {path.name}; known are {', '.join(names())}, or "
            "give the path of a .yaml file"
        )
    return read_typed(path, World, WorldError).model_copy(update={"name": path.stem})


# ------------------------------------------------------------------------- problems


def columns_of(a: int, b: int) -> int:
    """Return the number of columns in the work of ``a op b``."""
    return len(str(max(a, b)))


def digits_of(number: int, columns: int) -> list[int]:
    """Return the digits of `number`, ones first."""
    return [number // 10**c % 10 for c in range(columns)]


def carries_due(a: int, op: str, b: int) -> int:
    """Return the number of columns that carry to, or borrow from, the column on their left."""
    due, note, columns = 0, 0, columns_of(a, b)
    for x, y in zip(digits_of(a, columns)[:-1], digits_of(b, columns)[:-1], strict=True):
        note = int(x + y + note > 9) if op == "+" else int(x - note < y)
        due += note
    return due


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
    """Return a number in [0, 1) that is a pure function of `key` (BLAKE2b, 64 bits)."""
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


@functools.cache
def _operands(op: str, columns: int) -> tuple[tuple[int, int], ...]:
    """Return all pairs of up to two digits in order, and `DRAWN` of the longer ones.

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
    """Return every problem of the levels; one that two levels admit belongs to the first."""
    chosen: dict[tuple[str, int, int], Problem] = {}
    for op in ("+", "-"):
        numbered = [(i, lv) for i, lv in enumerate(world.levels, start=1) if lv.op == op]
        lengths = sorted({level.digits for _, level in numbered})
        for columns in lengths:
            for a, b in _operands(op, columns):
                due = carries_due(a, op, b)
                for number, level in numbered:
                    if level.digits == columns and level.carries in (None, due):
                        chosen[op, a, b] = Problem(a=a, op=op, b=b, level=number)
                        break
    return sorted(chosen.values(), key=lambda p: (p.op == "-", p.a, p.b))


def split_of(problem: Problem, seed: int) -> str:
    """Return the split of a problem, by a hash of its operands."""
    place, edge = unit(seed, "split", problem.a, problem.op, problem.b), 0.0
    for split, share in SPLITS.items():
        edge += share
        if place < edge:
            return split
    return "test"


def problems(world: World, split: str, count: int, seed: int) -> list[Problem]:
    """Return `count` problems of `split`, the levels in their shares, each problem once.

    One-digit levels have at most 100 problems, so a split may have fewer of them. Raises WorldError
    if another level has too few problems for its share.
    """
    chosen: list[Problem] = []
    pool = [p for p in all_problems(world) if split_of(p, seed) == split]
    for number, level in enumerate(world.levels, start=1):
        of_level = [p for p in pool if p.level == number]
        ranked = sorted(of_level, key=lambda p: unit(seed, "rank", p.a, p.op, p.b))
        wanted = round(count * level.share)
        if wanted > len(ranked) and level.digits > 1:
            raise WorldError(
                f"world {world.name}, {split}: level {number} ({level.name}) has {len(ranked)} "
                f"problems, {wanted} wanted: ask for fewer questions"
            )
        chosen += ranked[:wanted]
    return sorted(chosen, key=lambda p: unit(seed, "order", p.a, p.op, p.b))


def rephrasings(problem: Problem, seed: int) -> tuple[int, ...]:
    """Return indices into `PHRASES`: the question's form, then those of its rephrasings."""
    count = len(PHRASES[problem.op])
    first = int(unit(seed, "phrase", problem.a, problem.op, problem.b) * count)
    return (first, *(i for i in range(count) if i != first))


def phrase(problem: Problem, rephrasing: int) -> str:
    """Return the question in one of its rephrasings."""
    return PHRASES[problem.op][rephrasing].format(a=problem.a, b=problem.b)


def to_question(problem: Problem, split: str, seed: int) -> Question:
    """Return the problem in its first form, with the other three as rephrasings."""
    first, *others = (phrase(problem, i) for i in rephrasings(problem, seed))
    return make_question(
        text=first,
        answers=(str(problem.answer),),
        source=SOURCE,
        split=split,
        level=problem.level,
        rephrasings=tuple(others),
    )
