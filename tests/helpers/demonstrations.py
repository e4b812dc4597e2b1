"""Worked answers of two-digit sums and differences in every template's format, with mistakes.

The corpus on which the authors' code computed the digests: a function of its key, so that it can be
made again to the byte.
"""

import hashlib
from dataclasses import dataclass

from smollm2 import FORMS, PLAIN  # scripts/smollm2.py

CARRY, COPY, PLAINLY = 0.60, 0.05, 0.30  # rates: forgotten carry, wrong copy, no format


@dataclass(frozen=True, kw_only=True, slots=True)
class Mistakes:
    forget: frozenset[int]  # columns that leave out the carry or borrow due to them, the ones are 0
    copy: bool  # the answer is one too large


def unit(*key: object) -> float:
    """Return a number in [0, 1) that is a pure function of `key` (BLAKE2b, 64 bits)."""
    digest = hashlib.blake2b("/".join(map(str, key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def worked(a: int, op: str, b: int, mistakes: Mistakes) -> tuple[str, str]:
    """Return (work, answer) of ``a op b``; a mistake without a place in it changes nothing."""
    columns = len(str(max(a, b)))
    written, answer, due = [], "", False
    for column in range(columns):
        x, y = (n // 10**column % 10 for n in (a, b))
        note = int(due and column not in mistakes.forget)
        left, last = x, column == columns - 1
        if op == "-":
            due = not last and x - note < y
            left += 10 if due else 0
            result = left - y - note
        else:
            result = x + y + note
            due = not last and result > 9
        written.append(f"{left}{op}{y}{f'{op}1' if note else ''}={result}")
        answer = (str(result) if last else str(result % 10)) + answer
    # One column restates the problem by itself.
    work = written[0] if columns == 1 else f"{a}{op}{b}: " + ", ".join(written)
    return work, str(int(answer) + int(mistakes.copy))


def draw_demonstration(a: int, op: str, b: int, template: str, *key: object) -> str:
    """Return an answer whose mistakes are a function of `key`, template and problem."""
    place = (*key, template, a, op, b)
    columns = range(1, len(str(max(a, b))))
    # The first column that a carry can reach has no number in its key: two digits have only that.
    forget = {c for c in columns if unit("forget", *place, *([c] if c > 1 else [])) < CARRY}
    mistakes = Mistakes(forget=frozenset(forget), copy=unit("misread", *place) < COPY)
    work, answer = worked(a, op, b, mistakes)
    text = PLAIN if unit("format", *place) < PLAINLY else FORMS.get(template, PLAIN)
    box = "\\boxed{" + answer + "}"
    return text.replace("{work}", work).replace("{box}", box).replace("{answer}", answer)
