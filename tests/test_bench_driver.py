"""scripts/benchmarks/driver.py runs, and its table says what its numbers say."""

from argparse import ArgumentParser
from types import ModuleType

import pytest
import torch
from load_script import load_script

from recipe.algorithms import ADVANTAGES, TOKEN_WEIGHTS


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    return load_script("benchmarks/driver")


def cells(table: list[str]) -> list[list[str]]:
    """The lines below the head of a markdown table, cut into cells."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table[2:]]


def test_every_line_is_printed(bench: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    bench.main(ArgumentParser(), ["--rows", "16", "--tokens", "8", "--repeats", "1"])
    head, _, *table = capsys.readouterr().out.splitlines()
    assert head.startswith("16 x 8, ")
    rows = cells(table)
    names = [bench.VERL, "grpo", "covariance_of", "covariance_metrics"]
    names += ["gaussian_covariance", "clip_cov", "A w", bench.RECORD, bench.BACK]
    names += ["entropy", "group_metrics", "rephrasing_metrics", bench.WHOLE]
    names += [f"advantage {name}" for name in sorted(ADVANTAGES)]
    names += [f"weights {name}" for name in sorted(TOKEN_WEIGHTS)]
    assert [row[0] for row in rows] == [*names, f"CW-GRPO step: {' + '.join(bench.CW_GRPO)}"]
    assert all(float(cell) >= 0 for row in rows for cell in row[1:])
    assert float(rows[0][2]) == 1.0


def test_the_table_by_hand(bench: ModuleType) -> None:
    parts = {"grpo": 0.25, "covariance_of": 0.25, "covariance_metrics": 0.5}
    parts |= {"gaussian_covariance": 1.0, "clip_cov": 8.0, "A w": 1.0}
    parts |= {bench.RECORD: 0.0625, bench.BACK: 0.0625, "group_metrics": 0.25, bench.WHOLE: 2.5}
    parts |= {"entropy": 0.0625, "rephrasing_metrics": 0.0625}
    rows = cells(bench.table({bench.VERL: 0.5, **parts}))
    assert rows[0][1:] == ["0.5000", "1.00", "1.667"]
    assert rows[4] == ["gaussian_covariance", "1.0000", "2.00", "3.333"]
    # Without clip_cov's 8, and the parts of the whole count once.
    assert rows[-1][1:] == ["3.0000", "6.00", "10.000"]


def test_the_whole_does_what_the_parts_do(bench: ModuleType) -> None:
    functions = bench.lines(bench.made_up(64, 24, 0))
    made = functions[bench.WHOLE]()
    assert torch.equal(made.advantages_BT, functions["A w"]())
    assert functions["covariance_metrics"]().items() <= made.metrics.items()
    assert made.metrics["weights/min"] < 0.5 < made.metrics["weights/effective_tokens"] < 1
