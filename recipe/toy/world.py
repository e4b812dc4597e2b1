"""Arithmetic questions of five levels, natural rephrasings, worked answers and a learner's slips.

A problem is ``a op b``. Its worked answer restates it, then goes column by column, ones first:
``47 + 38`` -> work ``47+38: 7+8=15, 4+3+1=8``, answer ``85``. A learner who forgets the carry (or
the borrow) writes ``4+3=7`` and answers ``75``. The warm-up shows such slips at a stated
rate: the start model has seen the right way and does not prefer it; training is to mend that.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

from prompt_aug.questions import Question, make_question

SOURCE = "toy_arithmetic"
SPLITS = {"train": 0.8, "validation": 0.05, "test": 0.15}

# level -> (what it asks, share of the questions)
LEVELS = {
    1: ("one-digit addition", 0.10),
    2: ("two-digit addition without a carry", 0.15),
    3: ("two-digit addition with a carry", 0.35),
    4: ("two-digit subtraction without a borrow", 0.10),
    5: ("two-digit subtraction with a borrow", 0.30),
}

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
    """``a op b`` of one level."""

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


def level_of(a: int, op: str, b: int) -> int:
    """The level of ``a op b``; 0 where it belongs to none."""
    if op == "+" and a < 10 and b < 10:
        return 1
    if a < 10 or b < 10 or (op == "-" and a // 10 <= b // 10):
        return 0
    if op == "+":
        return 3 if a % 10 + b % 10 > 9 else 2
    return 5 if a % 10 < b % 10 else 4


def all_problems() -> Iterator[Problem]:
    """Every problem of every level, in a fixed order."""
    for op in ("+", "-"):
        for a in range(100):
            for b in range(100):
                level = level_of(a, op, b)
                if level:
                    yield Problem(a=a, op=op, b=b, level=level)


def split_of(problem: Problem, seed: int) -> str:
    """The split of a problem, by a hash of its operands: disjoint whatever the sizes."""
    place, edge = unit(seed, "split", problem.a, problem.op, problem.b), 0.0
    for split, share in SPLITS.items():
        edge += share
        if place < edge:
            return split
    return "test"


def problems(split: str, count: int, seed: int) -> list[Problem]:
    """`count` problems of `split`, the levels in the shares of `LEVELS`, each problem once.

    Raises ValueError where a level has too few problems for its share.
    """
    chosen: list[Problem] = []
    pool = [p for p in all_problems() if split_of(p, seed) == split]
    for level, (name, share) in LEVELS.items():
        ranked = sorted(
            (p for p in pool if p.level == level),
            key=lambda p: unit(seed, "rank", p.a, p.op, p.b),
        )
        wanted = round(count * share)
        if level == 1:  # only 100 of these exist: take what the split has
            wanted = min(wanted, len(ranked))
        if wanted > len(ranked):
            raise ValueError(
                f"{split}: level {level} ({name}) has {len(ranked)} problems, {wanted} wanted"
            )
        chosen += ranked[:wanted]
    return sorted(chosen, key=lambda p: unit(seed, "order", p.a, p.op, p.b))


def to_question(problem: Problem, split: str, seed: int) -> Question:
    """The problem in one of its phrasings (by a hash), the other three as its neighbours."""
    texts = [phrase.format(a=problem.a, b=problem.b) for phrase in PHRASES[problem.op]]
    first = int(unit(seed, "phrase", problem.a, problem.op, problem.b) * len(texts))
    return make_question(
        text=texts[first],
        answers=(str(problem.answer),),
        source=SOURCE,
        split=split,
        level=problem.level,
        neighbours=tuple(text for i, text in enumerate(texts) if i != first),
    )


def worked(problem: Problem, forget: bool = False) -> tuple[str, str]:
    """(work, answer) column by column; `forget` leaves out a carry or borrow that is due."""
    a1, a0 = divmod(problem.a, 10)
    b1, b0 = divmod(problem.b, 10)
    restated = f"{problem.a}{problem.op}{problem.b}"
    if problem.level == 1:
        return f"{restated}={a0 + b0}", str(a0 + b0)
    if problem.op == "+":
        ones, carry = a0 + b0, a0 + b0 > 9
        note, tens = ("+1", a1 + b1 + 1) if carry and not forget else ("", a1 + b1)
        work = f"{restated}: {a0}+{b0}={ones}, {a1}+{b1}{note}={tens}"
        return work, str(10 * tens + ones % 10)
    borrow = a0 < b0
    note, tens = ("-1", a1 - b1 - 1) if borrow and not forget else ("", a1 - b1)
    top = a0 + 10 if borrow else a0
    work = f"{restated}: {top}-{b0}={top - b0}, {a1}-{b1}{note}={tens}"
    return work, str(10 * tens + top - b0)
