"""How a learner works out ``a op b`` in columns, ones first, and the mistakes it can make.

``47 + 38`` -> work ``47+38: 7+8=15, 4+3+1=8``, answer ``85``. Every mistake is one place in the
text, and where it is not made the work goes on rightly from what is written: mistakes are
independent, and an answer is right only without any.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class Mistakes:
    """What goes wrong in one worked answer. Columns are counted from 0, the ones."""

    forget: frozenset[int] = frozenset()  # columns that leave out the carry or borrow due to them
    fact: frozenset[int] = frozenset()  # columns whose result is one off
    place: bool = False  # the last two digits of the answer change places
    copy: bool = False  # the answer is one too large


NONE = Mistakes()


def columns_of(a: int, b: int) -> int:
    """How many columns the work of ``a op b`` has."""
    return len(str(max(a, b)))


def digits_of(number: int, columns: int) -> list[int]:
    """The digits of `number`, ones first."""
    return [number // 10**c % 10 for c in range(columns)]


def carries_due(a: int, op: str, b: int) -> int:
    """How many columns hand a carry to the column on their left, or ask a borrow of it."""
    due, note, columns = 0, 0, columns_of(a, b)
    for x, y in zip(digits_of(a, columns)[:-1], digits_of(b, columns)[:-1], strict=True):
        note = int(x + y + note > 9) if op == "+" else int(x - note < y)
        due += note
    return due


def worked(a: int, op: str, b: int, mistakes: Mistakes = NONE) -> tuple[str, str]:
    """(work, answer) of ``a op b``; a mistake that has no place in it changes nothing."""
    columns = columns_of(a, b)
    pairs = list(zip(digits_of(a, columns), digits_of(b, columns), strict=True))
    written, answer, due = [], "", False
    for column, (x, y) in enumerate(pairs):
        note = due and column not in mistakes.forget
        left, last = x, column == columns - 1
        if op == "-":
            due = not last and x - note < y
            left += 10 * due
            result = left - y - note
        else:
            result = x + y + note
            due = not last and result > 9
        if column in mistakes.fact:
            result += -1 if result % 10 else 1  # stays in its ten: no carry comes or goes
        written.append(f"{left}{op}{y}{f'{op}1' if note else ''}={result}")
        answer = (str(result) if last else str(result % 10)) + answer
    # One column restates the problem by itself.
    work = written[0] if columns == 1 else f"{a}{op}{b}: " + ", ".join(written)
    return work, _final(str(int(answer)), mistakes)


def _final(answer: str, mistakes: Mistakes) -> str:
    """The answer as it is written in the box."""
    if mistakes.copy:
        answer = str(int(answer) + 1)
    return answer[:-2] + answer[:-3:-1] if mistakes.place else answer
