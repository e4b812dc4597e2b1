"""Single functions of the grader on golden values: functions.tsv, with Python literals.

`exact` has a fraction as text, `intervals` the texts of the intervals, `unsupported` no output.
"""

import ast
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from prompt_aug.grading import Extraction
from prompt_aug.grading.arithmetic import Unsupported
from prompt_aug.grading.evaluate import evaluate
from prompt_aug.grading.extract import conclusion, extract, is_value
from prompt_aug.grading.intervals import as_union
from prompt_aug.grading.normalize import canonical
from prompt_aug.grading.notation import amounts, currencies, whole
from prompt_aug.grading.structure import build
from prompt_aug.grading.units import split_unit

LINES = Path(__file__).with_name("functions.tsv").read_text(encoding="utf-8").splitlines()[1:]
LONG = "We add the parts one after the other, and nothing is lost on the way. " * 12


def intervals(text: str) -> list[str] | None:
    union = as_union(build(canonical(text)))
    return None if union is None else [item.text for item in union[1].items]


def unsupported(text: str) -> None:
    with pytest.raises(Unsupported):
        evaluate(text)


FUNCTIONS: dict[str, Callable[[str], Any]] = {
    "currencies": lambda text: currencies(text).split(),
    "amounts": lambda text: amounts(text).split(),
    "whole": whole,
    "unit": lambda text: split_unit(text)[1],
    "intervals": intervals,
    "is_value": lambda text: is_value(text) and conclusion(text) is not None,
    "conclusion": lambda ending: conclusion(LONG + ending),
    "extract": lambda text: extract(text, Extraction()),
    "exact": lambda text: evaluate(text).exact,
    "unsupported": unsupported,
}


@pytest.mark.parametrize("line", LINES)
def test_function(line: str) -> None:
    name, *cells = line.split("\t")
    given, expected = map(ast.literal_eval, cells)
    if name in ("currencies", "amounts"):
        expected = expected.split()
    elif name == "exact":
        expected = Fraction(expected)
    assert FUNCTIONS[name](given) == expected
