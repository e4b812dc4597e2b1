"""Writes the report of one run or several: index.html, report.md, a PNG and a CSV of each figure.

index.html stands alone: curves, samples and formulas inside, no network. summary.json is written
last.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eval.command import add_settings, path, run_command, text
from eval.errors import EvaluationError
from eval.report import charts
from eval.report.archive import archive
from eval.report.compare import (
    checkpoints_of_all,
    configurations_table,
    expected_tables,
    runs_table,
)
from eval.report.data import RunData, collect, summary
from eval.report.figures import figures
from eval.report.page import render_html, render_markdown
from eval.report.rollouts import rollout_samples
from prompt_aug.base.commands import in_columns, make_parser
from prompt_aug.base.errors import UsageError
from prompt_aug.base.files import replacing, write_json, write_text
from recipe.run.folder import RunFolder


def build(
    paths: Sequence[Path],
    out: Path | None = None,
    settings: str | None = None,
    expected: str | None = None,
) -> list[RunData]:
    """Write the whole report into `out` (one run: RUN/report); returns what it was made from."""
    if out is None and len(paths) > 1:
        raise UsageError("a report of several runs needs --out FOLDER")
    folder = out or RunFolder(paths[0]).report
    runs = [collect(run, settings) for run in paths]
    if len({run.name for run in runs}) != len(runs):
        raise EvaluationError(f"two runs have the same name: {[run.name for run in runs]}")
    numbers = [summary(run) for run in runs]
    drawn, absent = figures(runs)
    samples, rollouts = archive(runs), [rollout_samples(run) for run in paths]
    for run, found in zip(runs, rollouts, strict=True):
        missing = [] if found else ["no sample rollouts: rollouts/step_N.jsonl is missing"]
        run.notes.extend([*absent, *missing])
    beside = {
        "comparison": runs_table(runs),
        "differing": configurations_table(runs),
        "checkpoints": checkpoints_of_all(runs),
        "expected": expected_tables(runs, expected),
    }
    name = " and ".join(run.name for run in runs) if len(runs) < 4 else f"{len(runs)} runs"
    for figure in drawn:
        with replacing(folder / f"{figure.name}.png") as file:
            file.write(charts.png(figure))
        write_text(folder / f"{figure.name}.csv", figure.as_csv())
    write_text(folder / "report.md", render_markdown(name, runs, numbers, drawn, beside))
    page = render_html(name, runs, numbers, drawn, rollouts, samples, beside)
    write_text(folder / "index.html", page)
    write_json(folder / "summary.json", _summary(runs, numbers))
    return runs


def _summary(runs: Sequence[RunData], numbers: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of one run its numbers, of several each one's by its name."""
    if len(runs) == 1:
        return numbers[0]
    return {run.name: found for run, found in zip(runs, numbers, strict=True)}


def _report(options: argparse.Namespace) -> None:
    runs = build(options.runs, options.out, options.settings, options.expected)
    for of, table in checkpoints_of_all(runs):
        print("\n".join(filter(None, (of, in_columns(table, rule=True)))))
    for run in runs:
        for note in run.notes:
            print(f"note: {run.name}: {note}" if len(runs) > 1 else f"note: {note}")
    folder = options.out or RunFolder(options.runs[0]).report
    print(f"report: {folder / 'index.html'}")


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit code."""
    parser = make_parser(
        "python -m eval.report",
        __doc__,
        example="python -m eval.report runs/grpo runs/prompt_aug --out compared",
    )
    add = parser.add_argument
    add("runs", nargs="+", type=path, metavar="RUN", help="run folders; several: side by side")
    add("--out", type=path, help="where the report goes (several runs: needed; one: RUN/report)")
    add_settings(parser)
    add("--expected", type=text, help="an entry of expected.yaml to stand beside the runs"
        " (default: those of their start model)")  # fmt: skip
    return run_command(parser, arguments, _report, "a report appears file by file")


if __name__ == "__main__":
    sys.exit(main())
