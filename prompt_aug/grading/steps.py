r"""Steps by which a formula computes its value, to find the question's steps in an answer.

    13 \cdot 17                    (*, 221)                                 and the leaves 13, 17
    \frac{26 \cdot 17}{2}          (*, 442), (/, 221)                            26, 17, 2
    (x+2)(x-7)                     (+, x+2), (+, x-7), (*, (x+2)(x-7))           x, 2, x, 7
    (x + \frac{4}{2})(x-7) + 1 - 1 the same and (/, 2), (+, the whole)

A sum or a product is one step in any order of its terms, and letters have a value at one point.
Respelling a number, adding 0 or multiplying by 1 adds steps and removes none.
"""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from prompt_aug.grading.arithmetic import DOUBLES, Number, TooBig, Unsupported, tokens_of
from prompt_aug.grading.evaluate import Reader

Step = tuple[str, complex]
_CLOSE = 1e-9  # relative difference by rounding alone
_MAX_STEPS = 200


@dataclass(frozen=True, slots=True)
class Steps:
    """`made`: (operation, value) of every sum, product, quotient, power, ...; `leaves`: the rest.

    Operations are "+", "*", "/" (a product that divides), "^" (roots, too), "!" (binomials, too)
    and "f" (any function).
    """

    made: tuple[Step, ...]
    leaves: tuple[Step, ...]


class _Recorder(Reader):
    def __init__(self, tokens: list[str]) -> None:
        super().__init__(tokens)
        self.steps: list[Step] = []

    def _done(self, _operation: str, value: Number) -> Number:
        self.steps.append((_operation, DOUBLES.convert(value)))
        return value


@lru_cache(maxsize=4096)
def steps_of(text: str, *, decimal: bool = False) -> Steps | None:
    """Return the steps of a formula; None if it cannot be read or has more than `_MAX_STEPS`.

    With `decimal` a rational value that is not whole, such as 1.5, adds a quotient.
    """
    try:
        recorder = _Recorder(tokens_of(text))
        value = recorder.read()
        if decimal and isinstance(value, Fraction) and value.denominator > 1:
            recorder.steps.append(("/", DOUBLES.convert(value)))
    except (Unsupported, TooBig, RecursionError):
        return None
    if len(recorder.steps) > _MAX_STEPS:
        return None
    made = tuple(step for step in recorder.steps if step[0])
    return Steps(made, tuple(step for step in recorder.steps if not step[0]))


def carries(answer: Steps, formula: Steps, golds: list[Steps]) -> bool:
    """Return whether `answer` makes every step of `formula`, and no gold does.

    A quotient counts as a product, since 2E/2 is E. If a gold makes the same steps (3/2, where the
    formula is 6/4), `answer` must also have the formula's quotients, numbers and letters.
    """
    if not formula.made:  # 0.75, where the answer is a fraction
        number = formula.leaves[:1]
        kept = number and number[0][1].real % 1 and _contains(answer.leaves, number)
        return bool(kept) and not any(_contains(gold.leaves, number) for gold in golds)
    made = _products(formula.made)
    if not any(_contains(_products(gold.made), made) for gold in golds):
        return _contains(_products(answer.made), made)
    everything = (*formula.made, *formula.leaves)
    if any(_contains((*gold.made, *gold.leaves), everything) for gold in golds):
        return False
    return _contains((*answer.made, *answer.leaves), everything)


def is_no_simpler(answer: Steps, formula: Steps, golds: list[Steps]) -> bool:
    """Return whether `answer` has as many steps or as large a number as `formula`, and no gold has.

    Steps count only if there are two more than in any gold. A number or a fraction of two numbers
    never counts.
    """
    operations = [operation for operation, _ in answer.made]
    literal = not operations or (operations == ["/"] and len(answer.leaves) == 2)  # a/b
    if not golds or literal:
        return False
    longest = max(len(gold.made) for gold in golds)
    largest = max(_largest(gold) for gold in golds)
    if longest < len(formula.made) <= len(answer.made) and len(answer.made) > longest + 1:
        return True  # one step more is another form: 5(3x-16) is 15x-80
    return largest < _largest(formula) <= _largest(answer)


def _largest(steps: Steps) -> float:
    return max((abs(value) for _, value in steps.leaves), default=0.0)


def _products(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    return tuple(("*" if operation == "/" else operation, value) for operation, value in steps)


def _contains(steps: tuple[Step, ...], wanted: tuple[Step, ...]) -> bool:
    """Return whether `steps` has each of `wanted`, up to its sign, at least as often."""
    left = list(steps)
    for operation, x in wanted:
        for step in left:
            bound = _CLOSE * max(abs(x), abs(step[1]))
            if operation == step[0] and min(abs(x - step[1]), abs(x + step[1])) <= bound:
                left.remove(step)
                break
        else:
            return False
    return True
