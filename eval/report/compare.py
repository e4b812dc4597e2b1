"""What stands side by side: several runs, and a paper's numbers beside ours."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from eval.errors import EvaluationError
from eval.intervals import Difference, paired
from eval.report.data import CheckpointRow, RunData
from eval.report.tables import Table, share
from eval.settings import differences
from prompt_aug.files import read_text

EXPECTED = Path(__file__).with_name("expected.yaml")


def expected() -> dict[str, dict[str, Any]]:
    """The published results, by name."""
    return dict(yaml.safe_load(read_text(EXPECTED)))


def runs_table(runs: Sequence[RunData]) -> Table:
    """A row per run; the last column compares its result with that of the first run, paired."""
    if len(runs) < 2:
        return []
    first = next((run for run in runs if run.rows), None)
    head = ["run", "start", "result", "at step", "gain over start", "p"]
    table = [[*head, f"against {first.name}" if first else "against", "p"]]
    for run in runs:
        if not run.rows:
            table.append([run.name, *["-"] * (len(head) + 1)])
            continue
        last, start = run.result, run.rows[0] if run.rows[0].step == 0 else None
        cells = [run.name, share(start.total) if start else "-", share(last.total)]
        cells += [str(last.step), share(last.gain, signed=True)]
        cells.append(f"{last.paired.p_value:.2g}" if last.paired else "-")
        other = _difference(first.result, last) if first and run is not first else None
        cells += [_interval(other), f"{other.p_value:.2g}" if other else "-"]
        table.append(cells)
    return table


def _difference(one: CheckpointRow, other: CheckpointRow) -> Difference | None:
    """other - one, question by question; None where they were not asked the same."""
    if set(one.benchmarks) != set(other.benchmarks) or any(
        differences(entry["settings"], other.benchmarks[name]["settings"])
        for name, entry in one.benchmarks.items()
    ):
        return None
    return paired(_means(one.benchmarks), _means(other.benchmarks))


def _means(benchmarks: Mapping[str, Mapping[str, Any]]) -> dict[str, float]:
    return {
        f"{name} {index}": mean
        for name, entry in benchmarks.items()
        for index, mean in enumerate(entry["question_means"])
    }


def _interval(value: Difference | None) -> str:
    if value is None:
        return "-"
    return f"{100 * value.mean:+.1f} [{100 * value.low:+.1f}, {100 * value.high:+.1f}]"


def expected_tables(runs: Sequence[RunData], asked: str | None) -> list[tuple[str, Table]]:
    """(source, table) of each published entry that fits a run, ours below the paper's rows."""
    known = expected()
    if asked is not None and asked not in known:
        raise EvaluationError(f"--expected {asked}: known are {', '.join(sorted(known))}")
    tables = []
    for name, entry in known.items():
        fitting = [run for run in runs if run.rows and (name == asked or _fits(run, entry))]
        if fitting:
            rows = [["", *entry["benchmarks"]]]
            rows += [[row, *(f"{x:.1f}" for x in values)] for row, values in entry["rows"].items()]
            for run in fitting:
                ends = {row.step: row for row in (run.rows[0], run.result)}
                rows += [_ours(run, row, entry) for row in ends.values()]
            tables.append(
                (f"{entry['model']}, {entry['metric']}, per cent: {entry['source']}", rows)
            )
    return tables


def _fits(run: RunData, entry: Mapping[str, Any]) -> bool:
    """The same start model, and a benchmark in common."""
    own = str(run.model or "").rstrip("/").rpartition("/")[2]
    shared = set(entry["benchmarks"]) & set(run.rows[-1].benchmarks)
    return bool(shared) and own.lower() == str(entry["model"]).lower()


def _ours(run: RunData, row: CheckpointRow, entry: Mapping[str, Any]) -> list[str]:
    cells = []
    for name in entry["benchmarks"]:
        scores = row.benchmarks.get(name)
        if scores is None:
            cells.append("-")
        elif entry["metric"] == "accuracy":
            cells.append(share(scores))
        else:
            value = scores["pass_at_k"].get(entry["metric"].removeprefix("pass@"))
            cells.append("-" if value is None else f"{100 * value:.1f}")
    return [f"ours: {run.name}, step {row.step}", *cells]
