"""What stands side by side: several runs, and a paper's numbers beside ours."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from eval.errors import EvaluationError
from eval.intervals import Difference, paired
from eval.report.data import CheckpointRow, RunData
from eval.report.tables import (
    NAMES,
    Table,
    checkpoint_table,
    flat_configuration,
    method,
    p_value,
    share,
)
from eval.settings import differences
from prompt_aug.base.files import read_text
from recipe.run.folder import select
from recipe.run.progress import duration

EXPECTED = Path(__file__).with_name("expected.yaml")


def expected() -> dict[str, dict[str, Any]]:
    """The published results, by name."""
    return dict(yaml.safe_load(read_text(EXPECTED)))


def runs_table(runs: Sequence[RunData]) -> Table:
    """A row per run; the last column compares its result with that of the first run, paired."""
    if len(runs) < 2:
        return []
    first = next((run for run in runs if run.rows), None)
    head = ["run", "method", "start", "result", "at step", "gain over start", "p"]
    head += [f"against {first.name}" if first else "against", "p", "seed", "training time"]
    table = [head]
    for run in runs:
        cells = [run.name, method(run.config) or "-"]
        if run.rows:
            last, start = run.result, run.rows[0] if run.rows[0].step == 0 else None
            cells += [share(start.total) if start else "-", share(last.total)]
            cells += [str(last.step), share(last.gain, signed=True), p_value(last.paired)]
            other = _difference(first.result, last) if first and run is not first else None
            cells += [_interval(other), p_value(other)]
        cells += ["-"] * (len(head) - len(cells) - 2)
        seed, seconds = select(run.config, "recipe.seed"), run.last("train/wall_seconds")
        cells += ["-" if seed is None else str(seed)]
        table.append([*cells, "-" if seconds is None else duration(seconds)])
    return table


def configurations_table(runs: Sequence[RunData]) -> Table:
    """The keys of config.yaml whose values differ between runs, a column per run."""
    if len(runs) < 2:
        return []
    flat = [dict(flat_configuration(run)) for run in runs]
    keys = dict.fromkeys(key for values in flat for key in values if key not in NAMES)
    rows = [[key, *(values.get(key, "-") for values in flat)] for key in keys]
    return [["key", *(run.name for run in runs)], *(r for r in rows if len(set(r[1:])) > 1)]


def checkpoints_of_all(runs: Sequence[RunData]) -> list[tuple[str, Table]]:
    """(heading, table) of the checkpoints: one for all runs that have the same columns."""
    found: dict[tuple[str, ...], tuple[list[str], Table]] = {}
    for run in runs:
        head, *rows = checkpoint_table(run)
        names, table = found.setdefault(tuple(head), ([], []))
        names.append(run.name)
        table += [[run.name, *row] if len(runs) > 1 else row for row in rows]
    first = ["run"] if len(runs) > 1 else []
    return [
        ("" if len(found) == 1 else ", ".join(names), [[*first, *head], *table])
        for head, (names, table) in found.items()
    ]


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
